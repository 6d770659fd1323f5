"""The rate of a training, and what it was held up by: the wait for its input, and how busy CPUs and GPU were."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from pytest_distbench.records.bound_text import BoundValue
from pytest_distbench.records.metric import TOLD
from pytest_distbench.records.rate import RATE, SAMPLES
from pytest_distbench.worker.arguments import check_metric, check_whole, refuse
from pytest_distbench.worker.load import busy_s, usable_cpus
from pytest_distbench.workloads.inputs import Batches
from pytest_distbench.workloads.scaling import facts_of_rate

if TYPE_CHECKING:
    from pytest_distbench.worker.context import RankContext


def record_input_rate(
    rank: RankContext,
    inputs: Batches,
    step: Callable[[], object],
    *,
    steps: int,
    expected: BoundValue | None = None,
    of: str = "step",
) -> None:
    """Take steps in one breath, and record ``samples_per_second`` of all ranks, which may not fall. A collective call.

    No barrier and no phase is between the steps, in which a loader would catch up. The batches that lie ready when it
    begins are used up before, unmeasured. Beside the rate stand, of the same steps and not judged:

    - ``load_share``: of the time, what the rank that waited most spent in ``next(inputs)``. On CUDA the host may wait
      there while its device still computes.
    - ``cpu_utilisation``: share of the CPUs that ranks may use that was busy, with whatever anybody computed on them.
    - ``gpu_utilisation``: share of the driver's last sampling period (at most a second) in which a kernel ran, as
      ``nvidia-smi`` shows it, of the least busy GPU; where there is one, and NVML tells.

    Args:
        rank: gives world size, device and clock.
        inputs: that the step takes its batches from.
        step: takes one step.
        steps: at least 1.
        expected: the rate that the training should have at least: a bound, which needs no baseline (docs/bounds.md). A
            rate that is beyond it is told with the wait for the input, and how busy rank 0's CPUs and GPU were.
        of: the loop of these steps that was timed before, which the fixture ``scaling`` compares.

    Raises:
        RecordingError: an argument is not what is wanted.
    """
    call = "record_input_rate(...)"
    steps, of = check_whole(call, "steps", steps, least=1), check_metric(call, of)
    if not isinstance(inputs, Batches):
        refuse(call, "inputs to be what batches(...) gives", inputs)
    cpus = usable_cpus()
    for _ in range(inputs.ahead):
        step()
    rank.synchronize()
    rank.barrier()
    mark, start = rank.delay.mark(), rank.own_clock()
    waited, (busy, _) = inputs.waited_s, busy_s(cpus)
    for _ in range(steps):
        step()
    gpu = _gpu_utilisation(rank)
    rank.synchronize()
    rank.delay.wait(mark)
    seconds = rank.own_clock() - start
    share = (inputs.waited_s - waited) / seconds
    num_cpus = len(cpus) if cpus is not None else os.cpu_count() or 1
    cpu = (busy_s(cpus)[0] - busy) / (seconds * num_cpus)
    longest, most = rank.max_over_ranks([seconds, share])
    rank.record(
        RATE,
        steps * inputs.batch * rank.world_size / longest,
        unit="samples/s",
        better="higher",
        identity=inputs.identity,
        facts={**inputs.facts, **facts_of_rate(rank, of), TOLD: _told(most, cpu, gpu)},
        at_least=expected,
    )
    rank.record(SAMPLES, inputs.batch, better="exact", reduce="sum", identity=inputs.identity)
    rank.record("load_share", most, identity=inputs.identity)
    rank.record("cpu_utilisation", cpu, reduce="mean", identity=inputs.identity)
    if gpu is not None:
        rank.record("gpu_utilisation", gpu, reduce="min", identity=inputs.identity)


def _told(load: float, cpu: float, gpu: float | None) -> str:
    """What is told of a rate that is below what is expected."""
    on_gpu = "" if gpu is None else f", the GPU of rank 0 {gpu:.0%}"
    return f"a rank waited for its input {load:.0%} of the time; the CPUs were {cpu:.0%} busy{on_gpu}"


def _gpu_utilisation(rank: RankContext) -> float | None:
    """Of the rank's GPU, 0 to 1; None where there is none, or nobody can say."""
    if rank.device.type != "cuda":
        return None
    try:
        return torch.cuda.utilization(rank.device) / 100
    except Exception:  # noqa: BLE001 a driver or a slice without an answer, whose errors are of a module that may be absent
        return None
