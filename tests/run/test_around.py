"""What happens around every launch, whatever it runs: quotas, and the table of it."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.control_groups import SimulatedGroups, why_no_groups
from support.launching import RunInside
from support.plans import make_plan
from support.processes import LIMIT_S

from pytest_distbench.errors import AroundUnavailable, ExtensionError
from pytest_distbench.launch.starters import LAUNCHERS, Hosting, LauncherKind
from pytest_distbench.machine import locks
from pytest_distbench.machine.locks import find_controller
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.metric import Sample
from pytest_distbench.records.plan import Command, LaunchPlan, LaunchRequest
from pytest_distbench.records.record import replace
from pytest_distbench.run import kinds
from pytest_distbench.run.kinds import AROUND, HERE, AroundSetup, Describe, QuotaAround, Surroundings, layout_text

PASSED = LaunchRecord(index=0, outcome="passed", wall_s=1.0)


def under(name: str, monkeypatch: pytest.MonkeyPatch, kind: LauncherKind | None = None) -> Surroundings:
    """A run under a launcher, with no GPU."""
    if kind is not None:
        monkeypatch.setitem(LAUNCHERS, name, kind)
    monkeypatch.delitem(AROUND, "gpus", raising=False)
    settings: Any = SimpleNamespace(launcher=name, engine="")
    return Surroundings(AroundSetup(settings=settings, on_progress=print))


def on_nodes_of(most: int, asked: list[tuple[int, bool]]) -> LauncherKind:
    def layout(ranks: int, *, on_gpus: bool, engine: str) -> Sequence[int]:
        assert not engine
        asked.append((ranks, on_gpus))
        return [most] * (ranks // most) + [ranks % most] * bool(ranks % most)

    return LauncherKind(help="", make=LAUNCHERS["warm"].make, hosts="many", layout=layout)


def test_ranks_on_several_hosts_are_a_condition_and_the_launcher_is_asked_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[int, bool]] = []
    around = under("nodes", monkeypatch, on_nodes_of(2, asked))
    found = [around.conditions(make_plan(tmp_path, world_size=size)) for size in (4, 2, 4)]

    assert found == [{"nodes": "2x2"}, {}, {"nodes": "2x2"}]
    assert asked == [(4, False), (2, False)]
    assert layout_text([4, 3]) == "1x4+1x3"


STEP = Sample(name="step", unit="s", better="lower", value=1.0)
LOSS = Sample(name="loss", unit="", better="same", value=1.0)
AROUND_PASSED = LaunchRecord(index=0, outcome="passed", wall_s=1.0, measurements=[STEP, LOSS])


def test_timings_of_ranks_that_share_cores_are_not_judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = replace(make_plan(tmp_path), cores=2)
    around = under("warm", monkeypatch)
    with around.during(plan, HERE) as annotate:
        assert [m.better for m in annotate(AROUND_PASSED).measurements] == ["info", "same"]
    assert around.conditions(plan) == {"oversubscribed": "2-cores"}

    with around.during(make_plan(tmp_path), HERE) as annotate:
        assert annotate(AROUND_PASSED) == AROUND_PASSED, "with a core for each"
    assert around.conditions(make_plan(tmp_path)) == {}


FAILED = replace(PASSED, outcome="failed")
OWN = [f"distbench-{os.getpid()}-rank{rank}" for rank in range(2)]


@pytest.fixture(params=[1, 2])
def simulated(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SimulatedGroups:
    system = SimulatedGroups(tmp_path, request.param, monkeypatch)
    monkeypatch.setattr(kinds, "find_controller", lambda: system.folder)
    return system


def plan_of_of_around(simulated: SimulatedGroups, cpus: float = 0.3) -> LaunchPlan:
    plan = make_plan(simulated.root, cpus=cpus)
    return QuotaAround().ready(plan, HERE, simulated.root)


def test_a_group_per_rank_is_there_while_the_launch_runs(simulated: SimulatedGroups) -> None:
    plan = plan_of_of_around(simulated)
    with QuotaAround().during(plan, HERE) as annotate:
        assert simulated.groups() == OWN
        for share, group in enumerate(map(Path, plan.cpu_groups), start=1):
            (group / "cpu.stat").write_text(f"nr_periods 4\nnr_throttled {share}\n")

    assert simulated.groups() == []
    [throttled] = annotate(PASSED).measurements
    assert (throttled.name, throttled.value, throttled.better) == ("cpu_throttled", 0.25, "info")
    assert annotate(FAILED) == FAILED


@pytest.mark.parametrize("kind", [KeyboardInterrupt, OSError])
def test_none_is_left_however_the_launch_ends(kind: type[BaseException], simulated: SimulatedGroups) -> None:
    with pytest.raises(kind), QuotaAround().during(plan_of_of_around(simulated), HERE):
        raise kind

    assert simulated.groups() == []


def test_none_is_left_where_the_second_cannot_be_made(simulated: SimulatedGroups) -> None:
    (simulated.folder / OWN[1]).write_text("a file in its place")

    quota = QuotaAround().during(plan_of_of_around(simulated), HERE)
    with pytest.raises(AroundUnavailable, match="rank1: File exists"), quota:
        pass
    assert simulated.groups() == OWN[1:]


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


def left(controller: Path) -> list[Path]:
    return list(controller.glob(f"distbench-{os.getpid()}-*"))


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
            "distbench.run: cpus=0.3 needs ranks that the plugin starts, and a command starts its processes itself *",
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
    monkeypatch.setattr(kinds, "find_controller", lambda: tmp_path / "nowhere")
    pytester.makepyfile(test_real=REAL)
    result = run_inside("--world-size=2", "-q", "-k", "test_busy", "-Wdefault")

    result.assert_outcomes(skipped=1, warnings=1)
    result.stdout.fnmatch_lines(
        ["*DistbenchWarning: not run: needs a control group that may be written: *nowhere/*rank0: No such file *"]
    )


class Noted:
    """Notes when it is entered and left, and what was seen."""

    def __init__(self, name: str, events: list[str]) -> None:
        self.name = name
        self.events = events

    @contextlib.contextmanager
    def during(self, plan: LaunchPlan, hosting: Hosting) -> Iterator[Describe]:
        self.events.append(f"enter {self.name}")
        yield lambda record: replace(record, remarks=[*record.remarks, self.name])
        self.events.append(f"leave {self.name}")

    def conditions(self, request: LaunchRequest) -> Mapping[str, str]:
        return {self.name: request.backend}

    def close(self) -> None:
        self.events.append(f"close {self.name}")


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    found: list[str] = []
    for name in ("outer", "inner"):
        monkeypatch.setitem(AROUND, name, lambda setup, name=name: Noted(name, found))
    monkeypatch.delitem(AROUND, "gpus")
    return found


@pytest.fixture
def surroundings(events: list[str]) -> Surroundings:
    nothing: Any = SimpleNamespace(launcher="warm", engine="")
    return Surroundings(AroundSetup(settings=nothing, on_progress=print))


def test_rows_are_nested_and_each_describes_the_record_when_all_is_over(
    surroundings: Surroundings, events: list[str], tmp_path: Path
) -> None:
    with surroundings.during(make_plan(tmp_path), HERE) as describe:
        events.append("launch")

    assert surroundings.conditions(make_plan(tmp_path)) == {"outer": "gloo", "inner": "gloo"}
    assert events == ["enter outer", "enter inner", "launch", "leave inner", "leave outer"]
    assert [describe(PASSED).remarks for _ in range(2)] == [["inner", "outer"]] * 2  # of a pair both


def test_all_rows_are_closed_also_where_one_fails_at_it(events: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    class Stuck(Noted):
        def close(self) -> None:
            raise OSError("it is stuck")

    monkeypatch.setitem(AROUND, "innermost", lambda setup: Stuck("innermost", events))
    nothing: Any = SimpleNamespace(launcher="warm", engine="")

    with pytest.raises(ExtensionError, match=r"AROUND\['innermost'\]: OSError: it is stuck"):
        Surroundings(AroundSetup(settings=nothing, on_progress=print)).close()

    assert events == ["close inner", "close outer"]


def test_what_no_launcher_of_ranks_starts_has_no_layout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, bool]] = []
    command = replace(make_plan(tmp_path, world_size=4), work=Command(words=["true"]))

    assert under("nodes", monkeypatch, on_nodes_of(2, asked)).conditions(command) == {}
    assert asked == []


def test_a_control_group_still_in_use_is_reported(simulated: SimulatedGroups, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "_PATIENCE_S", 0.0)
    plan = plan_of_of_around(simulated)
    with QuotaAround().during(plan, HERE) as annotate:
        (Path(plan.cpu_groups[1]) / "cgroup.procs").write_text("77\n")

    [told] = annotate(FAILED).remarks
    assert told == f"{plan.cpu_groups[1]} is still there: a process that its rank started did not end"
    assert simulated.groups() == OWN[1:]


def test_those_of_a_pytest_that_was_killed_are_removed(simulated: SimulatedGroups) -> None:
    (simulated.folder / f"distbench-{2**22 + 1}-rank0").mkdir()  # no process has a number beyond 2**22
    with QuotaAround().during(plan_of_of_around(simulated), HERE):
        assert simulated.groups() == OWN


def test_without_a_quota_or_ranks_nothing_is_made(simulated: SimulatedGroups) -> None:
    plan = make_plan(simulated.root)
    with QuotaAround().during(plan, HERE) as annotate:
        assert annotate(PASSED) == PASSED
        assert simulated.groups() == []
    assert QuotaAround().ready(plan, HERE, simulated.root) == plan
    fake = replace(plan, cpus=0.3)
    assert QuotaAround().ready(fake, Hosting(hosts="none"), simulated.root) == fake
