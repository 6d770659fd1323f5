"""What may explain a regression: communication, phases, who spent the time, a late rank, clocks. Pure.

Each cause is a finding of what moved, from what to what, in a sentence or two. It explains, and is never judged.
A new one is a row of :data:`CAUSES` with a code in ``records/reasons.py``.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

from pytest_distbench.extensions import Table
from pytest_distbench.judging.entry import phases_of
from pytest_distbench.judging.losses import norm_of
from pytest_distbench.judging.terms import severity
from pytest_distbench.judging.thresholds import BUSIER_SHARE
from pytest_distbench.records.iteration import TRAINING_STEP
from pytest_distbench.records.kinds import METRIC_KINDS
from pytest_distbench.records.metric import WALL_TIME, metric_name
from pytest_distbench.records.reasons import REMARKS
from pytest_distbench.records.run import CaseResult, Finding
from pytest_distbench.units import format_change, format_seconds

_LATE_SHARE = 0.1
"""A rank that comes later than the others by this share of the iteration holds them up."""
_LATE_LAUNCHES = 0.8
"""... in this share of the launches: in one of them anything may have happened."""
_SLOWEST_ITERATIONS, _SLOWEST_LAUNCHES = 0.9, 0.7
"""A rank whose clock is the slowest in this share of the iterations, in more than this share of the launches."""
_PHASE_CHANGE = 0.1
_MOST_PHASES = 4
_COMPUTES, _WAITS = 0.7, 0.3
"""Shares of the added time that were spent computing: from the first it is work, below the second it is waiting."""
_EXPOSED = 0.5
"""In this share of the iterations the device had to wait for the host: else the host's time is no part of the clock."""
_AHEAD = 0.5
"""A host that is ahead of its device by this share of a step may have to wait until there is room on the queue."""
MOST_DIFFERENCES = 8


def find_causes(result: CaseResult) -> list[Finding]:
    """What stands out, the most telling first: in the order of their codes."""
    found = [cause for find in CAUSES.values() for cause in find(result)]
    return sorted(found, key=lambda cause: list(REMARKS).index(cause.code))


def regressions(result: CaseResult) -> list[Finding]:
    """What became worse, the largest change first."""
    worse = (v for v in result.verdicts if v.kind == "regressed" or v.row.may_be_confirmed)
    return sorted(worse, key=severity, reverse=True)


def communication(result: CaseResult) -> Iterator[Finding]:
    """What an iteration does changed, with or without a metric that regressed besides."""
    is_slower = bool(regressions(result))
    for verdict in result.verdicts:
        if verdict.code == "communication":
            told = "likely cause: communication per step changed" if is_slower else "Communication per step changed:"
            lines = verdict.differences[:MOST_DIFFERENCES]
            if (more := len(verdict.differences) - MOST_DIFFERENCES) > 0:
                lines.append(f"and {more} more")
            yield Finding(code="changed-communication", metric=verdict.metric, reason=told, differences=lines)


def name_of_rank(rank: int, result: CaseResult) -> str:
    """The rank, with its host where there are several."""
    hosts = hosts_of(result)
    return f"rank {rank} ({hosts[rank]})" if hosts else f"rank {rank}"


def hosts_of(result: CaseResult) -> list[str]:
    """The host of each rank; empty: all are on this one."""
    return next((launch.hosts for launch in reversed(result.launches) if launch.hosts), [])


def phases(result: CaseResult) -> Iterator[Finding]:
    if not regressions(result):
        return
    before, now = result.reference.phases, phases_of(result.launches)
    longer = [name for name in now if name in before and now[name] > before[name] * (1 + _PHASE_CHANGE)]
    for name in sorted(longer, key=lambda name: before[name] - now[name])[:_MOST_PHASES]:
        told = f"phase {name}: {movement(before[name], now[name], format_seconds)}"
        yield Finding(code="longer-phase", reason=told)


def cpu_time(result: CaseResult) -> Iterator[Finding]:
    """Whether the added time was spent computing. CPU time is summed over ranks, the clock is the slowest rank's.

    Ranks that wait for their CPUs, because other processes compute on them, compute no more than before.
    """
    if result.case.device == "cuda":
        return  # a host that waits for an event spins
    for verdict in regressions(result):
        added_s = _added_s(verdict)
        if added_s is None or "cpu_s" not in verdict.companions:
            continue
        then, now = verdict.companions["cpu_s"]
        share = (now - then) / result.case.world_size / added_s
        used = [launch.foreign_cores for launch in result.launches if launch.foreign_cores is not None]
        crowding = [launch.crowding for launch in result.launches if launch.crowding is not None]
        is_shared = bool(used) and statistics.median(used) > BUSIER_SHARE * result.environment.cores
        is_shared = is_shared or (bool(crowding) and statistics.median(crowding) > 1 / (1 - BUSIER_SHARE))
        if share >= _COMPUTES:
            spent = "computing"
        elif is_shared and verdict.ratio is not None and now - then >= _COMPUTES * abs(verdict.ratio - 1) * then:
            spent = "computing, on CPUs that other processes used too"  # they stretch what is added as the rest
        else:
            spent = (
                "waiting, not computing (sleep, I/O, locks, a late rank)"
                if share <= _WAITS
                else "partly computing, partly waiting"
            )
            if is_shared:
                spent += "; it may wait for a CPU, as other processes used them"
        # Of a script's or a command's whole time there are no iterations.
        per = "in" if metric_name(verdict.metric) == WALL_TIME else "per iteration of"
        moved = movement(then, now, format_seconds)
        told = f"CPU time of all ranks {per} {verdict.metric}: {moved}: the added time is {spent}"
        yield Finding(code="added-time", metric=verdict.metric, reason=told)
        return


def host_time(result: CaseResult) -> Iterator[Finding]:
    """On a GPU: who added the time, the device or the host.

    The CPU time of a GPU's rank says nothing of it: a host that waits for an event spins.
    """
    world_size = result.case.world_size
    if result.case.device != "cuda":
        return
    for verdict in regressions(result):
        added_s = _added_s(verdict)
        if added_s is None or "host_s" not in verdict.companions or verdict.current is None:
            continue
        then, now = verdict.companions["host_s"]
        share = (now - then) / world_size / added_s
        _, exposed = verdict.companions.get("exposed", (0.0, float(world_size)))
        _, lead_s = verdict.companions.get("lead_s", (0.0, 0.0))
        if share <= _WAITS or exposed / world_size < _EXPOSED:
            added = "the added time is the device's"
        elif share >= _COMPUTES and lead_s / world_size < _AHEAD * verdict.current:
            added = (
                "the added time is the host's: it enqueues more slowly, or waits for the device "
                "(.item(), .cpu(), print)"
            )
        else:
            added = "the host waits for the device, or the device for the host: --distbench-trace shows which"
        moved = movement(then, now, format_seconds)
        told = f"host time of all ranks per iteration of {verdict.metric}: {moved}: {added}"
        spins = "CPU time does not show it: a host spins while it waits for an event of the device"
        yield Finding(code="added-time", metric=verdict.metric, reason=told, differences=[spins])
        return


def _added_s(verdict: Finding) -> float | None:
    """Seconds by which this run is slower; None where it is not."""
    if verdict.unit != "s" or verdict.current is None or not verdict.baseline:
        return None
    return verdict.current - verdict.baseline if verdict.current > verdict.baseline else None


def late_rank(result: CaseResult) -> Iterator[Finding]:
    """The rank that came late to the collectives, or else the one whose clock was the slowest."""
    failed = regressions(result)
    for verdict in failed:
        iteration_s = _iteration_s(result, verdict)
        known = any(verdict.metric in launch.late_s for launch in result.launches)
        key = verdict.metric if known else TRAINING_STEP  # which all of a script's clocks are of
        late = [launch.late_s[key] for launch in result.launches if key in launch.late_s]
        if not late or iteration_s is None:
            continue
        rank, times = Counter(_latest(launch, _LATE_SHARE * iteration_s) for launch in late).most_common(1)[0]
        if rank is not None and times >= _LATE_LAUNCHES * len(late):
            typical = format_seconds(statistics.median(launch[rank] for launch in late))
            of = "a training step" if key == TRAINING_STEP else key
            who = name_of_rank(rank, result)
            told = f"{who} comes {typical} late to the collectives of {of}; the other ranks wait for it"
            yield Finding(code="late-rank", metric=verdict.metric, reason=told)
            return
    names = {v.metric for v in failed}
    votes: Counter[int] = Counter()
    total = 0
    for launch in result.launches:
        for m in launch.measurements:
            if m.key in names and m.spread is not None and m.spread.slowest_rank is not None:
                total += 1
                votes[m.spread.slowest_rank] += m.spread.slowest_share > _SLOWEST_ITERATIONS
    for rank, times in votes.most_common(1):
        if times > _SLOWEST_LAUNCHES * total:
            told = f"{name_of_rank(rank, result)} was the slowest in over 90 % of the iterations"
            yield Finding(code="late-rank", reason=told)


def _iteration_s(result: CaseResult, verdict: Finding) -> float | None:
    """Seconds of an iteration; of the whole time of a script, of one of its steps. None where that is not known."""
    if verdict.current is None or verdict.unit != "s":
        return None
    if verdict.name != WALL_TIME:
        return verdict.current
    step = result.launches[-1].fingerprints.get(TRAINING_STEP)
    steps = max((course.steps for course in step.course.values()), default=0) if step is not None else 0
    return verdict.current / steps if steps else None


def _latest(late_s: Sequence[float], margin_s: float) -> int | None:
    rank = max(range(len(late_s)), key=late_s.__getitem__)
    others = max((t for r, t in enumerate(late_s) if r != rank), default=late_s[rank])
    return rank if late_s[rank] - others > margin_s else None


def clocks(result: CaseResult) -> Iterator[Finding]:
    """The clocks of the GPUs, whether they moved or not, and the CPU that enqueues: they tell machine from code."""
    then, now = result.reference.gpu_norm, norm_of(result.launches)
    if then is None or now is None or now.sm_mhz is None or then.sm_mhz is None:
        return
    moved = [f"SM {movement(then.sm_mhz, now.sm_mhz, '{:.0f} MHz'.format)}"]
    if then.memory_mhz and now.memory_mhz:
        moved.append(f"memory {movement(then.memory_mhz, now.memory_mhz, '{:.0f} MHz'.format)}")
    others = []
    if then.host_cpu and now.host_cpu and then.host_cpu != now.host_cpu:
        others = [f"CPU of the host: {now.host_cpu}; at the baseline: {then.host_cpu}"]
    told = f"median clocks of the slowest GPU: {', '.join(moved)}"
    yield Finding(code="gpu-clocks", reason=told, differences=others)


def algorithm(result: CaseResult) -> Iterator[Finding]:
    """NCCL sums in an order of its own choice, by message size, topology and version, unless it is told which.

    Of two ranks there is one order, and both sides of a pair have what this run has.
    """
    if result.case.device == "cpu" or result.case.world_size < 3 or "NCCL_ALGO" in result.environment.variables:
        return
    if result.reference.kind == "paired":
        return
    for verdict in result.verdicts:
        if METRIC_KINDS[verdict.better].rule == "curve" and (
            verdict.row.may_be_confirmed or verdict.code == "numerics"
        ):
            told = f"{verdict.metric}: NCCL_ALGO is not set, so NCCL may sum in another order than at the baseline"
            advice = "set NCCL_ALGO=Ring (or Tree) and record the baseline again with it"
            yield Finding(code="free-algorithm", metric=verdict.metric, reason=told, differences=[advice])
            return


def movement(then: float, now: float, shown: Callable[[float], str]) -> str:
    change = f" ({format_change(now / then)})" if then else ""
    return f"{shown(then)} -> {shown(now)}{change}"


CAUSES: Table[str, Callable[[CaseResult], Iterable[Finding]]] = Table(
    "causes",
    {
        "communication": communication,
        "phases": phases,
        "CPU time": cpu_time,
        "host time": host_time,
        "late rank": late_rank,
        "clocks": clocks,
        "algorithm": algorithm,
    },
)
"""What looks for causes of one kind."""
