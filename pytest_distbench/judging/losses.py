"""What makes numbers incomparable: some are measured no more, or GPUs were held back more than before. Pure, no I/O.

A number that is not measured any more cannot regress, so that its absence is the regression: *lost*. Not lost is what
the user left out: sizes above ``--distbench-max-message``, metrics that ``metrics=`` does not list, tests that were not
selected. Neither is what this launch could not have: sizes that there was no memory for, the time to a goal that was
missed (which is red by its steps), and a clock of a change of membership that did not come about this time.

A slowdown that was measured on GPUs that were held back is *inconclusive*. Power caps hold back most trainings on most
GPUs, so what counts is what was worse than at the baseline; and one launch of several does not count.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Mapping, Sequence

from pytest_distbench.judging import golden_curve
from pytest_distbench.judging.terms import Terms
from pytest_distbench.records.environment import GpuNorm, GpuWitness
from pytest_distbench.records.kinds import METRIC_KINDS, Reduce
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.metric import PEAK_MEMORY, Sample, metric_name
from pytest_distbench.records.run import Finding
from pytest_distbench.records.summaries import median
from pytest_distbench.units import format_quantity

FEWEST_VALUES = 0.5
"""A series of fewer values than this share of the baseline's has lost some: loops that end by time vary by less."""

_MESSAGE = re.compile(r"message_bytes=(\d+)")

Found = Mapping[str, Sequence[Sample]]
"""Metric key -> its measurement in each launch."""


def message_bytes(key: str) -> int | None:
    found = _MESSAGE.search(key)
    return None if found is None else int(found[1])


def lost_part(baseline: Sequence[Sample], current: Sequence[Sample]) -> str:
    """What is measured no more of a metric that is there: ``recorded by 1 rank, by 2 before``; empty: nothing.

    What a baseline from before these were noted does not hold is not known to be lost.
    """
    first, stored = current[0], baseline[0]
    if first.name == PEAK_MEMORY:
        return ""  # nobody asked for it
    if stored.is_judged and not first.is_judged:
        return f"recorded as {first.better!r} now, which is not judged; the baseline has {stored.better!r}"
    if (stored.unit, stored.better) != (first.unit, first.better):
        then, now = (f"{m.better!r} in {m.unit or 'no unit'}" for m in (stored, first))
        return f"recorded as {now} now, as {then} in the baseline: another number under the same name"
    ranks = min((m.ranks for m in current if m.ranks), default=0)
    if 0 < ranks < stored.ranks:
        return f"recorded by {_number(ranks, 'rank')}, by {stored.ranks} in the baseline"
    if stored.ranks and ranks and (was := reduction(stored)) != (now := reduction(first)):
        return f"reduced over the ranks by {now!r}, by {was!r} in the baseline: another number under the same name"
    kind = METRIC_KINDS[stored.better]
    whole = (
        stored.values if kind.keeps_series and golden_curve.disagreement([m.values for m in baseline]) is None else []
    )
    if (steps := min(len(m.values) for m in current)) < len(whole):
        return f"{_number(steps, 'value')} of the series; the baseline has {len(whole)}"
    values, before = min(map(series_length, current)), series_length(stored)
    if values < FEWEST_VALUES * before:
        return f"{_number(values, 'value')} in a launch; the baseline has {before}"
    return ""


def more_than_stored(baseline: Sequence[Sample], current: Sequence[Sample]) -> str:
    """Why an improvement may be another number: so many values more in the series; empty: there are not."""
    values, before = min(map(series_length, current)), series_length(baseline[0])
    if before and values > before / FEWEST_VALUES:
        return f"better, but made of {values} values in a launch; the baseline has {before}: is it the same number?"
    return ""


def why_nothing_was_timed(measurement: Sample) -> str:
    """Why a clock that reads 0 says nothing; empty: it reads more, or this is no clock."""
    beside = measurement.companions
    if measurement.unit != "s" or measurement.value != 0 or "cpu_s" not in beside:
        return ""
    if "host_s" not in beside:
        return "the timing is 0 s: nothing was timed"
    host = format_quantity(beside["host_s"], "s")
    return (
        "the timing is 0 s: nothing ran on the device in this loop, or only on streams that the current one does not "
        f"wait for; the hosts of all ranks took {host} per iteration"
    )


def most_of_ranks(launches: Sequence[Sample]) -> list[float]:
    """What the ranks needed at most in any of the launches, the hungriest first; empty where they do not say it."""
    ordered = [sorted(m.values, reverse=True) for m in launches]
    return [max(place) for place in zip(*ordered, strict=True)] if len({len(o) for o in ordered}) == 1 else []


def series_length(measurement: Sample) -> int:
    """Values in the series of a launch; 0 where it is no series, or its loop has a clock and chooses how often it runs.

    A training that reaches its goal earlier has fewer steps, and a sweep fewer iterations on a busy machine.
    """
    is_of_clock = bool(measurement.companions) or measurement.is_phase
    return 0 if measurement.spread is None or is_of_clock else measurement.spread.n


def reduction(metric: Sample) -> Reduce:
    return metric.reduce or METRIC_KINDS[metric.better].reduce


def missing_finding(
    key: str,
    stored: Sequence[Sample],
    lacks: str,
    *,
    found: Found,
    launches: Sequence[LaunchRecord],
    left_out: str = "",
) -> Finding:
    why = left_out
    steps = key.replace("time_to_", "steps_to_", 1)
    if not why and metric_name(key).startswith("time_to_") and any(m.value is None for m in found.get(steps, ())):
        why = "the goal was missed, so there is no time to it"
    elif not why and stored[0].is_noisy and "[" in key and any(launch.events for launch in launches):
        why = "what it times did not happen in this run"
    return Finding(
        metric=key,
        code="unavailable" if why else "not-measured",
        unit=stored[0].unit,
        better=stored[0].better,
        baseline=median(m.value for m in stored),
        baseline_launches=len(stored),
        reason=why or lacks,
    )


def left_out(keys: Sequence[str], found: Found, terms: Terms) -> dict[str, str]:
    """Which of these keys the run was told to leave out, or had no memory for, and why."""
    reasons: dict[str, str] = {}
    largest = [m.value for found_ones in found.values() for m in found_ones if m.name == "largest_message" and m.value]
    for key in keys:
        size = message_bytes(key)
        if size is None or key in found:
            continue
        if terms.largest_message is not None and size > terms.largest_message:
            reasons[key] = "left out by --distbench-max-message"
        elif largest and size > min(largest):
            reasons[key] = "not enough memory for a message of this size"
    if reasons:  # what is made of all sizes is of other sizes then
        of_all = [key for key in keys if key not in found and message_bytes(key) is None]
        reasons |= dict.fromkeys(of_all, f"not all sizes were measured: {next(iter(reasons.values()))}")
    return reasons


def _number(count: int, noun: str) -> str:
    return f"{count} {noun}{'s' * (count != 1)}"


ORDINARY = {"power cap": 0.25}
"""What holds clocks down in ordinary work too: it counts from so much more of the time on than at the baseline, and
only where the clock is lower."""
SHARE = 0.1
"""All else counts from so much more of the time on."""
SLOWER_CLOCK = 0.98
"""A median clock below this part of the baseline's is lower."""
_ALIKE_W, _ALIKE_MHZ = 1.0, 1.0


def norm_of(launches: Sequence[LaunchRecord]) -> GpuNorm | None:
    """The GPUs of the median launch, of which the slowest counts; None where nobody looked at any."""
    watched = [launch.gpu_witnesses for launch in launches if launch.gpu_witnesses]
    if not watched:
        return None
    names = sorted({name for gpus in watched for gpu in gpus for name in gpu.held})
    held = {name: statistics.median(max(gpu.held.get(name, 0.0) for gpu in gpus) for gpus in watched) for name in names}

    def slowest(of: Callable[[GpuWitness], float | None]) -> float | None:
        """Of the GPUs of a launch the least, of the launches the median, four digits."""
        middle = median(min((v for v in map(of, gpus) if v is not None), default=None) for gpus in watched)
        return None if middle is None else float(f"{middle:.4g}")

    return GpuNorm(
        sm_mhz=slowest(lambda gpu: gpu.sm_mhz),
        memory_mhz=slowest(lambda gpu: gpu.memory_mhz),
        power_limit_w=slowest(lambda gpu: gpu.power_limit_w),
        sm_limit_mhz=slowest(lambda gpu: gpu.sm_limit_mhz),
        held={name: round(share, 2) for name, share in held.items() if share >= 0.01},
        by_mps=any(gpu.by_mps for gpus in watched for gpu in gpus),
        host_cpu=next((gpu.host_cpu for gpus in watched for gpu in gpus if gpu.host_cpu), ""),
    )


def disturbance(then: GpuNorm | None, launches: Sequence[LaunchRecord]) -> str:
    """Why a slowdown may be the gpu's, in a clause; empty: nothing speaks for that."""
    now = norm_of(launches)
    if now is None:
        return ""
    if then is not None and now.by_mps and not then.by_mps:
        return "kernels ran through MPS (nvidia-cuda-mps-server); at the baseline they did not"
    then = then or GpuNorm()
    watched = [launch.gpu_witnesses for launch in launches if launch.gpu_witnesses]
    shared = [next(gpu for gpu in gpus if gpu.others) for gpus in watched if any(gpu.others for gpu in gpus)]
    if shared and 2 * len(shared) >= len(watched):
        return f"{shared[-1].label} was shared with {', '.join(shared[-1].others)}"
    if _is_lower(now.power_limit_w, then.power_limit_w, _ALIKE_W):
        return f"the power limit is {now.power_limit_w:.0f} W; at the baseline it was {then.power_limit_w:.0f} W"
    if now.sm_limit_mhz is not None and _is_lower(now.sm_limit_mhz, then.sm_limit_mhz or then.sm_mhz, _ALIKE_MHZ):
        before = f"{then.sm_limit_mhz:.0f} MHz" if then.sm_limit_mhz is not None else "free"
        return f"the SM clock is set to {now.sm_limit_mhz:.0f} MHz; at the baseline it was {before}"
    for name, share in sorted(now.held.items(), key=lambda item: (item[0] in ORDINARY, -item[1])):
        before_share = then.held.get(name, 0.0)
        if share <= before_share + ORDINARY.get(name, SHARE):
            continue
        is_slower, clocks = True, ""
        if now.sm_mhz is not None and then.sm_mhz is not None:
            is_slower = now.sm_mhz < SLOWER_CLOCK * then.sm_mhz
            clocks = f": {now.sm_mhz:.0f} MHz; at the baseline {then.sm_mhz:.0f} MHz"
        if name in ORDINARY and not is_slower:
            continue
        gpu = max((gpu for gpus in watched for gpu in gpus), key=lambda gpu: gpu.held.get(name, 0.0))
        return f"{gpu.label} was slowed down by {name} for {share:.0%} of the time{clocks}"
    return ""


def _is_lower(now: float | None, then: float | None, alike: float) -> bool:
    return now is not None and then is not None and now < then - alike
