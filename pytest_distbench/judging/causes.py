"""What may explain a regression: fingerprint, sizes, phases, who spent the time, a late rank, clocks. Pure.

Each cause is a record of what moved, from what to what. A cause explains, and is never judged.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from pytest_distbench.judging.entry import phases_of
from pytest_distbench.judging.gpus import norm_of
from pytest_distbench.judging.judgement import severity
from pytest_distbench.judging.links import Slow, by_link, find_slow, outliers, times_of
from pytest_distbench.judging.metric import BUSIER_SHARE
from pytest_distbench.records.bound import tightest
from pytest_distbench.records.fingerprint import TRAINING_STEP
from pytest_distbench.records.gpu import GpuNorm
from pytest_distbench.records.kinds import METRIC_KINDS
from pytest_distbench.records.link_terms import FEWEST_SIZES, LinkTerms, fit_link_terms
from pytest_distbench.records.metric import WALL_TIME
from pytest_distbench.records.run import CaseResult
from pytest_distbench.records.verdict import Verdict
from pytest_distbench.units import format_bytes

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
_SHOWN_BY_MEDIANS = 0.5
"""The CPU time is of the median launch. Where its clock shows less than this of the slowdown that was judged, on the
fast side of the launches, it does not tell where the added time went."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherFingerprint:
    """What an iteration does changed.

    Attributes:
        differences: one sentence each.
        is_slower: whether a metric regressed besides.
    """

    differences: tuple[str, ...]
    is_slower: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class CostlierSizes:
    """Of a sweep: which sizes are slower, and whether a call or a byte costs more."""

    name: str
    sizes: str
    then: LinkTerms
    now: LinkTerms


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowLinks:
    """Of a matrix of links: the ranks and the links that are slow."""

    slow: Slow
    metrics: tuple[str, ...]
    measured: int
    hosts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LongerPhase:
    """A phase that takes longer; seconds."""

    name: str
    then_s: float
    now_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuTime:
    """What the added time was spent on, told by CPU seconds of all ranks per iteration.

    Ranks that wait for their CPUs, because other processes compute on them, compute no more than before.

    Attributes:
        metric: the clock that is slower, name and point.
        then_s: CPU seconds before.
        now_s: CPU seconds now.
        spent: computing, waiting, or both.
        may_lack_cpus: some of the waiting may be for CPUs that other processes had.
    """

    metric: str
    then_s: float
    now_s: float
    spent: Literal["computing", "waiting", "both"]
    may_lack_cpus: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class HostTime:
    """On a GPU: whether the added time is the device's or the host's, told by the host's seconds of all ranks.

    Attributes:
        metric: the clock that is slower, name and point.
        then_s: the host's seconds per iteration before.
        now_s: now.
        added_by: who added the time; ``both`` where that is not clear.
    """

    metric: str
    then_s: float
    now_s: float
    added_by: Literal["host", "device", "both"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LateRank:
    """A rank that comes late to the collectives of iterations, and the others wait for it."""

    rank: int
    metric: str
    """Whose iterations they are; ``optimizer_step``: the steps of a script."""
    late_s: float
    hosts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowestRank:
    """A rank whose own clock was the slowest in nearly all iterations."""

    rank: int
    hosts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Clocks:
    """The clocks of the GPUs, before and now, whether they moved or not, and the CPU that enqueues for them.

    They tell the machine from the code.
    """

    then: GpuNorm
    now: GpuNorm


@dataclass(frozen=True, slots=True, kw_only=True)
class FreeAlgorithm:
    """A curve departed on several GPUs, and NCCL was free to choose how it sums."""

    metric: str


Cause = (
    OtherFingerprint
    | CostlierSizes
    | SlowLinks
    | LongerPhase
    | CpuTime
    | HostTime
    | LateRank
    | SlowestRank
    | Clocks
    | FreeAlgorithm
)


def find_causes(result: CaseResult) -> list[Cause]:
    """What stands out, the most telling first; nothing where nothing does."""
    return [
        *_fingerprints(result),
        *_sizes(result),
        *_links(result),
        *_phases(result),
        *(_host_time(result) if result.case.device == "cuda" else _cpu_time(result)),
        *_stragglers(result),
        *_clocks(result),
        *_algorithm(result),
    ]


def _hosts(result: CaseResult) -> tuple[str, ...]:
    """Where each rank lived; empty: all on one host."""
    return next((tuple(launch.hosts) for launch in reversed(result.launches) if launch.hosts), ())


def _regressions(result: CaseResult) -> list[Verdict]:
    """What is worse than its baseline or its bound, the worst first."""
    return sorted((v for v in result.verdicts if v.kind in ("regressed", "beyond")), key=severity, reverse=True)


def _fingerprints(result: CaseResult) -> Iterator[OtherFingerprint]:
    is_slower = bool(_regressions(result))
    for verdict in result.verdicts:
        if verdict.kind == "changed":
            yield OtherFingerprint(differences=tuple(verdict.differences), is_slower=is_slower)


def _sizes(result: CaseResult) -> Iterator[CostlierSizes]:
    sweeps: dict[str, list[Verdict]] = {}
    for verdict in result.verdicts:
        if set(verdict.at) == {"message_bytes"} and verdict.unit == "s" and verdict.current and verdict.baseline:
            sweeps.setdefault(verdict.name, []).append(verdict)
    for name, verdicts in sweeps.items():
        hit = [_size(v) for v in verdicts if v.kind == "regressed"]
        if hit and len(verdicts) >= FEWEST_SIZES:
            yield CostlierSizes(
                name=name,
                sizes=which(hit, [_size(v) for v in verdicts]),
                then=fit_link_terms({_size(v): v.baseline or 0.0 for v in verdicts}),
                now=fit_link_terms({_size(v): v.current or 0.0 for v in verdicts}),
            )


def _size(verdict: Verdict) -> int:
    return int(verdict.at["message_bytes"])


def _links(result: CaseResult) -> Iterator[SlowLinks]:
    """From the links that regressed and, where the imbalance is beyond its bound, from those that are beyond it too."""
    matrices = by_link(result.verdicts)
    bounds = {
        str(v.at["of"]): tightest(v.bounds, "most") for v in _regressions(result) if v.name == "imbalance" and v.at
    }
    found: dict[Slow, list[str]] = {}
    for name, verdicts in matrices.items():
        slow = {link for link, verdict in verdicts.items() if verdict.kind in ("regressed", "beyond")}
        if (bound := bounds.get(name)) is not None:
            slow |= set(outliers(times_of(verdicts), bound))
        if slow:
            found.setdefault(find_slow(slow, list(verdicts)), []).append(name)
    for slow_ones, names in found.items():
        measured = max(len(matrices[name]) for name in names)
        yield SlowLinks(slow=slow_ones, metrics=tuple(names), measured=measured, hosts=_hosts(result))


def _phases(result: CaseResult) -> Iterator[LongerPhase]:
    """The phases that take longer, by the time they add."""
    if not _regressions(result):
        return
    both = [
        LongerPhase(name=name, then_s=result.reference.phases[name], now_s=now)
        for name, now in phases_of(result.launches).items()
        if name in result.reference.phases
    ]
    longer = [phase for phase in both if phase.now_s > phase.then_s * (1 + _PHASE_CHANGE)]
    yield from sorted(longer, key=lambda phase: phase.then_s - phase.now_s)[:_MOST_PHASES]


def _cpu_time(result: CaseResult) -> Iterator[CpuTime]:
    """Whether the added time was spent computing. CPU time is summed over ranks, the clock is the slowest rank's."""
    for verdict in _regressions(result):
        added_s = _added_s(verdict)
        if added_s is None or "cpu_s" not in verdict.companions:
            continue
        then, now = verdict.companions["cpu_s"]
        share = (now - then) / result.case.world_size / added_s
        spent: Literal["computing", "waiting", "both"] = "waiting" if share <= _WAITS else "both"
        if share >= _COMPUTES:
            spent = "computing"
        may_lack = spent != "computing" and _others_computed(result)
        yield CpuTime(metric=verdict.metric, then_s=then, now_s=now, spent=spent, may_lack_cpus=may_lack)
        return


def _others_computed(result: CaseResult) -> bool:
    """Whether other processes had a share of the machine in the median launch, or made the ranks' work take longer."""
    used = [launch.foreign_cores for launch in result.launches if launch.foreign_cores is not None]
    crowding = [launch.crowding for launch in result.launches if launch.crowding is not None]
    is_shared = bool(used) and statistics.median(used) > BUSIER_SHARE * result.environment.cores
    return is_shared or (bool(crowding) and statistics.median(crowding) > 1 / (1 - BUSIER_SHARE))


def _host_time(result: CaseResult) -> Iterator[HostTime]:
    """Who added the time. The CPU time of a GPU's rank says nothing of it: a host that waits for an event spins."""
    world_size = result.case.world_size
    for verdict in _regressions(result):
        added_s = _added_s(verdict)
        if added_s is None or "host_s" not in verdict.companions or verdict.current is None:
            continue
        then, now = verdict.companions["host_s"]
        share = (now - then) / world_size / added_s
        _, exposed = verdict.companions.get("exposed", (0.0, float(world_size)))
        _, lead_s = verdict.companions.get("lead_s", (0.0, 0.0))
        if share <= _WAITS or exposed / world_size < _EXPOSED:
            added_by: Literal["host", "device", "both"] = "device"
        else:
            is_ahead = lead_s / world_size >= _AHEAD * verdict.current
            added_by = "host" if share >= _COMPUTES and not is_ahead else "both"
        yield HostTime(metric=verdict.metric, then_s=then, now_s=now, added_by=added_by)
        return


def _added_s(verdict: Verdict) -> float | None:
    """Seconds by which the median launch is slower; None where it does not show what was judged."""
    if verdict.unit != "s" or not verdict.ratio or verdict.current is None or not verdict.baseline:
        return None
    added = verdict.current - verdict.baseline
    return added if added > 0 and added >= _SHOWN_BY_MEDIANS * (verdict.ratio - 1) * verdict.baseline else None


def _stragglers(result: CaseResult) -> Iterator[LateRank | SlowestRank]:
    """The rank that came late to the collectives, or else the one whose clock was the slowest."""
    failed = _regressions(result)
    for verdict in failed:
        iteration_s = _iteration_s(result, verdict)
        known = any(verdict.metric in launch.late_s for launch in result.launches)
        key = verdict.metric if known else TRAINING_STEP  # which all of a script's clocks are of
        late = [launch.late_s[key] for launch in result.launches if key in launch.late_s]
        if not late or iteration_s is None:
            continue
        rank, times = Counter(_latest(launch, _LATE_SHARE * iteration_s) for launch in late).most_common(1)[0]
        if rank is not None and times >= _LATE_LAUNCHES * len(late):
            typical = statistics.median(launch[rank] for launch in late)
            yield LateRank(rank=rank, metric=key, late_s=typical, hosts=_hosts(result))
            return
    names = {v.metric for v in failed}
    votes: Counter[int] = Counter()
    total = 0
    for launch in result.launches:
        for m in launch.measurements:
            if m.key in names and m.summary is not None and m.summary.slowest_rank is not None:
                total += 1
                votes[m.summary.slowest_rank] += m.summary.slowest_share > _SLOWEST_ITERATIONS
    for rank, times in votes.most_common(1):
        if times > _SLOWEST_LAUNCHES * total:
            yield SlowestRank(rank=rank, hosts=_hosts(result))


def _iteration_s(result: CaseResult, verdict: Verdict) -> float | None:
    """Seconds of an iteration; of the whole time of a script, of one of its steps. None where that is not known."""
    if verdict.current is None or verdict.unit != "s":
        return None
    if verdict.name != WALL_TIME:
        return verdict.current
    step = result.launches[-1].fingerprints.get(TRAINING_STEP)
    steps = max((course.steps for course in step.course.values()), default=0) if step is not None else 0
    return verdict.current / steps if steps else None


def _latest(late_s: Sequence[float], margin_s: float) -> int | None:
    """The rank that came later than all others by a margin, in one launch."""
    rank = max(range(len(late_s)), key=late_s.__getitem__)
    others = max((t for r, t in enumerate(late_s) if r != rank), default=late_s[rank])
    return rank if late_s[rank] - others > margin_s else None


def _clocks(result: CaseResult) -> Iterator[Clocks]:
    then, now = result.reference.gpu_norm, norm_of(result.launches)
    if then is not None and now is not None and now.sm_mhz is not None and then.sm_mhz is not None:
        yield Clocks(then=then, now=now)


def _algorithm(result: CaseResult) -> Iterator[FreeAlgorithm]:
    """NCCL sums in an order of its own choice, by message size, topology and version, unless it is told which.

    Of two ranks there is one order, and both sides of a pair have what this run has.
    """
    if result.case.device == "cpu" or result.case.world_size < 3 or "NCCL_ALGO" in result.environment.variables:
        return
    if result.reference.kind == "paired":
        return
    for verdict in result.verdicts:
        if METRIC_KINDS[verdict.better].rule == "curve" and verdict.kind in ("regressed", "drifted"):
            yield FreeAlgorithm(metric=verdict.metric)
            return


def which(hit: Sequence[int], sizes: Sequence[int]) -> str:
    """Message sizes that are hit, in words: ``from 64 KiB up``, ``at 3 of 25 sizes, first at 4 KiB``."""
    inside = sorted(sizes)
    first, last = inside.index(min(hit)), inside.index(max(hit))
    if len(hit) == len(inside):
        return f"at all {len(inside)} sizes"
    if len(hit) == 1:
        return f"at {format_bytes(hit[0])} only"
    if last - first + 1 > len(hit):
        return f"at {len(hit)} of {len(inside)} sizes, first at {format_bytes(inside[first])}"
    if last == len(inside) - 1:
        return f"from {format_bytes(inside[first])} up"
    if first == 0:
        return f"up to {format_bytes(inside[last])}"
    return f"from {format_bytes(inside[first])} to {format_bytes(inside[last])}"
