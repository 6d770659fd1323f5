"""What may explain a regression: fingerprint, message sizes, phases, CPU time, a late rank, memory."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from pytest_distbench.judging import size_model
from pytest_distbench.judging.entry import phases_of
from pytest_distbench.records.run import CaseResult
from pytest_distbench.records.verdict import Verdict
from pytest_distbench.units import format_bytes, format_change, format_seconds

_MOST_DIFFERENCES = 8
_LATE_SHARE = 0.1
"""A rank that comes later than the others by this share of the iteration holds them up."""
_LATE_LAUNCHES = 0.8
"""... in this share of the launches: in one of them anything may have happened."""
_MEMORY_CHANGE = 0.03
"""Resident memory repeats to about half a per cent; below this nothing is said."""
_PHASE_CHANGE = 0.1
_MOST_PHASES = 4
_COMPUTES, _WAITS = 0.7, 0.3
"""Shares of the added time that were spent computing: from the first it is work, below the second it is waiting."""


def cause_lines(result: CaseResult) -> list[str]:
    """One line each; none where nothing stands out."""
    lines = [
        *_fingerprint_lines(result),
        *_size_lines(result),
        *_phase_lines(result),
        *_cpu_line(result),
        *_straggler(result),
        *_memory_line(result),
    ]
    return [*lines, ""] if lines else []


def _fingerprint_lines(result: CaseResult) -> Iterator[str]:
    is_slower = any(v.kind == "regressed" for v in result.verdicts)
    for verdict in result.verdicts:
        if verdict.kind == "changed":
            yield "likely cause: what an iteration does changed" if is_slower else "what an iteration does changed"
            yield from (f"  {line}" for line in verdict.differences[:_MOST_DIFFERENCES])
            if (more := len(verdict.differences) - _MOST_DIFFERENCES) > 0:
                yield f"  and {more} more"


def _size_lines(result: CaseResult) -> Iterator[str]:
    """Of a sweep: which sizes, and whether a call or a byte costs more."""
    sweeps: dict[str, list[Verdict]] = {}
    for verdict in result.verdicts:
        if set(verdict.at) == {"message_bytes"} and verdict.unit == "s" and verdict.current and verdict.baseline:
            sweeps.setdefault(verdict.metric.partition("[")[0], []).append(verdict)
    for name, verdicts in sweeps.items():
        hit = [_size(v) for v in verdicts if v.kind == "regressed"]
        if not hit or len(verdicts) < size_model.FEWEST_SIZES:
            continue
        then = size_model.fit({_size(v): v.baseline or 0.0 for v in verdicts})
        now = size_model.fit({_size(v): v.current or 0.0 for v in verdicts})
        yield f"{name} is slower {size_model.which(hit, [_size(v) for v in verdicts])}"
        yield (
            f"  latency term {_moved(then.latency_s, now.latency_s, format_seconds)}, "
            f"bandwidth term {_moved(then.s_per_byte, now.s_per_byte, lambda rate: f'{rate * 1e9:.3g} s/GB')}"
        )


def _phase_lines(result: CaseResult) -> Iterator[str]:
    """The phases that take longer, by the time they add."""
    if not any(v.kind == "regressed" for v in result.verdicts):
        return
    both = {
        name: (result.reference.phases[name], now)
        for name, now in phases_of(result.launches).items()
        if name in result.reference.phases
    }
    slower = {name: (then, now) for name, (then, now) in both.items() if now > then * (1 + _PHASE_CHANGE)}
    for name, (then, now) in sorted(slower.items(), key=lambda item: item[1][0] - item[1][1])[:_MOST_PHASES]:
        yield f"phase {name}: {_moved(then, now, format_seconds)}"


def _size(verdict: Verdict) -> int:
    return int(verdict.at["message_bytes"])


def _moved(then: float, now: float, shown: Callable[[float], str]) -> str:
    change = f" ({format_change(now / then)})" if then else ""
    return f"{shown(then)} -> {shown(now)}{change}"


def _cpu_line(result: CaseResult) -> Iterator[str]:
    """Whether the added time was spent computing. CPU time is summed over ranks, the clock is the slowest rank's."""
    slower = [v for v in result.verdicts if v.kind == "regressed" and "cpu_s" in v.companions and v.ratio]
    if not slower:
        return
    worst = max(slower, key=lambda v: v.ratio or 0.0)
    assert worst.current is not None
    assert worst.baseline is not None
    then, now = worst.companions["cpu_s"]
    share = (now - then) / result.case.world_size / (worst.current - worst.baseline)
    what = (
        "the added time is computing"
        if share >= _COMPUTES
        else "the added time is waiting"
        if share <= _WAITS
        else "the added time is partly computing, partly waiting"
    )
    moved = f" ({format_change(now / then)})" if then else ""
    both = f"{format_seconds(then)} -> {format_seconds(now)}{moved}"
    yield f"CPU time of all ranks per iteration of {worst.metric}: {both}: {what}"


def _straggler(result: CaseResult) -> Iterator[str]:
    """Name the rank that came late to the collectives, or else the one whose clock was the slowest."""
    failed = [v for v in result.verdicts if v.kind == "regressed"]
    for verdict in sorted(failed, key=_severity, reverse=True):
        late = [launch.late_s[verdict.metric] for launch in result.launches if verdict.metric in launch.late_s]
        if not late or verdict.current is None or verdict.unit != "s":
            continue
        rank, times = Counter(_latest(launch, _LATE_SHARE * verdict.current) for launch in late).most_common(1)[0]
        if rank is not None and times >= _LATE_LAUNCHES * len(late):
            typical = statistics.median(launch[rank] for launch in late)
            yield (
                f"rank {rank} comes {format_seconds(typical)} late to the collectives of {verdict.metric}, "
                "the others wait for it"
            )
            return
    names = {v.metric for v in failed}
    votes: Counter[int] = Counter()
    total = 0
    for launch in result.launches:
        for m in launch.measurements:
            if m.key in names and m.summary is not None and m.summary.slowest_rank is not None:
                total += 1
                votes[m.summary.slowest_rank] += m.summary.slowest_share > 0.9
    for rank, times in votes.most_common(1):
        if times > 0.7 * total:
            yield f"rank {rank} was the slowest in over 90 % of the iterations"


def _latest(late_s: Sequence[float], margin_s: float) -> int | None:
    """The rank that came later than all others by a margin, in one launch."""
    rank = max(range(len(late_s)), key=late_s.__getitem__)
    others = max((t for r, t in enumerate(late_s) if r != rank), default=late_s[rank])
    return rank if late_s[rank] - others > margin_s else None


def _memory_line(result: CaseResult) -> Iterator[str]:
    then = result.reference.peak_memory_bytes
    found = [launch.peak_memory_bytes for launch in result.launches if launch.peak_memory_bytes]
    if then and found and abs(statistics.median(found) / then - 1) > _MEMORY_CHANGE:
        now = statistics.median(found)
        yield f"peak memory: {format_bytes(then)} -> {format_bytes(now)} ({format_change(now / then)})"


def _severity(verdict: Verdict) -> float:
    return verdict.ratio or float("inf")
