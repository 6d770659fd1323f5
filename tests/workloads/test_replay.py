"""A replay issues what the fingerprint has: in the same order, with the same sizes, dtypes, groups and partners."""

from __future__ import annotations

import msgspec
import pytest
from support.fake_world import fake_rank

from pytest_distbench.plugin.replay import _REPLAYED
from pytest_distbench.records.iteration import PICKLE, Collective, Group
from pytest_distbench.workloads.replay import KNOWN, replay

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
        "groups": msgspec.to_builtins([Group("mesh_dp", 2, 2)]),
        "warmup": 1,
        "iterations": 1,
    }
    with fake_rank(1, world_size=4) as rank:
        rank.params = params
        replay(rank)

    groups = {"mesh_dp": rank.watch.found["replay"].groups[0].name}
    told = [(c.op, c.dtype, c.message_bytes, c.count, c.how) for c in rank.watch.found["replay"].collectives]
    assert told[:-1] == [(c.op, c.dtype, c.message_bytes, c.count, c.how) for c in ROWS[:-1]]
    assert told[-1] == ("broadcast", "uint8", 1, 1, "root 0")
    assert [g[1:] for g in map(msgspec.to_builtins, rank.watch.found["replay"].groups)] == [[2, 2]]
    assert {c.group for c in rank.watch.found["replay"].collectives} == {"default", groups["mesh_dp"]}
    assert len(rank.watch.found["replay[op=all_reduce]"].collectives) == 1
    assert [c.op for c in rank.watch.found["replay[op=send and recv]"].collectives] == ["send", "recv"]


def test_pytests_own_process_knows_the_same_operations() -> None:
    assert KNOWN == _REPLAYED
