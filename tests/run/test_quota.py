"""A CPU quota per rank: its groups are there while a launch runs, ranks are in them, and none is left."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from support.control_groups import MadeUp, why_no_groups
from support.launching import RunInside
from support.plans import make_plan
from support.processes import LIMIT_S

from pytest_distbench.errors import AroundUnavailable
from pytest_distbench.launch.starters.table import Hosting
from pytest_distbench.machine import control_groups
from pytest_distbench.machine.control_groups import CpuController, find_controller
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.plan import LaunchPlan
from pytest_distbench.records.record import replace
from pytest_distbench.run import quota
from pytest_distbench.run.kinds import HERE
from pytest_distbench.run.quota import QuotaAround, rank_groups

PASSED = LaunchRecord(index=0, outcome="passed", wall_s=1.0)
FAILED = replace(PASSED, outcome="failed")
OWN = [f"distbench-{os.getpid()}-rank{rank}" for rank in range(2)]


@pytest.fixture(params=[1, 2])
def made_up(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MadeUp:
    system = MadeUp(tmp_path, request.param, monkeypatch)
    monkeypatch.setattr(quota, "find_controller", lambda: system.controller)
    return system


def plan_of(made_up: MadeUp, cpus: float = 0.3) -> LaunchPlan:
    plan = make_plan(made_up.root, cpus=cpus)
    return replace(plan, cpu_groups=rank_groups(plan, HERE))


def test_a_group_per_rank_is_there_while_the_launch_runs(made_up: MadeUp) -> None:
    plan = plan_of(made_up)
    with QuotaAround().during(plan, HERE) as witness:
        assert made_up.groups() == OWN
        for share, group in enumerate(map(Path, plan.cpu_groups), start=1):
            (group / "cpu.stat").write_text(f"nr_periods 4\nnr_throttled {share}\n")

    assert made_up.groups() == []
    [throttled] = witness.describe(PASSED).measurements
    assert (throttled.name, throttled.value, throttled.better) == ("cpu_throttled", 0.25, "info")
    assert witness.describe(FAILED) == FAILED


@pytest.mark.parametrize("kind", [KeyboardInterrupt, OSError])
def test_none_is_left_however_the_launch_ends(kind: type[BaseException], made_up: MadeUp) -> None:
    with pytest.raises(kind), QuotaAround().during(plan_of(made_up), HERE):
        raise kind

    assert made_up.groups() == []


def test_none_is_left_where_the_second_cannot_be_made(made_up: MadeUp) -> None:
    (made_up.folder / OWN[1]).write_text("a file in its place")

    with pytest.raises(AroundUnavailable, match="rank1: File exists"), QuotaAround().during(plan_of(made_up), HERE):
        pass
    assert made_up.groups() == OWN[1:]


def test_one_that_is_still_in_use_is_told(made_up: MadeUp, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_groups, "_PATIENCE_S", 0.0)
    plan = plan_of(made_up)
    with QuotaAround().during(plan, HERE) as witness:
        (Path(plan.cpu_groups[1]) / "cgroup.procs").write_text("77\n")

    [told] = witness.describe(FAILED).remarks
    assert told == f"{plan.cpu_groups[1]} is still there: a process that its rank has started did not end"
    assert made_up.groups() == OWN[1:]


def test_those_of_a_pytest_that_was_killed_are_removed(made_up: MadeUp) -> None:
    (made_up.folder / f"distbench-{2**22 + 1}-rank0").mkdir()  # no process has a number beyond 2**22
    with QuotaAround().during(plan_of(made_up), HERE):
        assert made_up.groups() == OWN


def test_the_quota_is_a_condition_of_the_case(tmp_path: Path) -> None:
    plan = make_plan(tmp_path)

    assert QuotaAround().conditions(replace(plan, cpus=0.3)) == {"cpus": "0.3"}
    assert QuotaAround().conditions(replace(plan, cpus=1.0)) == {"cpus": "1"}
    assert QuotaAround().conditions(plan) == {}


def test_without_a_quota_or_ranks_nothing_is_made(made_up: MadeUp) -> None:
    plan = make_plan(made_up.root)
    with QuotaAround().during(plan, HERE) as witness:
        assert witness.describe(PASSED) == PASSED
        assert made_up.groups() == []
    assert rank_groups(plan, HERE) == []
    assert rank_groups(replace(plan, cpus=0.3), Hosting(hosts="none")) == []


REAL = r"""
    import os
    import subprocess
    import time


    def busy(rank):
        own = f"/distbench-{rank.params['pid']}-rank{rank.rank}\n"
        assert own in open("/proc/self/cgroup").read()
        assert own in subprocess.check_output(["cat", "/proc/self/cgroup"], text=True)
        rank.barrier()
        began_s, computed_s = time.monotonic(), time.process_time()
        while time.monotonic() - began_s < 1.0:
            pass
        share = (time.process_time() - computed_s) / (time.monotonic() - began_s)
        rank.record("share", share, better="info", reduce="max")


    def fails(rank):
        raise ValueError("it does")


    def hangs(rank):
        time.sleep(100)


    def test_busy(distbench):
        distbench.check(busy, params={"pid": os.getpid()}, cpus=0.3)


    def test_fails(distbench):
        distbench.check(fails, cpus=0.3)


    def test_hangs(distbench):
        distbench.check(hangs, cpus=0.3, timeout=2)


    def test_command(distbench):
        distbench.run(["true"], cpus=0.3)
"""


def left(controller: CpuController) -> list[Path]:
    return list(controller.folder.glob(f"distbench-{os.getpid()}-*"))


@pytest.mark.spawn
@pytest.mark.timeout(LIMIT_S)
@pytest.mark.parametrize("launcher_name", ["warm", pytest.param("torchrun", marks=pytest.mark.nightly)])
def test_ranks_compute_within_their_quota_and_no_group_is_left(
    launcher_name: str, pytester: pytest.Pytester, run_inside: RunInside
) -> None:
    if why := why_no_groups():
        pytest.skip(f"not run: {why}")
    pytester.makepyfile(test_real=REAL)
    result = run_inside("--world-size=2", f"--distbench-launcher={launcher_name}", "--distbench-json=run.json")

    result.assert_outcomes(passed=1, failed=3)
    result.stdout.fnmatch_lines(
        [
            "launch 1 on 2 ranks: rank ? raised ValueError: it does",
            "launch 1 on 2 ranks: hung in body, *",
            "distbench.run: cpus=0.3 needs ranks of ours, and a command starts its processes itself *",
        ]
    )
    results = json.loads((pytester.path / "run.json").read_text())["results"]
    busy = next(found for found in results if found["case"]["test"].endswith("test_busy"))
    measured = {m["name"]: m["value"] for m in busy["launches"][0]["measurements"]}
    assert 0 < measured["share"] < 0.6
    assert measured["cpu_throttled"] > 0
    assert busy["case"]["conditions"]["around"] == {"cpus": "0.3"}
    assert left(find_controller()) == []


@pytest.mark.spawn
@pytest.mark.timeout(LIMIT_S)
def test_where_none_can_be_made_the_test_is_skipped(
    pytester: pytest.Pytester, run_inside: RunInside, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(quota, "find_controller", lambda: CpuController(tmp_path / "nowhere", 1))
    pytester.makepyfile(test_real=REAL)
    result = run_inside("--world-size=2", "-q", "-k", "test_busy", "-Wdefault")

    result.assert_outcomes(skipped=1, warnings=1)
    result.stdout.fnmatch_lines(
        ["*DistbenchWarning: not run: needs a control group that may be written: *nowhere/*rank0: No such file *"]
    )
