"""What became of each rank, which failure caused the others, and the one line that says so."""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import msgspec

from pytest_distbench.launch import processes
from pytest_distbench.launch.channel import ControlChannel
from pytest_distbench.launch.contract import Exit
from pytest_distbench.launch.diagnosis.stacks import entered, is_in_own_code, trimmed, waits_at
from pytest_distbench.records.launch_files import LaunchFiles
from pytest_distbench.records.plan import LaunchPlan
from pytest_distbench.records.rank import ErrorReport, Outcome, Phase, RankFate, RankReport
from pytest_distbench.records.record import replaced

LOG_TAIL_LINES = 30
_WITH_LAUNCHER = "ended with the launcher"
_STACKS_LINES = 500
_TAIL_BYTES = 64 * 1024
_LARGEST_REPORT = 256 * 2**20

_VICTIM = re.compile(
    r"connection (closed|reset) by peer|broken pipe|remote process exited|DistBackendError|NCCL error"
    r"|connection was (closed|reset)|application timeout",
    re.IGNORECASE,
)
"""Texts of errors that a rank gets because another rank is gone."""

_WAITED_IN_VAIN = re.compile(
    r"store.*(timeout|timed out)|wait timeout after|timed out waiting|timeout waiting|DistStoreError",
    re.IGNORECASE,
)
"""Texts of errors that a rank gets because another rank did not come: that one is the culprit."""

_UNRECORDED = re.compile(r'/torch/distributed/.*", line \d+, in (send|recv|monitored_barrier)$', re.MULTILINE)
"""What torch's flight recorder does not know, in a traceback."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How a launch ended, as seen from outside the ranks.

    Attributes:
        exit: what the launcher saw.
        timed_out: the launch's own time was over.
        ended_by_us: ranks that were alive when the launch was ended by force.
        left: those among them that had closed their connection to pytest before.
        oom_kills: processes the kernel's out-of-memory killer ended on this host meanwhile.
    """

    exit: Exit
    timed_out: bool
    ended_by_us: frozenset[int]
    left: frozenset[int] = frozenset()
    oom_kills: int = 0


def read_reports(plan: LaunchPlan) -> dict[int, RankReport]:
    """The reports that ranks left behind, by rank. A missing or damaged one is left out: its rank died writing it."""
    reports = {}
    for rank in range(plan.world_size):
        path = plan.files.report(rank)
        try:
            if path.stat().st_size <= _LARGEST_REPORT:
                report = msgspec.json.decode(path.read_bytes(), type=RankReport)
                if report.rank == rank:
                    reports[rank] = report
        except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue
    return reports


def tell_fates(
    plan: LaunchPlan, reports: Mapping[int, RankReport], channel: ControlChannel, ending: Ending
) -> list[RankFate]:
    """One fate per rank, the root cause first: by time, known victims last."""
    hung = _hung(reports, ending)
    fates = [_fate(plan, rank, reports.get(rank), channel, ending, hung) for rank in range(plan.world_size)]
    failed = [f for f in fates if f.outcome == "failed"]
    if failed and all(f.is_victim for f in failed) and not ending.exit.died:
        fates = [_terminated(f) if f.rank == _first_terminated(channel, ending) else f for f in fates]
    missing = {f.rank for f in _missing([f for f in fates if f.how == "hung"])}
    return sorted(fates, key=lambda f: _precedence(f, channel, is_missing=f.rank in missing))


def is_hang(fates: Sequence[RankFate]) -> bool:
    """Whether the launch failed because a rank did not go on, or did not come where others waited."""
    return any(f.how == "hung" for f in fates) or _is_deadlock(fates)


def merge_outcomes(fates: list[RankFate], *, after_s: float) -> tuple[Outcome, str]:
    """The launch's outcome and one line that tells it.

    All passed: passed. All skipped: skipped. Some skipped and none failed by itself: they disagree.
    """
    skipped = [f for f in fates if f.outcome == "skipped"]
    if len(skipped) == len(fates):
        return "skipped", skipped[0].error.message if skipped[0].error else ""
    failed = [f for f in fates if f.outcome == "failed"]
    if skipped and all(f.is_victim for f in failed):
        who = ", ".join(str(f.rank) for f in sorted(skipped, key=lambda f: f.rank))
        return "failed", f"ranks disagree: rank {who} skipped, the others did not"
    if not failed:
        return "passed", ""
    if any(f.how == "hung" for f in failed):
        return "failed", _tell_hang(failed, after_s)
    if _is_deadlock(fates):
        return "failed", _tell_deadlock(failed, [f for f in fates if f.outcome == "passed"])
    first = failed[0]
    lines = first.error.message.strip().splitlines() if first.error else []
    return "failed", f"rank {first.rank} {first.how}" + (f": {lines[0]}" if lines else "")


def tail(path: Path, lines: int = LOG_TAIL_LINES) -> str:
    """The last lines of a log of any size; empty where there is none."""
    try:
        with path.open("rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - _TAIL_BYTES))
            text = file.read().decode(errors="replace")
    except OSError:
        return ""
    return "\n".join(text.splitlines()[-lines:])


def _first_terminated(channel: ControlChannel, ending: Ending) -> int | None:
    """With nobody else to blame, the rank that SIGTERM ended first: the agent sends it only after another has died."""
    ended = [r for r, code in ending.exit.codes.items() if code == -signal.SIGTERM and r not in ending.ended_by_us]
    return min(ended, key=lambda rank: channel.closed_at.get(rank, float("inf")), default=None)


def _terminated(fate: RankFate) -> RankFate:
    return replaced(fate, how="killed by SIGTERM", is_victim=False)


def _hung(reports: Mapping[int, RankReport], ending: Ending) -> frozenset[int]:
    """Ranks that did not go on: alive at the launch's time-out, or when all that had failed by then had waited."""
    silent = frozenset(r for r in ending.ended_by_us if r not in reports or reports[r].outcome == "passed")
    errors = [r.error for r in reports.values() if r.outcome == "failed" and r.error]
    vain = bool(errors) and all(map(_waited, errors))
    if ending.timed_out:
        return silent
    return frozenset(r for r in silent if r not in reports) if vain else frozenset()


def _fate(
    plan: LaunchPlan,
    rank: int,
    report: RankReport | None,
    channel: ControlChannel,
    ending: Ending,
    hung: frozenset[int],
) -> RankFate:
    files = plan.files
    code = ending.exit.codes.get(rank)
    if report is not None and report.outcome != "passed":
        return _reported(report, files, beside_hung=bool(hung))
    stopped = rank in ending.ended_by_us or code == -signal.SIGTERM
    if report is not None and rank not in hung and (stopped or code in (None, 0)):
        return RankFate(rank=rank, outcome="passed", phase=report.phase, how="passed")
    if rank in hung:
        how = "hung"
    elif ending.exit.died:
        how = _WITH_LAUNCHER
    elif said := channel.said(rank):
        how = f"failed: {said}"
    elif rank in ending.left:
        how = "left its connection to pytest and went on, as another program?"
    elif stopped:
        how = "was waiting" if channel.last_phase(rank) != "start" else "was starting"
    elif code is not None:
        how = _describe(code, ending.oom_kills)
    elif rank in channel.closed_at:
        how = "ended without a report"
    else:
        how = "never started"
    fate = RankFate(
        rank=rank,
        outcome="failed",
        phase=msgspec.convert(channel.last_phase(rank), Phase),
        how=how,
        is_victim=how.startswith("was ") or how == _WITH_LAUNCHER,
        log_tail=tail(files.log(rank)),
    )
    if how != "hung" and not fate.is_victim:
        return fate
    stacks = tail(files.stacks(rank), _STACKS_LINES)
    return replaced(
        fate,
        stacks=trimmed(stacks),
        waits_at=waits_at(stacks),
        is_elsewhere=plan.device == "cpu" and is_in_own_code(stacks),
        **_collective(files, rank),
    )


def _collective(files: LaunchFiles, rank: int) -> dict[str, Any]:
    found = entered(files, rank)
    if found is None:
        return {}
    return {
        "collective": found.what,
        "collective_number": found.number,
        "collective_is_over": found.is_over,
        "entered": found.numbers,
        "groups": found.members,
    }


def _reported(report: RankReport, files: LaunchFiles, *, beside_hung: bool) -> RankFate:
    """The fate a rank told itself. Its log ends with the traceback, which is not shown twice."""
    error = report.error
    trace = error.traceback.strip().splitlines() if error else []
    log = tail(files.log(report.rank), LOG_TAIL_LINES + len(trace)).strip().splitlines()
    if trace and log[-1:] == trace[-1:]:
        log = log[: -len(trace)]
    return RankFate(
        rank=report.rank,
        outcome=report.outcome,
        phase=report.phase,
        how=f"raised {error.kind}" if error and report.outcome == "failed" else "skipped",
        is_victim=error is not None and (_followed(error) or (beside_hung and _waited(error))),
        error=error,
        log_tail="\n".join(log[-LOG_TAIL_LINES:]),
        **_collective(files, report.rank),
    )


def _waited(error: ErrorReport) -> bool:
    """Whether it came from waiting for another rank. The same words in a user's own exception are no sign of that."""
    return any(map(_WAITED_IN_VAIN.search, error.torch_errors))


def _followed(error: ErrorReport) -> bool:
    """Whether it began with another rank that did not come, or was gone."""
    return error.began_in_torch and (_waited(error) or any(map(_VICTIM.search, error.torch_errors)))


def _precedence(fate: RankFate, channel: ControlChannel, *, is_missing: bool) -> tuple[object, ...]:
    """Culprits before victims, a hang before those that waited for it, the missing rank before the waiting ones."""
    # One that died without a word did so before its connection closed.
    moment = fate.error.raised_at if fate.error else channel.closed_at.get(fate.rank, float("inf"))
    waits = fate.how == "hung" and not is_missing
    return (fate.outcome != "failed", fate.is_victim, waits, moment, fate.rank)


def _tell_hang(failed: Sequence[RankFate], after_s: float) -> str:
    hung = [f for f in failed if f.how == "hung"]
    missing = _missing(hung)
    shown = missing or hung
    phases = list(dict.fromkeys(f.phase for f in shown))
    told = "; ".join(_where(f) for f in sorted(shown, key=lambda f: f.rank)[:4])
    more = f" and {len(shown) - 4} more" if len(shown) > 4 else ""
    waiting = [f for f in failed if f not in shown]  # some have given up by now: their collective timed out
    what = f"; {_ranks(waiting)} in {_place(waiting[0])}" if waiting else ""
    return f"hung in {'/'.join(phases)}, ended after {after_s:.1f} s: {told}{more}{what}"


def _place(fate: RankFate) -> str:
    """Where a rank waits: its collective, or the function of torch that records none, or its phase."""
    if fate.phase != "body":
        return fate.phase
    if fate.error is not None:  # its collective is over in any case: given up
        unrecorded = _UNRECORDED.findall(fate.error.traceback)
        is_over = bool(unrecorded)
        called = unrecorded[-1] if unrecorded else ""
    else:
        is_over = fate.collective_is_over
        called = fate.waits_at.rpartition(", in ")[2]
    if fate.collective_number and not is_over:
        return f"{fate.collective}, number {fate.collective_number}"
    return called or fate.phase


def _tell_deadlock(waiting: Sequence[RankFate], passed: Sequence[RankFate]) -> str:
    """Every rank that failed gave up waiting: for ranks that have left, or for each other."""
    places = "; ".join(f"rank {f.rank} waited in {_place(f)}" for f in sorted(waiting, key=lambda f: f.rank)[:4])
    if not passed:
        return f"deadlock: {places}"
    gone = ", ".join(str(f.rank) for f in sorted(passed, key=lambda f: f.rank)[:8])
    return f"rank {gone} ended without the collective that others waited for: {places}"


def _is_deadlock(fates: Sequence[RankFate]) -> bool:
    """Ranks gave up waiting for each other, or lost the connection to one that has left; nobody else is to blame."""
    failed = [f for f in fates if f.outcome == "failed"]
    has_left = any(f.outcome == "passed" for f in fates)
    return all(f.error is not None and f.is_victim for f in failed) and (
        any(map(_in_vain, failed)) or (has_left and bool(failed))
    )


def _in_vain(fate: RankFate) -> bool:
    return fate.error is not None and _waited(fate.error)


def _missing(hung: Sequence[RankFate]) -> list[RankFate]:
    """Of ranks that hang, those that others wait for.

    In an earlier phase, or behind in the collectives of a group. Where torch records nothing, as of ``send``, ``recv``
    and ``monitored_barrier``, those that are in code of their own while others are in torch.
    """
    phases: tuple[Phase, ...] = get_args(Phase)
    furthest = max((phases.index(f.phase) for f in hung), default=0)
    behind = [f for f in hung if phases.index(f.phase) < furthest]
    if not behind:
        behind = [f for f in hung if any(_waits_for(other, f.rank, f.entered) for other in hung)]
    if not behind and furthest == phases.index("body"):
        behind = [f for f in hung if f.is_elsewhere]
    return behind if len(behind) < len(hung) else []


def _waits_for(fate: RankFate, rank: int, entered: Mapping[str, int]) -> bool:
    """Whether a rank has entered a collective of a group that another one of the group, ``rank``, has not."""
    return any(
        rank in ranks and fate.entered.get(name, 0) > entered.get(name, 0) for name, ranks in fate.groups.items()
    )


def _where(fate: RankFate) -> str:
    place = f"at {fate.waits_at}" if fate.waits_at else f"in phase {fate.phase}"
    return f"rank {fate.rank} {place}"


def _ranks(fates: Sequence[RankFate]) -> str:
    numbers = sorted(f.rank for f in fates)
    listed = ", ".join(map(str, numbers[:8])) + (", ..." if len(numbers) > 8 else "")
    return f"rank{'s' * (len(numbers) > 1)} {listed} wait{'s' * (len(numbers) == 1)}"


def _describe(code: int, oom_kills: int) -> str:
    text = processes.ending(code).removeprefix("was ").removeprefix("ended with ")
    if code == -signal.SIGKILL and oom_kills:
        return f"{text}, out of memory (the kernel's oom_kill count rose by {oom_kills})"
    return text
