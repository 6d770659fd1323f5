"""Every pair of ranks, one at a time: which pair is slow, and which rank."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.launching import Launch

from pytest_distbench.errors import ConfigurationError
from pytest_distbench.judging.case import judge_launches
from pytest_distbench.judging.causes import SlowLinks, find_causes
from pytest_distbench.judging.entry import make_entry
from pytest_distbench.judging.links import Link, Slow, find_slow, outliers
from pytest_distbench.judging.terms import Terms
from pytest_distbench.launch.contract import Launcher
from pytest_distbench.records.case import Case, CaseKey
from pytest_distbench.records.environment import Environment
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.run import CaseResult, ReferenceRecord
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
            time.sleep(0.05)
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
CLEARLY = 8.0
"""The planted sleep is some hundred times as long as a message takes on a quiet machine, and ten on a busy one."""
SIZES = {"latency_bytes": 8, "bandwidth_bytes": 2048, "iterations": 4, "warmup": 1, "max_imbalance": None}


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


def test_there_and_back_takes_each_pair_once_and_one_way_takes_both_directions() -> None:
    assert pairs(3, "ping-pong") == [(0, 1), (0, 2), (1, 2)]
    assert pairs(3, "one-way") == [(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)]


def test_an_unknown_pattern_is_told_with_those_there_are() -> None:
    with pytest.raises(ConfigurationError, match="unknown pattern 'ring': known are ping-pong, one-way"):
        pairs(2, "ring")


@pytest.mark.spawn
@on_warm
def test_the_slow_pair_is_named_among_four_ranks(launch: Launch) -> None:
    found = times(launch("body", world_size=4, params=params(slow_pair=[1, 3])))

    assert len(found) == 6
    assert find_slow(outliers(found, CLEARLY), list(found)) == Slow((), (Link(1, 3),))


@pytest.mark.spawn
@on_warm
def test_the_slow_rank_is_named_among_four_ranks(launch: Launch) -> None:
    found = times(launch("body", world_size=4, params=params(slow_rank=2)))

    assert find_slow(outliers(found, CLEARLY), list(found)) == Slow((2,), ())


@pytest.mark.spawn
@on_warm
def test_against_a_baseline_the_pair_that_became_slow_is_the_cause(launch: Launch) -> None:
    case = Case(test="t", key=CaseKey(case_id="ws3", backend="gloo", launcher="warm"), world_size=3, device="cpu")
    before = [launch("body", world_size=3, params=params(iterations=6)) for _ in range(2)]
    after = [launch("body", world_size=3, params=params(iterations=6, slow_pair=[0, 2])) for _ in range(3)]
    terms = Terms(default_tolerance=CLEARLY - 1, max_launches=3, cores=2)
    judged = judge_launches(terms, after, make_entry(case, before, before[0].software), case=case, comparisons=6)
    verdicts = [judgement.verdict for judgement in judged]
    result = CaseResult(
        nodeid="t",
        case=case,
        environment=Environment(platform="p", device="d", cores=2, software={}),
        launches=after,
        verdicts=verdicts,
        reference=ReferenceRecord(kind="stored"),
    )
    [cause] = [cause for cause in find_causes(result) if isinstance(cause, SlowLinks)]

    assert "latency[from=0,to=2]" in {v.metric for v in verdicts if v.kind == "regressed"}
    assert cause.slow == Slow((), (Link(0, 2),))


@pytest.mark.spawn
@on_warm
def test_an_imbalance_beyond_its_bound_is_recorded_with_it(launch: Launch) -> None:
    record = launch("body", world_size=3, params=params(slow_pair=[0, 1], max_imbalance=3.0))
    [imbalance] = [m for m in record.measurements if m.key == "imbalance[of=latency]"]

    assert not imbalance.bounds[0].holds(imbalance.value)


@pytest.mark.spawn
@on_warm
def test_one_way_measures_both_directions_and_no_latency(launch: Launch) -> None:
    record = launch("body", params=params(pattern="one-way"))

    assert [m.key for m in record.measurements] == ["bandwidth[from=0,to=1]", "bandwidth[from=1,to=0]"]


@pytest.mark.spawn
@on_warm
def test_a_damaged_message_fails_with_its_link(launch: Launch) -> None:
    record = launch("damaged", params=params())

    assert record.outcome == "failed"
    assert "rank 0 to rank 1 and back: 1 of 8 bytes are wrong" in record.reason
