"""What became of each rank, told from what is known of it; the root cause comes first."""

from __future__ import annotations

import selectors
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.plans import make_plan

from pytest_distbench.launch.channel import ControlChannel
from pytest_distbench.launch.contract import Exit
from pytest_distbench.launch.diagnosis.fates import Ending, tell_fates
from pytest_distbench.records.plan import LaunchPlan
from pytest_distbench.records.rank import ErrorReport, Phase, RankReport
from pytest_distbench.records.wire import EventKind, RankEvent

GONE = "DistBackendError: Connection closed by peer"
WAITED = "DistStoreError: wait timeout after 1 s"


@pytest.fixture
def plan(tmp_path: Path) -> LaunchPlan:
    return make_plan(tmp_path)


@pytest.fixture
def channel(plan: LaunchPlan) -> Iterator[ControlChannel]:
    with selectors.DefaultSelector() as selector:
        made = ControlChannel(plan.files, selector, world_size=2)
        yield made
        made.close()


def say(channel: ControlChannel, rank: int, kind: EventKind, text: str = "") -> None:
    channel.events.append(RankEvent(kind=kind, rank=rank, pid=1, at=0.0, text=text))


def ended(codes: dict[int, int] | None = None, *, by_us: set[int] = frozenset(), **rest: object) -> Ending:  # type: ignore[assignment]
    return Ending(exit=Exit(codes=codes or {}), ended_by_us=frozenset(by_us), **{"timed_out": False, **rest})  # type: ignore[arg-type]


def passed(rank: int) -> RankReport:
    return RankReport(rank=rank, pid=1, outcome="passed", phase="body", phases={})


def raised(rank: int, *, at: float = 1.0, torch: str = "", phase: Phase = "body") -> RankReport:
    error = ErrorReport(
        kind="RuntimeError",
        message="x",
        traceback="RuntimeError: x",
        raised_at=at,
        torch_errors=[torch] if torch else [],
        began_in_torch=bool(torch),
    )
    return RankReport(rank=rank, pid=1, outcome="failed", phase=phase, phases={}, error=error)


def reports(*given: RankReport) -> dict[int, RankReport]:
    return {report.rank: report for report in given}


def test_a_rank_that_reported_so_has_passed(plan: LaunchPlan, channel: ControlChannel) -> None:
    fates = tell_fates(plan, reports(passed(0), passed(1)), channel, ended({0: 0, 1: 0}))

    assert [(f.rank, f.outcome, f.how) for f in fates] == [(0, "passed", "passed"), (1, "passed", "passed")]


def test_of_two_errors_the_first_one_comes_first(plan: LaunchPlan, channel: ControlChannel) -> None:
    fates = tell_fates(plan, reports(raised(0, at=2.0), raised(1, at=1.0)), channel, ended())

    assert [(f.rank, f.how) for f in fates] == [(1, "raised RuntimeError"), (0, "raised RuntimeError")]


def test_a_rank_whose_peer_is_gone_is_a_victim_although_it_said_so_first(
    plan: LaunchPlan, channel: ControlChannel
) -> None:
    channel.closed_at[1] = 5.0
    fates = tell_fates(plan, reports(raised(0, at=1.0, torch=GONE)), channel, ended({1: -signal.SIGKILL}))

    assert [(f.rank, f.how, f.is_victim) for f in fates] == [
        (1, "killed by SIGKILL", False),
        (0, "raised RuntimeError", True),
    ]


def test_the_same_words_in_a_users_exception_make_no_victim(plan: LaunchPlan, channel: ControlChannel) -> None:
    report = RankReport(
        rank=0,
        pid=1,
        outcome="failed",
        phase="body",
        phases={},
        error=ErrorReport(kind="ValueError", message=GONE, traceback=GONE, raised_at=1.0),
    )

    assert not tell_fates(plan, reports(report, passed(1)), channel, ended())[0].is_victim


@pytest.mark.parametrize(
    ("code", "oom_kills", "how"),
    [
        (3, 0, "exit code 3"),
        (-signal.SIGSEGV, 0, "killed by SIGSEGV"),
        (-signal.SIGKILL, 2, "killed by SIGKILL, out of memory (the kernel's oom_kill count rose by 2)"),
    ],
)
def test_a_rank_without_a_report_ended_as_its_parent_saw_it(
    plan: LaunchPlan, channel: ControlChannel, code: int, oom_kills: int, how: str
) -> None:
    fates = tell_fates(plan, reports(passed(0)), channel, ended({1: code}, oom_kills=oom_kills))

    assert (fates[0].rank, fates[0].how, fates[0].is_victim) == (1, how, False)


def test_one_that_only_closed_its_line_ended_without_a_report(plan: LaunchPlan, channel: ControlChannel) -> None:
    channel.closed_at[1] = 1.0

    assert tell_fates(plan, reports(passed(0)), channel, ended())[0].how == "ended without a report"


def test_one_that_never_came_never_started(plan: LaunchPlan, channel: ControlChannel) -> None:
    assert tell_fates(plan, reports(passed(0)), channel, ended())[0].how == "never started"


def test_one_that_could_not_write_its_report_said_why(plan: LaunchPlan, channel: ControlChannel) -> None:
    say(channel, 1, "failed", "cannot write its report: disk full")
    fate = tell_fates(plan, reports(passed(0)), channel, ended(by_us={1}))[0]

    assert (fate.how, fate.is_victim) == ("failed: cannot write its report: disk full", False)


def test_one_that_hung_up_and_went_on_is_told_so(plan: LaunchPlan, channel: ControlChannel) -> None:
    fate = tell_fates(plan, reports(passed(0)), channel, ended(by_us={1}, left=frozenset({1})))[0]

    assert fate.how == "left its connection to pytest and went on, as another program?"


def test_a_silent_rank_hung_at_the_time_out_and_its_stacks_are_shown(plan: LaunchPlan, channel: ControlChannel) -> None:
    say(channel, 1, "phase", "body")
    plan.files.stacks(1).write_text('Current thread 0x1 (most recent call first):\n  File "/me/a.py", line 7 in f\n')
    fate = tell_fates(plan, reports(passed(0)), channel, ended(by_us={1}, timed_out=True))[0]

    assert (fate.is_hung, fate.is_victim, fate.phase) == (True, False, "body")
    assert (fate.waits_at, fate.is_elsewhere) == ("a.py:7 in f", True)


def test_before_the_time_out_a_silent_rank_hung_if_others_gave_up_waiting(
    plan: LaunchPlan, channel: ControlChannel
) -> None:
    fates = tell_fates(plan, reports(raised(0, torch=WAITED)), channel, ended(by_us={0, 1}))

    assert [(f.rank, f.is_hung, f.is_victim) for f in fates] == [(1, True, False), (0, False, True)]


def test_a_rank_that_was_at_work_when_another_failed_is_a_victim(plan: LaunchPlan, channel: ControlChannel) -> None:
    say(channel, 1, "phase", "body")
    fates = tell_fates(plan, reports(raised(0)), channel, ended(by_us={1}))

    assert [(f.rank, f.how, f.is_victim) for f in fates] == [
        (0, "raised RuntimeError", False),
        (1, "was waiting", True),
    ]


def test_when_the_launcher_died_its_ranks_are_not_to_blame(plan: LaunchPlan, channel: ControlChannel) -> None:
    fates = tell_fates(plan, {}, channel, Ending(exit=Exit(died=True), timed_out=False, ended_by_us=frozenset()))

    assert [(f.how, f.is_victim) for f in fates] == [("ended with the launcher", True)] * 2


def test_with_nobody_else_to_blame_the_first_that_sigterm_ended_was_killed(
    plan: LaunchPlan, channel: ControlChannel
) -> None:
    """The agent sends SIGTERM only after another rank has died: one came from elsewhere."""
    channel.closed_at.update({0: 2.0, 1: 1.0})
    fates = tell_fates(plan, {}, channel, ended({0: -signal.SIGTERM, 1: -signal.SIGTERM}))

    assert [(f.rank, f.how, f.is_victim) for f in fates] == [(1, "killed by SIGTERM", False), (0, "was starting", True)]


def test_a_log_that_ends_with_the_traceback_shows_it_once(plan: LaunchPlan, channel: ControlChannel) -> None:
    plan.files.log(0).write_text("before\nRuntimeError: x\n")

    assert tell_fates(plan, reports(raised(0), passed(1)), channel, ended())[0].log_tail == "before"
