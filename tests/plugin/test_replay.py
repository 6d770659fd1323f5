"""``distbench.replay``: which fingerprint is meant, and whether these ranks can replay it."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.cases import ON_TWO
from support.fingerprints import of, reduce

from pytest_distbench.plugin.arguments import Arguments
from pytest_distbench.plugin.outcomes import Misuse, Run
from pytest_distbench.plugin.replay import replay_params
from pytest_distbench.records.case import BaselineEntry
from pytest_distbench.records.iteration import Collective, Fingerprint, Group
from pytest_distbench.store.baselines import BaselineStore

STEP = of(reduce(4096, how="sum"))


def params(source: Any, of_which: str = "", *, world_size: int = 2, beside: Path = Path()) -> dict[str, Any]:
    given = Arguments("distbench.replay", Path(__file__))
    return replay_params(given, source, of_which, world_size=world_size, beside=beside)


def run_with(**fingerprints: Fingerprint) -> Run:
    result: Any = SimpleNamespace(launches=[SimpleNamespace(fingerprints=fingerprints)])
    return Run(None, lambda: result)  # type: ignore[arg-type] # its samples are not looked at


def partner(op: str, how: str) -> Collective:
    return Collective(op, "float32", 4, "default", 1, how)


def test_a_run_a_fingerprint_and_a_file_are_taken(tmp_path: Path) -> None:
    entry = BaselineEntry(
        workload="",
        conditions=ON_TWO,
        software={},
        metrics={},
        fingerprints={"step": STEP},
    )
    path = BaselineStore(tmp_path, "any").write("test_a.py::test_b", "ws2.gloo.warm", entry)
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
            of(reduce(4, group="mesh_tp"), groups={"all": [Group("mesh_tp", 2, 2)]}),
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
def test_what_cannot_be_replayed_is_told(source: object, of_which: str, said: str) -> None:
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
    pairs = of(*rows, groups={"all": [Group("mesh_pp", 2, 1)]})
    assert params(pairs, world_size=4)["groups"] == [["mesh_pp", 2, 1]]

    # A mesh of 64 ranks has a row of two that is used and a column of 32 that is not: two ranks can replay it
    mesh = {"0": [Group("mesh_dp", 32, 2), Group("mesh_tp", 2, 1)]}
    found = params(Fingerprint(collectives={"0": [reduce(4, group="mesh_tp")]}, groups=mesh))
    assert found["groups"] == [["mesh_tp", 2, 1]]
