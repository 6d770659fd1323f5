"""What became of each rank of a launch, root cause first; the line that says why it failed; and the launch's record."""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import msgspec

from pytest_distbench.errors import ReadingError, RecordingError
from pytest_distbench.judging.fingerprint_rule import structure_metrics
from pytest_distbench.launch import evidence
from pytest_distbench.launch.evidence import Sign
from pytest_distbench.launch.readers import readings
from pytest_distbench.launch.reduce import breakdowns, join, largest, late_s, merge, of_launch, peak_memory, with_load
from pytest_distbench.launch.site import Clocks, Exit, Heard, processes
from pytest_distbench.launch.trained import samples_of
from pytest_distbench.launch.workplace import TAIL_LINES, tail
from pytest_distbench.machine.secrets import mask_values
from pytest_distbench.records.launch import (
    HUNG,
    ErrorReport,
    HostReport,
    LaunchRecord,
    Outcome,
    Phase,
    RankFate,
    RankReport,
)
from pytest_distbench.records.launch_files import LaunchFiles
from pytest_distbench.records.metric import UNDER_WAY
from pytest_distbench.records.plan import LaunchPlan, Ranks
from pytest_distbench.records.record import replace
from pytest_distbench.units import format_seconds


def has_waited_in_vain(error: ErrorReport) -> bool:
    """Whether torch raised the error while it waited for another rank."""
    return any(sign.kind == "wait" for sign in _signs(error))


def is_follower(error: ErrorReport) -> bool:
    """Whether another rank did not come or died first; False if the error names a cause of its own."""
    kinds = {sign.kind for sign in _signs(error)}
    return error.began_in_torch and bool(kinds) and "cause" not in kinds


def _signs(error: ErrorReport) -> list[Sign]:
    return [sign for text in error.torch_errors if (sign := evidence.read_sign(text))]


def is_hang(fates: Sequence[RankFate]) -> bool:
    """Whether a rank hung, or ranks waited for each other in vain."""
    return any(f.is_hung for f in fates) or is_deadlock(fates)


def is_deadlock(fates: Sequence[RankFate]) -> bool:
    """Whether all failures are ranks that gave up waiting, or lost their connection to a rank that had passed."""
    failed = [f for f in fates if f.outcome == "failed"]
    has_left = any(f.outcome == "passed" for f in fates)
    return all(f.error is not None and f.is_victim for f in failed) and (
        any(f.error is not None and has_waited_in_vain(f.error) for f in failed) or (has_left and bool(failed))
    )


def find_missing(hung: Sequence[RankFate]) -> list[RankFate]:
    """The hanging ranks that other hanging ranks wait for, or [] if unknown.

    They are in an earlier phase, or behind in a group's collectives, and if possible wait for nobody themselves. Where
    torch records nothing (``send``, ``recv``, ``monitored_barrier``), they are in the user's code while others are in
    torch.
    """
    phases: tuple[Phase, ...] = get_args(Phase)
    furthest = max((phases.index(f.phase) for f in hung), default=0)
    behind = [f for f in hung if phases.index(f.phase) < furthest]
    if not behind:
        behind = [  # for which others wait in a collective, or which they have left behind in one
            f
            for f in hung
            if any(
                f.rank in ranks and other.unfinished.get(name, other.entered.get(name, 0)) > f.entered.get(name, 0)
                for other in hung
                for name, ranks in other.groups.items()
            )
        ]
        behind = [f for f in behind if not any(_waits_for(f, other) for other in hung)] or behind
    if not behind and furthest == phases.index("body"):
        behind = [f for f in hung if f.is_elsewhere]
    return behind if len(behind) < len(hung) else []


def _waits_for(fate: RankFate, other: RankFate) -> bool:
    return any(
        other.rank in fate.groups.get(name, ()) and number > other.entered.get(name, 0)
        for name, number in fate.unfinished.items()
    )


_STACKS_LINES = 500
_LONGEST_DUMP_LINES = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How a launch ended, as seen from outside the ranks.

    Attributes:
        ended_by_us: ranks that were alive when the launch was ended by force.
        left: ranks of ``ended_by_us`` that had closed their connection to pytest before.
        started_at: when the launcher was asked to start; all moments are CLOCK_MONOTONIC seconds.
        up_at: when the last rank had said hello.
        finished_at: when no process of the launch was left.
    """

    exit: Exit
    timed_out: bool
    ended_by_us: frozenset[int]
    left: frozenset[int] = frozenset()
    clocks: Clocks = field(default_factory=Clocks)
    started_at: float = 0.0
    up_at: float = 0.0
    finished_at: float = 0.0


def determine_fates(
    plan: LaunchPlan, reports: Mapping[int, RankReport], heard: Heard, ending: Ending
) -> list[RankFate]:
    """One fate per rank, root cause first: ordered by time, known victims last."""
    aborts = {}  # and what NCCL's watchdog said of those that it was about to end when they were ended
    for rank in set(range(plan.processes)) - set(reports):
        code, log = ending.exit.codes.get(rank), plan.files.log(rank)
        was_aborted = code == -signal.SIGABRT
        if was_aborted or rank in ending.ended_by_us or code == -signal.SIGTERM:
            abort = evidence.read_abort(log) or (evidence.read_uncaught(log) if was_aborted else None)
            if abort is not None and (was_aborted or has_waited_in_vain(abort)):
                aborts[rank] = abort
    hung = _hung(reports, ending, aborts)
    fates = [_fate(plan, rank, reports.get(rank), heard, ending, hung, aborts) for rank in range(plan.processes)]
    failed = [f for f in fates if f.outcome == "failed"]
    if failed and all(f.is_victim for f in failed) and not ending.exit.died and not aborts:
        # Nobody else to blame than the one that SIGTERM ended first: the agent sends it only after another has died.
        codes = ending.exit.codes.items()
        ended = [rank for rank, code in codes if code == -signal.SIGTERM and rank not in ending.ended_by_us]
        first = min(ended, key=lambda rank: heard.closed_at.get(rank, float("inf")), default=None)
        fates = [replace(f, how="killed by SIGTERM", is_victim=False) if f.rank == first else f for f in fates]
    missing = {f.rank for f in find_missing([f for f in fates if f.is_hung])}

    def precedence(fate: RankFate) -> tuple[object, ...]:
        """Order causes before victims, the missing rank before the ranks that wait for it, then by time."""
        waits = fate.is_hung and fate.rank not in missing
        return (fate.outcome != "failed", fate.is_victim, waits, _moment(fate, heard), fate.rank)

    return _with_unclear_order(sorted(fates, key=precedence), heard, ending)


def _with_unclear_order(fates: Sequence[RankFate], heard: Heard, ending: Ending) -> list[RankFate]:
    """Order by rank those that failed too close in time for the clocks of their hosts."""
    first, *rest = fates
    if first.outcome != "failed" or first.is_victim or first.is_hung:
        return [*fates]
    errors_s = {
        f.rank: error_s
        for f in rest
        if f.outcome == "failed" and not f.is_victim and not f.is_hung
        if abs(_moment(f, heard) - _moment(first, heard)) < (error_s := ending.clocks.error_s(first.rank, f.rank))
    }
    head, *others = sorted([first, *(f for f in rest if f.rank in errors_s)], key=lambda f: f.rank)
    unordered = [replace(f, error_s=max(errors_s.values())) for f in others]
    return [head, *unordered, *(f for f in rest if f.rank not in errors_s)]


def _hung(reports: Mapping[int, RankReport], ending: Ending, aborts: Mapping[int, ErrorReport]) -> frozenset[int]:
    """Ranks that hung: alive at the time-out, or when all ranks that failed had given up waiting for others."""
    silent = frozenset(r for r in ending.ended_by_us if r not in reports or reports[r].outcome == "passed")
    if ending.timed_out:
        return silent
    errors = [*(r.error for r in reports.values() if r.outcome == "failed" and r.error), *aborts.values()]
    if not errors or not all(map(has_waited_in_vain, errors)):
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
    aborts: Mapping[int, ErrorReport],
) -> RankFate:
    files = plan.files
    code = ending.exit.codes.get(rank)
    if report is not None and report.outcome != "passed":
        return _fate_as_reported(report, files, others_hang=bool(hung))
    is_stopped = rank in ending.ended_by_us or code == -signal.SIGTERM
    if report is not None and rank not in hung and (is_stopped or code in (None, 0)):
        return RankFate(rank=rank, outcome="passed", phase=report.phase, how="passed")
    how, is_victim = (HUNG, False) if rank in hung else _how(rank, heard, ending, is_stopped=is_stopped)
    phase, log = msgspec.convert(heard.last_phase(rank), Phase), tail(files.log(rank))
    fate = RankFate(rank=rank, outcome="failed", phase=phase, how=how, is_victim=is_victim, log_tail=log)
    dump = evidence.read_dump(files.log(rank)) if code is not None and code < 0 else ""
    if dump:
        above = evidence.before_dump(tail(files.log(rank), _LONGEST_DUMP_LINES))
        last = "\n".join(above.splitlines()[-TAIL_LINES:])
        fate = replace(fate, log_tail=last, stacks=evidence.trim(dump), waits_at=evidence.waits_at(dump))
    if (abort := aborts.get(rank)) is not None and rank not in hung:
        ended_at = heard.closed_at.get(rank, max(heard.closed_at.values(), default=0.0))
        op, number = evidence.late_collective(abort.message)
        error = replace(abort, traceback=f"{abort.message}\n{fate.stacks}".rstrip(), raised_at=ended_at)
        fate = replace(fate, is_victim=is_follower(abort), error=error, collective=op, collective_number=number)
    if dump or (rank not in hung and not fate.is_victim):
        return fate
    stacks = tail(files.stacks(rank), _STACKS_LINES)
    fate, is_idle = evidence.with_entered(fate, files)
    return replace(
        fate,
        stacks=evidence.trim(stacks),
        waits_at=evidence.waits_at(stacks),
        awaits_file=evidence.awaited_file(files.awaited(rank)),
        # On a GPU the user's own line may be the one that waits: for what other ranks have not sent.
        is_elsewhere=(plan.device == "cpu" or is_idle) and evidence.is_in_own_code(stacks),
    )


def _how(rank: int, heard: Heard, ending: Ending, *, is_stopped: bool) -> tuple[str, bool]:
    """How a rank without a report ended, and whether another rank's end caused it."""
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
        text = processes.ending(code).removeprefix("was ").removeprefix("ended with ")
        oom_kills = ending.exit.oom_kills.get(rank, 0)
        if code == 0:
            return f"{text} without a report, by os._exit()?", False
        if code == -signal.SIGKILL and oom_kills:
            return f"{text}, out of memory (the kernel's oom_kill count rose by {oom_kills})", False
        return text, False
    if rank in ending.exit.stuck:
        return "ended, but is still in the kernel", False
    return "ended without a report" if rank in heard.closed_at else "never started", False


def _fate_as_reported(report: RankReport, files: LaunchFiles, *, others_hang: bool) -> RankFate:
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
        is_victim=error is not None and (is_follower(error) or (others_hang and has_waited_in_vain(error))),
        error=error,
        log_tail="\n".join(log[-TAIL_LINES:]),
    )
    return evidence.with_entered(fate, files)[0]


def _moment(fate: RankFate, heard: Heard) -> float:
    return fate.error.raised_at if fate.error else heard.closed_at.get(fate.rank, float("inf"))


_UNRECORDED = re.compile(r'/torch/distributed/.*", line \d+, in (send|recv|monitored_barrier)$', re.MULTILINE)
"""Calls that torch's flight recorder misses, in a traceback."""
_SIZES = re.compile(r"(\d+) vs\.? (\d+)")  # gloo's bytes received and expected
_UNORDERED = "the clocks of their hosts do not show who was first"
_LOCKED = "\nnext: remove it if nothing builds an extension of torch now: a build that is killed leaves its lock behind"
_SPAWNS = (
    "\nnext: torch.multiprocessing.spawn starts its own processes, in every rank. Give a script that starts its "
    "processes itself as a command: [sys.executable, 'train.py']"
)


def merge_outcomes(fates: list[RankFate], *, after_s: float) -> tuple[Outcome, str]:
    """The launch's outcome, and one line with its reason. Ranks disagree if some skip and no other fails by itself."""
    skipped = [f for f in fates if f.outcome == "skipped"]
    if len(skipped) == len(fates):
        return "skipped", skipped[0].error.message if skipped[0].error else ""
    failed = [f for f in fates if f.outcome == "failed"]
    if skipped and all(f.is_victim for f in failed):
        who = ", ".join(str(f.rank) for f in sorted(skipped, key=lambda f: f.rank))
        return "failed", f"ranks disagree: rank {who} skipped, the others did not"
    if not failed:
        return "passed", ""
    if any(f.is_hung for f in failed):
        return "failed", _hang_reason(failed, after_s)
    if is_deadlock(fates):
        passed = [f for f in fates if f.outcome == "passed"]
        if len(failed) == 1 < len(passed):
            place = _place(failed[0])
            return "failed", f"rank {failed[0].rank} alone waited in {place}: {_numbers(passed)} ended without it"
        why = f"{_numbers(passed)} ended without the collective that others waited for" if passed else "deadlock"
        return "failed", f"{why}: {_waiting(failed, 'waited')}"
    first = failed[0]
    if mismatch := _mismatch_reason(first, fates):
        return "failed", mismatch
    said = ""
    if first.error is not None:  # its first line; of one of torch's that is known, what it means and the next step
        said = _first_line(first.error.message)
        for text in first.error.torch_errors if first.error.began_in_torch else ():
            if (sign := evidence.read_sign(text)) is not None and sign.meaning:
                latest = evidence.last_error(text) or _first_line(text.partition(": ")[2])
                said = f"{sign.meaning}: {latest}\nnext: {sign.advice}"
                break
    where = f" at {first.waits_at}" if first.waits_at and not said else ""
    reason = f"rank {first.rank} {first.how}{where}{said and f': {said}'}"
    if unordered := [f for f in failed if f.error_s]:  # one of them may have failed before it
        within = format_seconds(max(f.error_s for f in unordered))
        reason = f"{reason}\n{_numbers(unordered)} failed within {within} of it: {_UNORDERED}"
    return "failed", reason


def _mismatch_reason(first: RankFate, fates: Sequence[RankFate]) -> str:
    sign = evidence.read_sign(first.error.message) if first.error is not None and first.error.began_in_torch else None
    if sign is None or sign.meaning != evidence.MISMATCH or first.error is None:
        return ""
    sizes = _SIZES.search(first.error.message)
    got = f"got {sizes[1]} B for {sizes[2]} B" if sizes else "received more than it had room for"
    others = sorted((f for f in fates if f is not first), key=lambda f: f.rank)
    was = [f"rank {f.rank} was{where}" for f in others if (where := _called_at(f))]
    calls = "; ".join([f"rank {first.rank} {got}{_called_at(first)}", *was[:3]])
    return f"{sign.meaning}: {calls}\nnext: {sign.advice}"


def _called_at(fate: RankFate) -> str:
    place = fate.waits_at or evidence.raised_at(fate.error.traceback if fate.error is not None else fate.log_tail)
    line, _, called = place.partition(", in ")
    return f"{called and f' in {called}'}{line and f' at {line}'}"


def _first_line(text: str) -> str:
    return next(iter(text.strip().splitlines()), "")


def _hang_reason(failed: Sequence[RankFate], after_s: float) -> str:
    hung = [f for f in failed if f.is_hung]
    missing = find_missing(hung)
    # Every rank hangs in a collective, and not all in the same: none of them will ever come to the others'.
    waited = {f.collective for f in hung if f.collective_number and not f.collective_is_over}
    if not missing and len(waited) > 1 and all(f.is_hung and f.collective in waited for f in failed):
        return f"deadlock: {_waiting(failed, 'waits')}; ended after {after_s:.1f} s"
    if all(f.went_on for f in failed):
        entered = max(f.went_on for f in failed)
        where = f"rank {hung[0].rank} at {hung[0].waits_at}" if hung[0].waits_at else f"in {hung[0].phase}"
        went_on = f"its ranks went on, with {entered} collectives so far: {where}"
        return f"ended after {after_s:.1f} s, its limit: {went_on}\nnext: --distbench-timeout, or fewer steps"
    shown = missing or hung
    phases = list(dict.fromkeys(f.phase for f in shown))
    places = [
        f"rank {f.rank} at {f.waits_at}" if f.waits_at else f"rank {f.rank} in phase {f.phase}"
        for f in sorted(shown, key=lambda f: f.rank)
    ]
    shown_places = "; ".join(places[:4])
    more = f" and {len(shown) - 4} more" if len(shown) > 4 else ""
    waiting = [f for f in failed if f not in shown]  # some have given up by now: their collective timed out
    what = f"; {_numbers(waiting)} wait{'s' * (len(waiting) == 1)} in {_place(waiting[0])}" if waiting else ""
    advice = _SPAWNS if any(f.waits_at.endswith(", in spawn") for f in hung) else ""
    for file in dict.fromkeys(f.awaits_file for f in hung if f.awaits_file):
        those = [f for f in hung if f.awaits_file == file]
        who = "all ranks" if len(those) == len(failed) > 1 else _numbers(those)
        wait = "waits" if len(those) == 1 else "wait"
        advice = f"; {who} {wait} outside of any collective, for the end of the file {file}{_LOCKED}"
    return f"hung in {'/'.join(phases)}, ended after {after_s:.1f} s: {shown_places}{more}{what}{advice}"


def _waiting(fates: Sequence[RankFate], verb: Literal["waits", "waited"]) -> str:
    places: dict[str, list[RankFate]] = {}
    for fate in sorted(fates, key=lambda f: f.rank):
        places.setdefault(_place(fate), []).append(fate)
    found = sorted(places.items(), key=lambda place: len(place[1]))  # of equally many those of lower ranks first
    odd = len(found) == 2 and len(found[0][1]) == 1 < len(found[1][1])
    clauses: list[str] = []
    for place, those in found[:4]:
        wait = verb if len(those) == 1 else verb.replace("waits", "wait")
        clauses.append(f"{_numbers(those)}{' alone' if odd and not clauses else ''} {wait} in {place}")
    return "; ".join(clauses)


def _place(fate: RankFate) -> str:
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


def _numbers(fates: Sequence[RankFate]) -> str:
    numbers = sorted(f.rank for f in fates)
    return f"rank{'s' * (len(numbers) > 1)} " + ", ".join(map(str, numbers[:8])) + (", ..." if len(numbers) > 8 else "")


def make_record(
    plan: LaunchPlan, hosts: Sequence[HostReport], heard: Heard, ending: Ending, *, remarks: Sequence[str] = ()
) -> LaunchRecord:
    whole = join(hosts)
    reports = {report.rank: report for report in whole.ranks}
    fates = determine_fates(plan, reports, heard, ending)
    outcome, reason = merge_outcomes(fates, after_s=ending.finished_at - ending.up_at)
    trouble = ending.exit.trouble
    if outcome == "failed" and ending.exit.died and all(f.is_victim for f in fates if f.outcome == "failed"):
        reason = f"the launcher failed: {trouble}"
    elif outcome == "failed" and trouble and not any(r.error for r in reports.values()):
        log = tail(plan.files.launcher_log)
        reason = f"{reason}; {trouble}" + (f"; the launcher's log:\n{log}" if log else "")
    if outcome == "failed":
        reason = "\n".join([reason, *ending.exit.stuck.values()])
    else:
        remarks = [*remarks, *ending.exit.stuck.values()]
    measurements = []
    stands_for_a_rank = plan.work.stands_for is not None
    if outcome == "passed":
        try:
            body = plan.expect(Ranks).body
            if body.is_script and body.makes_group:
                met = max(report.group_size for report in reports.values())
                remarks = [*check_group(plan, met, who="rank"), *remarks]
            if not stands_for_a_rank:
                read, of_files = readings(plan)
                measurements, remarks = merge([*whole.observations, *read]), [*remarks, *of_files]
                if not (plan.only or plan.shares_gpu):  # else it is not of all the launch does, or of the rank alone
                    measurements += samples_of(list(reports.values()))
                    measurements += peak_memory({rank: report.peak_memory_bytes for rank, report in reports.items()})
                    second = {rank: report.second_peak_bytes for rank, report in reports.items()}
                    measurements += peak_memory(second, {"from_update": UNDER_WAY})
        except (RecordingError, ReadingError) as error:
            outcome, reason = "failed", str(error)
    has_passed = outcome == "passed"
    found = list(reports.values())
    size = None if stands_for_a_rank else len(found)
    fingerprints = {key: of_launch(one, size) for key, one in whole.fingerprints.items()} if has_passed else {}
    homes = [ending.clocks.hosts.get(rank, "") for rank in range(plan.processes)]
    said: dict[str, list[str]] = {}
    for rank, text in sorted(heard.remarks().items()):
        said.setdefault(text, []).append(str(rank))
    for report in found:
        for text in report.trained.remarks:
            said.setdefault(text, []).append(str(report.rank))
    of_ranks = [f"rank {', '.join(who)}: {text}" for text, who in said.items()]
    # seconds of the slowest rank in each, and of starting and ending the group around them
    phases: dict[str, float] = {}
    if found:
        begin = max(report.phases["begin"] for report in found)
        agreed = ending.exit.stamps.get("rendezvous", ending.started_at)
        phases = {
            "launcher": agreed - ending.started_at,
            "process_start": begin - agreed,
            **{name: max(r.phases.get(name, 0.0) for r in found) for name in ("import", "rendezvous", "body")},
            "exit": ending.finished_at - max(report.phases.get("end", begin) for report in found),
        }
    record = LaunchRecord(
        index=plan.index,
        outcome=outcome,
        wall_s=ending.finished_at - ending.started_at,
        only=plan.only,
        phases=phases,
        reason=reason,
        timed_out=is_hang(fates),
        fates=[] if has_passed else fates,
        measurements=measurements,
        fingerprints=fingerprints,
        lines=reports[0].lines if has_passed and 0 in reports else {},
        delayed_s=max((r.delayed_s for r in found), default=0.0),
        late_s=late_s(whole, resolution_s=ending.clocks.max_error_s) if has_passed else {},
        hosts=homes if all(homes) and len(set(homes)) > 1 else [],
        gpus=[reports[rank].gpu for rank in range(plan.processes)] if has_passed and any(r.gpu for r in found) else [],
        software=reports[0].software if 0 in reports else {},
        remarks=[*of_ranks, *filter(None, remarks), *ending.exit.remarks],
        logs=plan.directory,
    )
    if stands_for_a_rank:  # what it computed, and how fast, is nobody's
        software = {name: record.software[name] for name in ("python", "torch") if name in record.software}
        return replace(record, measurements=structure_metrics(fingerprints), software=software)
    record = replace(
        record,
        undescribed_collectives=max((r.undescribed_collectives for r in found), default=0),
        breakdowns=breakdowns(whole) if has_passed else {},
        peak_memory_bytes=largest(found),
    )
    return with_load(record, reports[0].load) if 0 in reports else record


def check_group(plan: LaunchPlan, largest: int, *, who: str) -> list[str]:
    """Remarks if only some of the expected processes joined a group. Raises RecordingError if fewer than two did."""
    if plan.world_size == 1:
        return []
    if largest < 2:
        last = tail(plan.files.log(0), lines=5)
        shown = f"; the output of rank 0 ends with:\n{last}" if last else "; rank 0 printed nothing"
        raise RecordingError(
            f"no {who} joined a process group of {plan.world_size}: it ended without one"
            + ", or made one of its own" * (largest == 1)
            + ", and each may have trained alone"
            + ". If its processes communicate without torch.distributed, pass makes_group=False"
            + shown
        )
    return [f"the largest process group had {largest} of {plan.world_size} ranks"] * (largest < plan.world_size)


def mask_record(record: LaunchRecord, values: Sequence[str]) -> LaunchRecord:
    """The record without secret values; the ranks' log files are unchanged."""
    if not values:
        return record
    return replace(
        record,
        command=mask_values(record.command, values),
        reason=mask_values(record.reason, values),
        remarks=[mask_values(remark, values) for remark in record.remarks],
        fates=[msgspec.convert(_masked(msgspec.to_builtins(fate), values), RankFate) for fate in record.fates],
    )


def _masked(document: Any, values: Sequence[str]) -> Any:
    match document:
        case str():
            return mask_values(document, values)
        case dict():
            return {key: _masked(value, values) for key, value in document.items()}
        case list():
            return [_masked(value, values) for value in document]
    return document
