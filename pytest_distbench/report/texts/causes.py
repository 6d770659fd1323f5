"""Causes of a regression as lines."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence

from pytest_distbench.judging.causes import (
    Cause,
    Clocks,
    CostlierSizes,
    CpuTime,
    FreeAlgorithm,
    HostTime,
    LateRank,
    LongerPhase,
    OtherFingerprint,
    SlowestRank,
    SlowLinks,
    find_causes,
)
from pytest_distbench.judging.links import Link, Slow
from pytest_distbench.records.fingerprint import TRAINING_STEP
from pytest_distbench.records.metric import WALL_TIME, metric_name
from pytest_distbench.records.run import CaseResult
from pytest_distbench.units import format_change, format_seconds

_MOST_DIFFERENCES = 8
_ADDED = {
    "host": "the added time is the host's: it enqueues more slowly, or waits for the device (.item(), .cpu(), print)",
    "device": "the added time is the device's",
    "both": "the host waits for the device, or the device for the host: a profile tells",
}
_SPENT = {
    "computing": "the added time is computing",
    "waiting": "the added time is waiting, not computing",
    "both": "the added time is partly computing, partly waiting",
}
_FOR_CPUS = ", for a CPU perhaps: other processes computed meanwhile"


def cause_lines(result: CaseResult) -> list[str]:
    """One line each, and an empty one; none where nothing stands out."""
    lines = [line for cause in find_causes(result) for line in describe(cause)]
    return [*lines, ""] if lines else []


@functools.singledispatch
def describe(cause: Cause) -> Iterator[str]:
    """A cause as lines."""
    raise TypeError(f"no words for a {type(cause).__name__}")


@describe.register
def _(cause: OtherFingerprint) -> Iterator[str]:
    yield "likely cause: what an iteration does changed" if cause.is_slower else "what an iteration does changed"
    yield from (f"  {line}" for line in cause.differences[:_MOST_DIFFERENCES])
    if (more := len(cause.differences) - _MOST_DIFFERENCES) > 0:
        yield f"  and {more} more"


@describe.register
def _(cause: CostlierSizes) -> Iterator[str]:
    yield f"{cause.name} is slower {cause.sizes}"
    latency = _movement(cause.then.latency_s, cause.now.latency_s, format_seconds)
    bandwidth = _movement(cause.then.s_per_byte, cause.now.s_per_byte, lambda rate: f"{rate * 1e9:.3g} s/GB")
    yield f"  latency term {latency}, bandwidth term {bandwidth}"


@describe.register
def _(cause: SlowLinks) -> Iterator[str]:
    named = _slow_ranks(cause.slow, cause.hosts)
    if len(cause.slow.links) == cause.measured > 1:
        named.append(f"all {cause.measured} links are slow: no single rank, no single pair")
    else:
        named += [f"{_link(link, cause.hosts)}: this link is slow" for link in cause.slow.links]
    others = "" if cause.measured == 1 else f" of {cause.measured} links"
    yield from (f"{line} ({' and '.join(cause.metrics)}{others})" for line in named[:_MOST_DIFFERENCES])
    if (more := len(named) - _MOST_DIFFERENCES) > 0:
        yield f"  and {more} more links"


@describe.register
def _(cause: LongerPhase) -> Iterator[str]:
    yield f"phase {cause.name}: {_movement(cause.then_s, cause.now_s, format_seconds)}"


def _per_iteration(metric: str) -> str:
    """Of a script's or a command's whole time there are no iterations."""
    return f" in {metric}" if metric_name(metric) == WALL_TIME else f" per iteration of {metric}"


@describe.register
def _(cause: CpuTime) -> Iterator[str]:
    moved = _movement(cause.then_s, cause.now_s, format_seconds)
    spent = _SPENT[cause.spent] + _FOR_CPUS * cause.may_lack_cpus
    yield f"CPU time of all ranks{_per_iteration(cause.metric)}: {moved}: {spent}"


@describe.register
def _(cause: HostTime) -> Iterator[str]:
    moved = _movement(cause.then_s, cause.now_s, format_seconds)
    yield f"host's time of all ranks per iteration of {cause.metric}: {moved}: {_ADDED[cause.added_by]}"
    yield "  CPU time is no evidence here: a host that waits for an event of the device spins"


@describe.register
def _(cause: LateRank) -> Iterator[str]:
    who, late = _rank(cause.rank, cause.hosts), format_seconds(cause.late_s)
    of = "a training step" if cause.metric == TRAINING_STEP else cause.metric
    yield f"{who} comes {late} late to the collectives of {of}, the others wait for it"


@describe.register
def _(cause: SlowestRank) -> Iterator[str]:
    yield f"{_rank(cause.rank, cause.hosts)} was the slowest in over 90 % of the iterations"


@describe.register
def _(cause: Clocks) -> Iterator[str]:
    moved = [f"SM {_movement(cause.then.sm_mhz or 0.0, cause.now.sm_mhz or 0.0, _megahertz)}"]
    if cause.then.memory_mhz and cause.now.memory_mhz:
        moved.append(f"memory {_movement(cause.then.memory_mhz, cause.now.memory_mhz, _megahertz)}")
    yield f"median clocks of the slowest GPU: {', '.join(moved)}"
    if cause.then.host_cpu and cause.now.host_cpu and cause.then.host_cpu != cause.now.host_cpu:
        yield f"  their host's CPU is {cause.now.host_cpu}, at the baseline it was {cause.then.host_cpu}"


@describe.register
def _(cause: FreeAlgorithm) -> Iterator[str]:
    yield f"{cause.metric}: NCCL_ALGO is not set, so NCCL may sum in another order than it did at the baseline"
    yield "  NCCL_ALGO=Ring (or Tree) fixes it; record the baseline again under it"


def _slow_ranks(slow: Slow, hosts: Sequence[str]) -> list[str]:
    return [
        f"{_rank(rank, hosts)}: every link {way} it is slow"
        for ranks, way in ((slow.ranks, "of"), (slow.senders, "from"), (slow.receivers, "to"))
        for rank in ranks
    ]


def _rank(rank: int, hosts: Sequence[str]) -> str:
    return f"rank {rank} ({hosts[rank]})" if hosts else f"rank {rank}"


def _link(link: Link, hosts: Sequence[str]) -> str:
    where = f" ({hosts[link.source]} to {hosts[link.target]})" if hosts else ""
    return f"rank {link.source} to rank {link.target}{where}"


def _megahertz(clock: float) -> str:
    return f"{clock:.0f} MHz"


def _movement(then: float, now: float, shown: Callable[[float], str]) -> str:
    change = f" ({format_change(now / then)})" if then else ""
    return f"{shown(then)} -> {shown(now)}{change}"
