"""What became of each rank of a launch, the root cause first."""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from pytest_distbench.launch.diagnosis import texts
from pytest_distbench.launch.diagnosis.blame import find_missing, has_waited_in_vain, is_follower
from pytest_distbench.launch.diagnosis.crash import before_dump, read_dump, read_uncaught
from pytest_distbench.launch.diagnosis.flight import Entered, read_entered
from pytest_distbench.launch.diagnosis.stacks import is_in_own_code, trim, waits_at
from pytest_distbench.launch.diagnosis.watchdog import Abort, read_abort
from pytest_distbench.launch.logs import TAIL_LINES, tail
from pytest_distbench.launch.site import processes
from pytest_distbench.launch.site.contract import Clocks, Exit, Heard
from pytest_distbench.records.launch_files import LaunchFiles
from pytest_distbench.records.plan import LaunchPlan
from pytest_distbench.records.rank import HUNG, ErrorReport, Phase, RankFate, RankReport
from pytest_distbench.records.record import replace

_STACKS_LINES = 500
_LONGEST_DUMP_LINES = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How a launch ended, as seen from outside the ranks.

    Attributes:
        exit: what the launcher saw.
        timed_out: the launch's own time was over.
        ended_by_us: ranks that were alive when the launch was ended by force.
        left: those among them that had closed their connection to pytest before.
        stuck: those that are still there, with what is to be said of each.
        oom_kills: rank -> processes the kernel's out-of-memory killer ended on its host meanwhile.
        clocks: how well moments of ranks can be compared.
    """

    exit: Exit
    timed_out: bool
    ended_by_us: frozenset[int]
    left: frozenset[int] = frozenset()
    stuck: Mapping[int, str] = field(default_factory=dict)
    oom_kills: Mapping[int, int] = field(default_factory=dict)
    clocks: Clocks = field(default_factory=Clocks)


def tell_fates(plan: LaunchPlan, reports: Mapping[int, RankReport], heard: Heard, ending: Ending) -> list[RankFate]:
    """One fate per rank, the root cause first: by time, known victims last."""
    aborts = _aborts(plan, reports, ending)
    hung = _hung(reports, ending, aborts)
    fates = [_fate(plan, rank, reports.get(rank), heard, ending, hung, aborts) for rank in range(plan.processes)]
    failed = [f for f in fates if f.outcome == "failed"]
    if failed and all(f.is_victim for f in failed) and not ending.exit.died and not aborts:
        fates = [_fate_of_terminated(f) if f.rank == _first_terminated(heard, ending) else f for f in fates]
    missing = {f.rank for f in find_missing([f for f in fates if f.is_hung])}
    return _with_doubts(sorted(fates, key=lambda f: _precedence(f, heard, is_missing=f.rank in missing)), heard, ending)


def _with_doubts(fates: Sequence[RankFate], heard: Heard, ending: Ending) -> list[RankFate]:
    """What clocks of two hosts cannot order is not ordered: who may have failed first is told by its rank."""
    first, *rest = fates
    if first.outcome != "failed" or first.is_victim or first.is_hung:
        return [*fates]
    doubts = {
        f.rank: doubt_s
        for f in rest
        if f.outcome == "failed" and not f.is_victim and not f.is_hung
        if abs(_moment(f, heard) - _moment(first, heard)) < (doubt_s := ending.clocks.doubt_s(first.rank, f.rank))
    }
    told, *beside = sorted([first, *(f for f in rest if f.rank in doubts)], key=lambda f: f.rank)
    unordered = [replace(f, doubt_s=max(doubts.values())) for f in beside]
    return [told, *unordered, *(f for f in rest if f.rank not in doubts)]


def _first_terminated(heard: Heard, ending: Ending) -> int | None:
    """With nobody else to blame, the rank that SIGTERM ended first: the agent sends it only after another has died."""
    ended = [r for r, code in ending.exit.codes.items() if code == -signal.SIGTERM and r not in ending.ended_by_us]
    return min(ended, key=lambda rank: heard.closed_at.get(rank, float("inf")), default=None)


def _fate_of_terminated(fate: RankFate) -> RankFate:
    return replace(fate, how="killed by SIGTERM", is_victim=False)


def _aborts(plan: LaunchPlan, reports: Mapping[int, RankReport], ending: Ending) -> dict[int, Abort]:
    """Why ranks aborted; and what NCCL's watchdog said of those that it was about to end when they were ended."""
    found = {}
    for rank in set(range(plan.processes)) - set(reports):
        was_aborted = ending.exit.codes.get(rank) == -signal.SIGABRT
        if was_aborted or rank in ending.ended_by_us or ending.exit.codes.get(rank) == -signal.SIGTERM:
            abort = read_abort(plan.files.log(rank)) or (_uncaught(plan.files.log(rank)) if was_aborted else None)
            if abort is not None and (was_aborted or abort.kind == "wait"):
                found[rank] = abort
    return found


def _uncaught(log: Path) -> Abort | None:
    """An exception of C++ that nobody caught."""
    if (found := read_uncaught(log)) is None:
        return None
    kind, text = found
    sign = texts.read(text)
    return Abort(text=text if text == kind else f"{kind}: {text}", kind=sign.kind if sign else "cause", error=kind)


def _hung(reports: Mapping[int, RankReport], ending: Ending, aborts: Mapping[int, Abort]) -> frozenset[int]:
    """Ranks that did not go on: alive at the launch's time-out, or when all that had failed by then had waited."""
    silent = frozenset(r for r in ending.ended_by_us if r not in reports or reports[r].outcome == "passed")
    if ending.timed_out:
        return silent
    errors = [r.error for r in reports.values() if r.outcome == "failed" and r.error]
    if (
        not (errors or aborts)
        or not all(map(has_waited_in_vain, errors))
        or any(a.kind != "wait" for a in aborts.values())
    ):
        return frozenset()
    if aborts:
        own = {r: c for r, c in ending.exit.codes.items() if r not in reports and r not in aborts and r not in silent}
        if any(code != -signal.SIGTERM for code in own.values()):
            return frozenset()  # that one has died: for it the others waited
        silent |= set(own)  # the elastic agent has ended these, before we could
    return frozenset(r for r in silent if r not in reports and r not in aborts)


def _fate(
    plan: LaunchPlan,
    rank: int,
    report: RankReport | None,
    heard: Heard,
    ending: Ending,
    hung: frozenset[int],
    aborts: Mapping[int, Abort],
) -> RankFate:
    files = plan.files
    code = ending.exit.codes.get(rank)
    if report is not None and report.outcome != "passed":
        return _fate_as_reported(report, files, beside_hung=bool(hung))
    abort = aborts.get(rank) if rank not in hung else None
    is_stopped = rank in ending.ended_by_us or code == -signal.SIGTERM
    if report is not None and rank not in hung and (is_stopped or code in (None, 0)):
        return RankFate(rank=rank, outcome="passed", phase=report.phase, how="passed")
    how, is_victim = (HUNG, False) if rank in hung else _how(rank, heard, ending, is_stopped=is_stopped)
    fate = RankFate(
        rank=rank,
        outcome="failed",
        phase=msgspec.convert(heard.last_phase(rank), Phase),
        how=how,
        is_victim=is_victim,
        log_tail=tail(files.log(rank)),
    )
    dump = read_dump(files.log(rank)) if code is not None and code < 0 else ""
    if dump:
        above = before_dump(tail(files.log(rank), _LONGEST_DUMP_LINES))
        last = "\n".join(above.splitlines()[-TAIL_LINES:])
        fate = replace(fate, log_tail=last, stacks=trim(dump), waits_at=waits_at(dump))
    if abort is not None:
        fate = _fate_of_aborted(fate, abort, heard)
    if dump or (rank not in hung and not fate.is_victim):
        return fate
    stacks = tail(files.stacks(rank), _STACKS_LINES)
    found = read_entered(files, rank)
    # On a GPU the user's own line may be the one that waits: for what other ranks have not sent.
    is_telling = plan.device == "cpu" or (found is not None and found.is_idle)
    return replace(
        fate,
        stacks=trim(stacks),
        waits_at=waits_at(stacks),
        is_elsewhere=is_telling and is_in_own_code(stacks),
        **_collective(found),
    )


def _fate_of_aborted(fate: RankFate, abort: Abort, heard: Heard) -> RankFate:
    """Why it aborted is taken for an error of torch's, which it would be if it were raised."""
    return replace(
        fate,
        is_victim=abort.kind != "cause",
        error=ErrorReport(
            kind=abort.error,
            message=abort.text,
            traceback=f"{abort.text}\n{fate.stacks}".rstrip(),
            raised_at=heard.closed_at.get(fate.rank, max(heard.closed_at.values(), default=0.0)),
            torch_errors=[f"{abort.error}: {abort.text}"],
            began_in_torch=True,
        ),
        collective=abort.op,
        collective_number=abort.number,
    )


def _how(rank: int, heard: Heard, ending: Ending, *, is_stopped: bool) -> tuple[str, bool]:
    """How a rank ended that left no report, and whether that followed from another's end."""
    code = ending.exit.codes.get(rank)
    if ending.exit.died:
        return "ended with the launcher", True
    if said := heard.said(rank):
        return f"failed: {said}", False
    if rank in ending.left:
        return "left its connection to pytest and went on, as another program?", False
    if is_stopped:
        return "was waiting" if heard.last_phase(rank) != "start" else "was starting", True
    if code is not None:
        return _describe(code, ending.oom_kills.get(rank, 0)), False
    if rank in ending.stuck:
        return "ended, and is still in the kernel", False
    return "ended without a report" if rank in heard.closed_at else "never started", False


def _collective(found: Entered | None) -> dict[str, Any]:
    if found is None:
        return {}
    return {
        "collective": found.what,
        "collective_number": found.number,
        "collective_is_over": found.is_over,
        "entered": found.numbers,
        "unfinished": found.unfinished,
        "groups": found.members,
    }


def _fate_as_reported(report: RankReport, files: LaunchFiles, *, beside_hung: bool) -> RankFate:
    """The fate a rank told itself. Its log ends with the traceback, which is not shown twice."""
    error = report.error
    trace = error.traceback.strip().splitlines() if error else []
    log = tail(files.log(report.rank), TAIL_LINES + len(trace)).strip().splitlines()
    if trace and log[-1:] == trace[-1:]:
        log = log[: -len(trace)]
    return RankFate(
        rank=report.rank,
        outcome=report.outcome,
        phase=report.phase,
        how=f"raised {error.kind}" if error and report.outcome == "failed" else "skipped",
        is_victim=error is not None and (is_follower(error) or (beside_hung and has_waited_in_vain(error))),
        error=error,
        log_tail="\n".join(log[-TAIL_LINES:]),
        **_collective(read_entered(files, report.rank)),
    )


def _precedence(fate: RankFate, heard: Heard, *, is_missing: bool) -> tuple[object, ...]:
    """Culprits before victims, a hang before those that waited for it, the missing rank before the waiting ones."""
    waits = fate.is_hung and not is_missing
    return (fate.outcome != "failed", fate.is_victim, waits, _moment(fate, heard), fate.rank)


def _moment(fate: RankFate, heard: Heard) -> float:
    """When it failed. One that died without a word did so before its line closed."""
    return fate.error.raised_at if fate.error else heard.closed_at.get(fate.rank, float("inf"))


def _describe(code: int, oom_kills: int) -> str:
    text = processes.ending(code).removeprefix("was ").removeprefix("ended with ")
    if code == 0:
        return f"{text} without a report, by os._exit()?"
    if code == -signal.SIGKILL and oom_kills:
        return f"{text}, out of memory (the kernel's oom_kill count rose by {oom_kills})"
    return text
