"""How busy GPUs and CPUs are while ranks run on them."""

from __future__ import annotations

import fnmatch
import itertools
import os
import time
from collections.abc import Iterator
from dataclasses import replace as replaced
from pathlib import Path

import pytest
from support.nvml import Host, Nvml, State, h100s, simulated
from support.plans import make_plan
from support.results import result

from pytest_distbench.launch.starters import Hosting
from pytest_distbench.machine.gpus import read_gpus
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.metric import LINK_PEAK, Sample
from pytest_distbench.records.plan import LaunchPlan
from pytest_distbench.records.record import replace
from pytest_distbench.run import kinds as module
from pytest_distbench.run.kinds import HERE, GpusAround, UtilisationAround, devices


class Machine:
    """Two CPUs, of which a step keeps some busy for so long; a launch of so many seconds."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, seconds: float, share: Iterator[float]) -> None:
        self.now = 50.0
        self.busy = 7.0
        self.ends = self.now + seconds
        self.share = share
        monkeypatch.setattr(module, "usable_cpus", lambda: frozenset({0, 1}))

    def wait(self, seconds: float) -> bool:
        took = min(seconds, self.ends - self.now)
        self.now += took
        self.busy += 2 * took * next(self.share)
        return self.now >= self.ends

    def looks(self) -> list[tuple[float, float]]:
        return list(UtilisationAround(lambda: self.now, lambda: self.busy).looks(self.wait))


def test_a_course_has_the_share_that_was_busy_since_the_moment_before(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch, 0.5, iter([0.0, 0.5, 1.0, 0.25]))

    assert machine.looks() == [(0.125, 0.0), (0.25, 0.5), (0.375, 1.0), (0.5, 0.25)]


@pytest.mark.parametrize(("hosts", "is_seen"), [("one", True), ("many", False), ("none", False)])
def test_ranks_of_other_hosts_are_out_of_sight(tmp_path: Path, hosts: str, *, is_seen: bool) -> None:
    ticks = itertools.count()
    around = UtilisationAround(lambda: float(next(ticks)), lambda: 0.0)
    with around.during(make_plan(tmp_path), Hosting(hosts=hosts)) as course:  # type: ignore[arg-type]
        pass

    assert bool(course(result().launches[0]).cpu_course) is is_seen


GIB = 2**30
FAILED = LaunchRecord(index=0, outcome="failed", wall_s=1.0, reason="rank 1 was killed by SIGKILL", gpus=[])
PASSED = LaunchRecord(index=0, outcome="passed", wall_s=1.0, gpus=[])


@pytest.fixture
def nvml() -> Iterator[Nvml]:
    """Two GPUs; the second has 3 GiB more in use from second 1 to second 2."""
    lost = {0.0: State(), 1.0: State(used_bytes=4 * GIB), 2.0: State()}
    cards = h100s(2)
    with simulated(Host(cards=[cards[0], replaced(cards[1], states=lost)])) as nvml:
        yield nvml


def describe(
    nvml: Nvml, record: LaunchRecord, plan: LaunchPlan, said: list[str], *, goes: bool = False, patience_s: float = 0.5
) -> LaunchRecord:
    def say(text: str) -> None:
        said.append(text)
        nvml.seconds = lambda: 2.0 if goes else 1.0  # type: ignore[method-assign]

    nvml.seconds = lambda: 0.0  # type: ignore[method-assign]
    gpus = GpusAround(read_gpus({}), on_progress=say, patience_s=patience_s)
    with gpus.during(plan, HERE) as describe:
        pass
    nvml.seconds = lambda: 1.0  # type: ignore[method-assign]
    try:
        return describe(record)
    finally:
        gpus.close()


@pytest.fixture
def plan(tmp_path: Path) -> LaunchPlan:
    return replace(make_plan(tmp_path), device="cuda", devices=[0, 1])


def test_memory_that_a_failed_launch_leaves_is_named_unless_it_comes_back(nvml: Nvml, plan: LaunchPlan) -> None:
    said: list[str] = []
    assert describe(nvml, PASSED, plan, said, patience_s=60.0).remarks == []
    assert said == []

    [remark] = describe(nvml, FAILED, plan, said).remarks
    assert said == ["waiting for free GPU memory"]
    assert remark.startswith("GPU 1 holds 3 GiB more than before the launch, ")

    assert describe(nvml, FAILED, plan, said, goes=True, patience_s=60.0).remarks == []


def test_the_wait_ends_before_somebody_else_ends_the_test(nvml: Nvml, plan: LaunchPlan) -> None:
    plan = replace(plan, test_ends_at=time.monotonic())
    [remark] = describe(nvml, FAILED, plan, [], patience_s=1000.0).remarks

    assert "more than before the launch, 0" in remark


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo Unable to determine the device handle for GPU1: GPU is lost.; exit 15", ["nvidia-smi: Unable to *"]),
        ("echo all is well", []),
        ("exit 9", []),
    ],
)
def test_a_complaint_of_nvidia_smi_is_a_remark_on_a_failure(
    nvml: Nvml, plan: LaunchPlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, said: list[str]
) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\n{script}\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    remarks = describe(nvml, FAILED, plan, [], goes=True, patience_s=60.0).remarks

    assert len(remarks) == len(said)
    assert all(map(fnmatch.fnmatch, remarks, said))
    assert describe(nvml, PASSED, plan, []).remarks == []


@pytest.mark.parametrize(
    ("changes", "facts"),
    [({}, {"busbw_factor": 1.0, LINK_PEAK: 450.0}), ({"shares_gpu": True, "devices": [0, 0]}, {"busbw_factor": 1.0})],
)
def test_the_time_of_a_collective_has_the_peak_of_its_links(
    nvml: Nvml, plan: LaunchPlan, changes: dict[str, object], facts: dict[str, float]
) -> None:
    made = [
        Sample(name="latency", unit="s", better="lower", value=1.0, facts={"busbw_factor": 1.0}),
        Sample(name="loss", unit="", better="lower", value=1.0),
    ]
    found = describe(nvml, replace(PASSED, measurements=made), replace(plan, **changes), []).measurements

    assert [m.facts for m in found] == [facts, {}]


def test_ranks_share_gpus_evenly() -> None:
    with simulated(Host(cards=h100s(2))):
        assert devices(read_gpus({}), 4) == [0, 1, 0, 1]


@pytest.mark.parametrize("seconds", [1.0, 60.0, 3600.0, 86_400.0])
def test_a_long_launch_has_no_more_than_some_hundred_looks(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    looks = Machine(monkeypatch, seconds, itertools.repeat(1.0)).looks()

    assert 8 <= len(looks) <= 700
    assert looks[-1][0] == pytest.approx(seconds)
    assert {share for _, share in looks} == {1.0}
