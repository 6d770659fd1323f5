"""A replay: which fingerprint is meant, whether these ranks can replay it, and that they issue what it has."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from support.cases import ON_TWO
from support.fake_world import fake_rank
from support.fingerprints import of, reduce

from pytest_distbench.plugin.arguments import Arguments
from pytest_distbench.plugin.outcomes import Misuse, Run
from pytest_distbench.records.case import BaselineEntry
from pytest_distbench.records.iteration import PICKLE, Collective, Fingerprint
from pytest_distbench.store.baselines import Baselines
from pytest_distbench.workloads.replay import replay, replay_params

STEP = of(reduce(4096, how="sum"))


def params(source: Any, of_which: str = "", *, world_size: int = 2, beside: Path = Path()) -> dict[str, Any]:
    given = Arguments("communication.replay", Path(__file__))
    return replay_params(given, source, of_which, world_size=world_size, folder=beside)


def run_with(**fingerprints: Fingerprint) -> Run:
    result: Any = SimpleNamespace(launches=[SimpleNamespace(fingerprints=fingerprints)])
    run = Run(None, None)  # type: ignore[arg-type] # its samples are not looked at
    run.found = result
    return run


def partner(op: str, how: str) -> Collective:
    return Collective(op, "float32", 4, "default", 1, how)


def test_a_run_a_fingerprint_and_a_file_are_taken(tmp_path: Path) -> None:
    entry = BaselineEntry(workload="", conditions=ON_TWO, software={}, metrics={}, fingerprints={"step": STEP})
    path = Baselines(tmp_path, "any").write("test_a.py::test_b", "ws2.gloo.warm", entry)
    expected = {"collectives": {"all": [["all_reduce", "float32", 4096, "default", 1, "sum"]]}, "groups": []}

    assert params(run_with(training_start=of(), step=STEP)) == expected
    assert params(STEP) == expected
    assert params(os.path.relpath(path, tmp_path), beside=tmp_path) == expected


RING = of(partner("send", "to +1"), partner("recv", "from -1"))


@pytest.mark.parametrize(
    ("source", "of_which", "said"),
    [
        (run_with(a=STEP, b=STEP), "", "say which fingerprint with of=; there are a, b"),
        (run_with(a=STEP), "c", "of='c'; there are a"),
        (7, "", "7; wanted a run of this test, a Fingerprint, or the path of a baseline file"),
        (
            "nowhere.json",
            "",
            "there is no file 'nowhere.json'; wanted the path of a baseline file, absolute or relative",
        ),
        ("\0", "", "there is no file '\\x00'"),
        (".", "", "wanted a regular file, found a folder"),
        (Fingerprint(missing="it was not recorded"), "", "there is no fingerprint 'given': it was not recorded"),
        (of(), "", "has no collective"),
        (of(Collective("telepathy", "float32", 4, "default", 1, "")), "", "telepathy cannot be replayed"),
        (of(reduce(4, group="mesh_tp")), "", "does not contain the ranks of the group 'mesh_tp'"),
        (
            of(reduce(4, group="mesh_tp"), groups={"all": [("mesh_tp", 2, 2)]}),
            "",
            "'mesh_tp' of 2 ranks, 2 apart, does not fit into 2 ranks",
        ),
        (of(partner("send", "to +1")), "", "sends and receives of one rank do not match"),
        (
            Fingerprint(collectives={"0": [reduce(4)], "1": [], "2": []}),
            "",
            "its ranks differ, and it describes 3 of them, so replaying it takes as many ranks; found 2",
        ),
    ],
)
def test_a_fingerprint_that_cannot_be_replayed_is_an_error(source: object, of_which: str, said: str) -> None:
    with pytest.raises(Misuse) as refused:
        params(source, of_which)

    assert said in str(refused.value)


def test_groups_of_a_replay_are_those_that_its_collectives_use() -> None:
    assert list(params(RING)["collectives"]) == ["all"]

    both = of(partner("send", "to +1"), partner("recv", "from +1"))
    assert list(params(both, world_size=2)["collectives"]) == ["all"]
    with pytest.raises(Misuse, match="do not match"):
        params(both, world_size=3)

    rows = [Collective(op, "float32", 4, "mesh_pp", 1, f"{way} +1") for op, way in (("send", "to"), ("recv", "from"))]
    pairs = of(*rows, groups={"all": [("mesh_pp", 2, 1)]})
    assert params(pairs, world_size=4)["groups"] == [["mesh_pp", 2, 1]]

    # A mesh of 64 ranks has a row of two that is used and a column of 32 that is not: two ranks can replay it
    mesh = {"0": [("mesh_dp", 32, 2), ("mesh_tp", 2, 1)]}
    found = params(Fingerprint(collectives={"0": [reduce(4, group="mesh_tp")]}, groups=mesh))
    assert found["groups"] == [["mesh_tp", 2, 1]]


ROWS = [
    Collective("all_gather_into_tensor", "bfloat16", 64, "mesh_dp", 2, ""),
    Collective("all_reduce", "float32", 4096, "default", 1, "max"),
    Collective("reduce_scatter_tensor", "float32", 128, "mesh_dp", 1, "sum"),
    Collective("broadcast", "int64", 8, "mesh_dp", 1, "root 1"),
    Collective("reduce", "float32", 8, "default", 1, "sum root 3"),
    Collective("send", "float32", 20, "default", 1, "to +1"),
    Collective("recv", "float32", 20, "default", 1, "from -1"),
    Collective("all_gather", "float32", 16, "default", 1, ""),
    Collective("all_to_all_single", "uint8", 16, "default", 1, ""),
    Collective("gather", "float32", 16, "default", 1, "root 0"),
    Collective("reduce_scatter", "float32", 32, "default", 1, "sum"),
    Collective("barrier", "", 0, "default", 1, ""),
    Collective("broadcast", PICKLE, 0, "default", 1, "root 0"),
]


@pytest.mark.filterwarnings("ignore:.*deprecated:FutureWarning")
def test_a_replay_has_the_fingerprint_that_it_was_given() -> None:
    params = {
        "collectives": {"0": msgspec.to_builtins(ROWS)},
        "groups": msgspec.to_builtins([("mesh_dp", 2, 2)]),
        "warmup": 1,
        "iterations": 1,
    }
    with fake_rank(1, world_size=4) as rank:
        rank.params = params
        replay(rank)

    groups = {"mesh_dp": rank.watch.found["replay"].groups["0"][0][0]}
    told = [(c.op, c.dtype, c.message_bytes, c.count, c.how) for c in rank.watch.sends("replay")]
    assert told[:-1] == [(c.op, c.dtype, c.message_bytes, c.count, c.how) for c in ROWS[:-1]]
    assert told[-1] == ("broadcast", "uint8", 1, 1, "root 0")
    assert [g[1:] for g in rank.watch.found["replay"].groups["0"]] == [(2, 2)]
    assert {c.group for c in rank.watch.sends("replay")} == {"default", groups["mesh_dp"]}
    assert len(rank.watch.sends("replay[op=all_reduce]")) == 1
    assert [c.op for c in rank.watch.sends("replay[op=send and recv]")] == ["send", "recv"]
