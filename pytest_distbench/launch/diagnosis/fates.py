"""What became of each rank of a launch, the root cause first, and whom a failure is to blame on.

Of a script or a command also whether its processes met: what gave up early, or ran one by one, ends as others do.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

import msgspec

from pytest_distbench.errors import RecordingError
from pytest_distbench.launch.diagnosis import texts
from pytest_distbench.launch.diagnosis.evidence import (
    Abort,
    before_dump,
    is_in_own_code,
    read_abort,
    read_dump,
    read_uncaught,
    trim,
    waits_at,
    with_entered,
)
from pytest_distbench.launch.site import Clocks, Exit, Heard, processes
from pytest_distbench.launch.workplace import TAIL_LINES, tail
from pytest_distbench.records.launch import HUNG, ErrorReport, Phase, RankFate, RankReport
from pytest_distbench.records.launch_files import LaunchFiles
from pytest_distbench.records.plan import Command, LaunchPlan, Ranks
from pytest_distbench.records.record import Record, replace


def has_waited_in_vain(error: ErrorReport) -> bool:
    """Whether it came from waiting for another rank. The same words in a user's own exception are no sign of that."""
    return any(sign.kind == "wait" for sign in _signs(error))


def is_follower(error: ErrorReport) -> bool:
    """Whether it began with another rank that did not come, or was gone; not, where it names a cause of its own."""
    kinds = {sign.kind for sign in _signs(error)}
    return error.began_in_torch and bool(kinds) and "cause" not in kinds


def _signs(error: ErrorReport) -> list[texts.Sign]:
    return [sign for text in error.torch_errors if (sign := texts.read(text))]


def is_hang(fates: Sequence[RankFate]) -> bool:
    """Whether the launch failed because a rank did not go on, or did not come where others waited."""
    return any(f.is_hung for f in fates) or is_deadlock(fates)


def is_deadlock(fates: Sequence[RankFate]) -> bool:
    """Ranks gave up waiting for each other, or lost the connection to one that has left; nobody else is to blame."""
    failed = [f for f in fates if f.outcome == "failed"]
    has_left = any(f.outcome == "passed" for f in fates)
    return all(f.error is not None and f.is_victim for f in failed) and (
        any(map(_in_vain, failed)) or (has_left and bool(failed))
    )


def waits_in_a_circle(failed: Sequence[RankFate]) -> bool:
    """Whether every rank hangs in a collective, and not all in the same: none of them will ever come to the others'."""
    places = {f.collective for f in failed if f.is_hung and f.collective_number and not f.collective_is_over}
    return len(places) > 1 and all(f.is_hung and f.collective in places for f in failed)


def find_missing(hung: Sequence[RankFate]) -> list[RankFate]:
    """Of ranks that hang, those that others wait for.

    In an earlier phase, or behind in the collectives of a group; of those, whoever waits for nobody in turn. Where
    torch records nothing, as of ``send``, ``recv`` and ``monitored_barrier``, those that are in code of their own while
    others are in torch.
    """
    phases: tuple[Phase, ...] = get_args(Phase)
    furthest = max((phases.index(f.phase) for f in hung), default=0)
    behind = [f for f in hung if phases.index(f.phase) < furthest]
    if not behind:
        behind = [f for f in hung if any(_is_ahead(other, f) for other in hung)]
        behind = [f for f in behind if not any(_waits_for(f, other) for other in hung)] or behind
    if not behind and furthest == phases.index("body"):
        behind = [f for f in hung if f.is_elsewhere]
    return behind if len(behind) < len(hung) else []


def _waits_for(fate: RankFate, other: RankFate) -> bool:
    return any(
        other.rank in fate.groups.get(name, ()) and number > other.entered.get(name, 0)
        for name, number in fate.unfinished.items()
    )


def _is_ahead(fate: RankFate, other: RankFate) -> bool:
    """Whether a rank waits for another, or has left behind it a collective that the other has not entered."""
    return _waits_for(fate, other) or any(
        other.rank in ranks and name not in fate.unfinished and fate.entered.get(name, 0) > other.entered.get(name, 0)
        for name, ranks in fate.groups.items()
    )


def _in_vain(fate: RankFate) -> bool:
    return fate.error is not None and has_waited_in_vain(fate.error)


def check_ranks(plan: LaunchPlan, reports: Mapping[int, RankReport]) -> list[str]:
    """What is to be said of a launch of ranks of ours, where only some of those that run a script met."""
    body = plan.expect(Ranks).body
    if not (body.is_script and body.makes_group):
        return []
    return _check(plan, max(report.group_size for report in reports.values()), who="rank")


def check_command(plan: LaunchPlan, *, gave_numbers: bool) -> list[str]:
    """The same of a command's processes, as far as they are Pythons and on this host.

    What it gave as numbers, with nothing of it going on when it had ended, may be what should have been measured.
    """
    sizes = plan.files.joined()
    if not plan.expect(Command).makes_group or (not sizes and gave_numbers):
        return []  # it may not be Python at all: the numbers show that it has done something
    return _check(plan, max(sizes, default=0), who="process of the command")


_RANK = "rank "


class RankNote(Record, frozen=True, kw_only=True):
    """A line that a rank of a command has left, or what has started it."""

    who: str
    """``rank 1``; of what starts ranks its command line."""
    what: Literal["began", "raised"]
    t: float
    """CLOCK_MONOTONIC seconds."""
    pid: int
    error: str = ""
    """In words: ``raised ValueError: bad batch (train.py:12)``; of what starts ranks how they died."""


def failed_ranks(plan: LaunchPlan) -> str:
    """How ranks of a command failed, in a clause; empty: none did, or they began anew afterwards, and ended well.

    An elastic agent, or a loop in a shell, starts ranks again: of each rank, and of each command line that starts them,
    the process that began last counts.
    """
    if not plan.files.rank_notes.exists():
        return ""
    notes = sorted(
        (msgspec.json.decode(line, type=RankNote) for line in plan.files.rank_notes.read_bytes().splitlines()),
        key=lambda note: note.t,
    )
    last = {note.who: note.pid for note in notes if note.what == "began"}
    failed = [note for note in notes if note.what == "raised" and last.get(note.who) == note.pid]
    by_error: dict[str, list[str]] = {}
    for note in failed:
        if note.who.startswith(_RANK):
            by_error.setdefault(note.error, []).append(note.who.removeprefix(_RANK))
    told = [f"rank{'s' * (len(who) > 1)} {', '.join(sorted(who))} {error}" for error, who in by_error.items()]
    return "; ".join(told or dict.fromkeys(note.error for note in failed))


def _check(plan: LaunchPlan, largest: int, *, who: str) -> list[str]:
    if plan.world_size == 1:
        return []
    if largest < 2:
        last = tail(plan.files.log(0), lines=5)
        shown = f"; the output of rank 0 ends with:\n{last}" if last else "; rank 0 printed nothing"
        raise RecordingError(
            f"no {who} joined a process group of {plan.world_size}: it ended without one"
            + ", or made one of its own" * (largest == 1)
            + ". If its processes communicate without torch.distributed, pass makes_group=False"
            + shown
        )
    return [f"the largest process group had {largest} of {plan.world_size} ranks"] * (largest < plan.world_size)


_STACKS_LINES = 500
_LONGEST_DUMP_LINES = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How a launch ended, as seen from outside the ranks.

    Attributes:
        ended_by_us: ranks that were alive when the launch was ended by force.
        left: those among them that had closed their connection to pytest before.
        started_at: CLOCK_MONOTONIC seconds, as the others: when the launcher was asked.
        up_at: when the last rank had said hello.
        finished_at: when nothing of the launch ran any more.
    """

    exit: Exit
    timed_out: bool
    ended_by_us: frozenset[int]
    left: frozenset[int] = frozenset()
    clocks: Clocks = field(default_factory=Clocks)
    started_at: float = 0.0
    up_at: float = 0.0
    finished_at: float = 0.0


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
    fate, is_idle = with_entered(fate, files)
    return replace(
        fate,
        stacks=trim(stacks),
        waits_at=waits_at(stacks),
        # On a GPU the user's own line may be the one that waits: for what other ranks have not sent.
        is_elsewhere=(plan.device == "cpu" or is_idle) and is_in_own_code(stacks),
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
        return "closed its connection to pytest and went on; did it become another program?", False
    if is_stopped:
        return "was waiting" if heard.last_phase(rank) != "start" else "was starting", True
    if code is not None:
        return _describe(code, ending.exit.oom_kills.get(rank, 0)), False
    if rank in ending.exit.stuck:
        return "ended, but is still in the kernel", False
    return "ended without a report" if rank in heard.closed_at else "never started", False


def _fate_as_reported(report: RankReport, files: LaunchFiles, *, beside_hung: bool) -> RankFate:
    """The fate a rank told itself. Its log ends with the traceback, which is not shown twice."""
    error = report.error
    trace = error.traceback.strip().splitlines() if error else []
    log = tail(files.log(report.rank), TAIL_LINES + len(trace)).strip().splitlines()
    if trace and log[-1:] == trace[-1:]:
        log = log[: -len(trace)]
    fate = RankFate(
        rank=report.rank,
        outcome=report.outcome,
        phase=report.phase,
        how=f"raised {error.kind}" if error and report.outcome == "failed" else "skipped",
        is_victim=error is not None and (is_follower(error) or (beside_hung and has_waited_in_vain(error))),
        error=error,
        log_tail="\n".join(log[-TAIL_LINES:]),
    )
    return with_entered(fate, files)[0]


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
