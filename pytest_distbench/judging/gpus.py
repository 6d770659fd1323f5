"""Was it the code or the GPU? Whether GPUs were held back more than when the baseline was taken. Pure, no I/O.

A slowdown that was measured on such GPUs is *inconclusive*. Power caps hold back most trainings on most GPUs, so what
counts is what was worse than at the baseline; and one launch of several does not count.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

from pytest_distbench.records.environment import GpuNorm, GpuWitness
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.summaries import median

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
        return "kernels came through MPS (nvidia-cuda-mps-server), at the baseline they did not"
    then = then or GpuNorm()
    watched = [launch.gpu_witnesses for launch in launches if launch.gpu_witnesses]
    if shared := _sharers(watched):
        return shared
    if _is_lower(now.power_limit_w, then.power_limit_w, _ALIKE_W):
        return f"the power limit is {now.power_limit_w:.0f} W, at the baseline it was {then.power_limit_w:.0f} W"
    if now.sm_limit_mhz is not None and _is_lower(now.sm_limit_mhz, then.sm_limit_mhz or then.sm_mhz, _ALIKE_MHZ):
        before = f"{then.sm_limit_mhz:.0f} MHz" if then.sm_limit_mhz is not None else "free"
        return f"the SM clock is set to {now.sm_limit_mhz:.0f} MHz, at the baseline it was {before}"
    for name, share in sorted(now.held.items(), key=lambda item: (item[0] in ORDINARY, -item[1])):
        before_share = then.held.get(name, 0.0)
        if share <= before_share + ORDINARY.get(name, SHARE):
            continue
        if name in ORDINARY and not _is_slower(now.sm_mhz, then.sm_mhz):
            continue
        gpu = max((gpu for gpus in watched for gpu in gpus), key=lambda gpu: gpu.held.get(name, 0.0))
        return f"{gpu.label} was held down by {name} for {share:.0%} of the time{_clocks(then, now)}"
    return ""


def _sharers(watched: Sequence[Sequence[GpuWitness]]) -> str:
    shared = [next(gpu for gpu in gpus if gpu.others) for gpus in watched if any(gpu.others for gpu in gpus)]
    if 2 * len(shared) < len(watched) or not shared:
        return ""
    return f"{shared[-1].label} was shared with {', '.join(shared[-1].others)}"


def _clocks(then: GpuNorm, now: GpuNorm) -> str:
    if now.sm_mhz is None or then.sm_mhz is None:
        return ""
    return f": {now.sm_mhz:.0f} MHz, at the baseline {then.sm_mhz:.0f} MHz"


def _is_lower(now: float | None, then: float | None, alike: float) -> bool:
    return now is not None and then is not None and now < then - alike


def _is_slower(now: float | None, then: float | None) -> bool:
    return now is None or then is None or now < SLOWER_CLOCK * then
