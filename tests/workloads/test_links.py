"""Every pair of ranks, one at a time: which pair is slow, and which rank."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.launching import Launch

from pytest_distbench.errors import ConfigurationError
from pytest_distbench.launch.starters import Launcher
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.workloads.causes import Link, Slow, find_slow
from pytest_distbench.workloads.links import pairs

BODIES = """
import time

import torch.distributed as dist

from pytest_distbench.workloads.links import link_matrix


def body(rank):
    def is_slow(other):
        pair = {rank.rank, other}
        return pair == set(rank.params.get("slow_pair", ())) or rank.params.get("slow_rank") in pair

    def send(tensor, dst):
        if is_slow(dst):
            time.sleep(0.04)
        sent(tensor, dst)

    sent, dist.send = dist.send, send
    link_matrix(rank)


def damaged(rank):
    def recv(tensor, src):
        received(tensor, src)
        tensor[3] = 77

    received, dist.recv = dist.recv, recv
    link_matrix(rank)
"""
INJECTED_S = 0.04
"""Both sides of a slow link sleep so long before they send: half a round trip takes no less, and no other as much."""
SIZES = {"latency_bytes": 8, "bandwidth_bytes": 2048, "iterations": 3, "warmup": 1, "max_imbalance": None}


@pytest.fixture
def launch(launcher: Launcher, tmp_path: Path) -> Launch:
    file = tmp_path / "bodies.py"
    file.write_text(BODIES)
    return Launch(launcher, tmp_path, file)


on_warm = pytest.mark.parametrize("launcher", ["warm"], indirect=True)


def params(**changes: object) -> dict[str, object]:
    return {**SIZES, "pattern": "ping-pong", **changes}


def times(record: LaunchRecord) -> dict[Link, float]:
    assert (record.outcome, record.reason) == ("passed", "")
    return {
        Link(int(m.at["from"]), int(m.at["to"])): m.value or 0.0 for m in record.measurements if m.name == "latency"
    }


def test_patterns_take_each_pair_once_or_both_directions() -> None:
    assert pairs(3, "ping-pong") == [(0, 1), (0, 2), (1, 2)]
    assert pairs(3, "one-way") == [(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)]

    with pytest.raises(ConfigurationError, match="unknown pattern 'ring': known are ping-pong, one-way"):
        pairs(2, "ring")


def slow(record: LaunchRecord) -> Slow:
    found = times(record)
    assert len(found) == 6
    return find_slow([link for link, seconds in found.items() if seconds >= INJECTED_S], list(found))


@pytest.mark.spawn
@on_warm
def test_the_slow_pair_is_named_among_four_ranks_and_is_beyond_a_bound(launch: Launch) -> None:
    record = launch("body", world_size=4, params=params(slow_pair=[1, 3], max_imbalance=1.01))
    [imbalance] = [m for m in record.measurements if m.key == "imbalance[of=latency]"]

    assert slow(record) == ((), (Link(1, 3),), (), ())
    assert not imbalance.bounds[0].holds(imbalance.value)


@pytest.mark.spawn
@on_warm
def test_the_slow_rank_is_named_among_four_ranks(launch: Launch) -> None:
    assert slow(launch("body", world_size=4, params=params(slow_rank=2))) == ((2,), (), (), ())


@pytest.mark.spawn
@on_warm
def test_one_way_measures_both_directions_and_no_latency(launch: Launch) -> None:
    record = launch("body", params=params(pattern="one-way"))

    assert [m.key for m in record.measurements] == ["bandwidth[from=0,to=1]", "bandwidth[from=1,to=0]", "peak_memory"]


@pytest.mark.spawn
@on_warm
def test_a_damaged_message_fails_with_its_link(launch: Launch) -> None:
    record = launch("damaged", params=params())

    assert record.outcome == "failed"
    assert "rank 0 to rank 1 and back: 1 of 8 bytes are wrong" in record.reason
