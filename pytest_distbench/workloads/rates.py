"""The rate of a training: samples with their spread, tokens, model FLOPS, and what limited it: input, CPUs and GPU.

Model FLOPS utilisation (MFU) is the share of the devices' peak that a training uses.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import statistics
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch

from pytest_distbench.errors import RecordingError
from pytest_distbench.records.iteration import RATE, SAMPLES
from pytest_distbench.records.metric import SAID, BoundValue, Scalar
from pytest_distbench.worker.load import busy_s, usable_cpus
from pytest_distbench.worker.notebook import check_metric, check_number, check_whole, refuse
from pytest_distbench.workloads import (
    COMMUNICATION,
    RATE_COMMUNICATION,
    RATE_JITTER,
    RATE_OF,
    RATE_RANKS_PER_NODE,
    RATE_UNCERTAINTY,
)
from pytest_distbench.workloads.inputs import Batches

if TYPE_CHECKING:
    from pytest_distbench.worker.context import RankContext


MAD_TO_STDEV = 1.4826  # times the median absolute deviation of a normal distribution gives its standard deviation


def rate_of(samples: float, seconds: Sequence[float]) -> tuple[float, float | None, float | None]:
    """Mean, uncertainty and jitter of the rate of steps, from their seconds and the samples of each.

    The mean is ``samples / mean(t)``, the uncertainty ``std(samples / t) / sqrt(n)``, the jitter 1.4826 times the
    median absolute deviation of ``samples / t``. Source: ``get_perf_timing`` in tf_cnn_benchmarks' benchmark_cnn.py.
    """
    speeds = [samples / t for t in seconds]
    middle = statistics.median(speeds)
    if len(speeds) == 1:
        return middle, None, None
    jitter = MAD_TO_STDEV * statistics.median(abs(speed - middle) for speed in speeds)
    return samples / statistics.fmean(seconds), statistics.pstdev(speeds) / math.sqrt(len(speeds)), jitter


def record_rate(rank: RankContext, *, samples: int, of: str = "step") -> None:
    """Record ``samples_per_second`` of all ranks, with ``uncertainty`` and ``jitter``, from a loop's timed iterations.

    They are the sums of the ranks' own, and shown; what is judged is the time of the loop. ``samples_per_step``, of all
    ranks too, has to stay what it is.

    Args:
        rank: this process, which timed the loop.
        samples: samples that this rank trains on in an iteration; other ranks may have more or fewer.
        of: name of the loop's metric.

    Raises:
        RecordingError: no loop of that name was timed here, or samples is no whole number of at least 1.
    """
    call = "record_rate(...)"
    samples, of = check_whole(call, "samples", samples, least=1), check_metric(call, of)
    series = next((o.values for o in rank.notebook.observations if o.name == of and o.is_series), None)
    if series is None:
        raise RecordingError(f"{call}: no loop {of!r} was timed before; wanted rank.timed({of!r}, ...)")
    mean, uncertainty, jitter = rate_of(samples, series)
    rank.record(SAMPLES, samples, better="exact", reduce="sum")
    rank.record(RATE, mean, unit="samples/s", better="info", reduce="sum", facts=facts_of_rate(rank, of))
    for name, spread in {RATE_UNCERTAINTY: uncertainty, RATE_JITTER: jitter}.items():
        if spread is not None:
            rank.record(name, spread, unit="samples/s", better="info", reduce="sum")


def facts_of_rate(rank: RankContext, of: str) -> dict[str, Scalar]:
    """Facts of a rate for the table of scaling tests: its loop, and how its workers train."""
    return {
        RATE_OF: of,
        RATE_COMMUNICATION: rank.params.get("communication", COMMUNICATION[0]),
        RATE_RANKS_PER_NODE: int(os.environ.get("LOCAL_WORLD_SIZE", rank.world_size)),
    }


def record_input_rate(
    rank: RankContext,
    inputs: Batches,
    step: Callable[[], object],
    *,
    steps: int,
    expected: BoundValue | None = None,
    of: str = "step",
) -> None:
    """Take steps without a pause, and record ``samples_per_second`` of all ranks, which may not fall. Collective.

    No barrier and no phase is between the steps, in which a loader would catch up. The batches that lie ready when it
    begins are used up before, unmeasured. Recorded with the rate, for the same steps and not judged, are:

    - ``load_share``: share of the time that the rank that waited most spent in ``next(inputs)``. On CUDA the host may
      wait there while its device still computes.
    - ``cpu_utilisation``: share of the CPUs that ranks may use that was busy, with whatever anybody computed on them.
    - ``gpu_utilisation``: share of the driver's last sampling period (at most a second) in which a kernel ran, as
      ``nvidia-smi`` shows it, of the least busy GPU; if there is one, and NVML reports it.

    Args:
        rank: this process in its group.
        inputs: batches, from which ``step`` takes one.
        step: takes one training step.
        steps: number of steps, at least 1.
        expected: the rate that the training should have at least: a bound, which needs no baseline. A rate beyond it is
            reported with the wait for the input, and how busy rank 0's CPUs and GPU were.
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
    gpu = None
    if rank.device.type == "cuda":
        with contextlib.suppress(Exception):  # a driver or a slice may have no answer, or its module is absent
            gpu = torch.cuda.utilization(rank.device) / 100
    rank.synchronize()
    rank.delay.wait(mark)
    seconds = rank.own_clock() - start
    share = (inputs.waited_s - waited) / seconds
    num_cpus = len(cpus) if cpus is not None else os.cpu_count() or 1
    cpu = (busy_s(cpus)[0] - busy) / (seconds * num_cpus)
    longest, most = rank.max_over_ranks([seconds, share])
    on_gpu = "" if gpu is None else f", the GPU of rank 0 {gpu:.0%}"
    words = f"a rank waited for its input {most:.0%} of the time; the CPUs were {cpu:.0%} busy{on_gpu}"
    rank.record(
        RATE,
        steps * inputs.batch * rank.world_size / longest,
        unit="samples/s",
        better="higher",
        identity=inputs.identity,
        facts={**inputs.facts, **facts_of_rate(rank, of), SAID: words},
        at_least=expected,
    )
    rank.record(SAMPLES, inputs.batch, better="exact", reduce="sum", identity=inputs.identity)
    rank.record("load_share", most, identity=inputs.identity)
    rank.record("cpu_utilisation", cpu, reduce="mean", identity=inputs.identity)
    if gpu is not None:
        rank.record("gpu_utilisation", gpu, reduce="min", identity=inputs.identity)


PEAKS: tuple[tuple[str, float], ...] = (
    (r"GB200|GB300", 2500e12),
    (r"B200|B300( SXM6 AC)?", 2250e12),
    (r"(H100|H200|H800) NVL", 835e12),
    (r"(H100|H800) PCIe", 756e12),
    (r"H100 80GB HBM3|H200|H800|GH200 \d+GB?( HBM3e)?", 989e12),
    (r"H20(-3e)?", 148e12),
    (r"(A100|A800)(-SXM4-[48]0GB|-PCIE-[48]0GB| 80GB PCIe)", 312e12),
    (r"A30", 165e12),
    (r"A40", 149.7e12),
    (r"A10G", 70e12),
    (r"A10", 125e12),
    (r"L40S", 362e12),
    (r"L40", 181e12),
    (r"L4", 121e12),
    (r"RTX PRO 6000 Blackwell Workstation Edition", 503.8e12),
    (r"RTX PRO 6000 Blackwell Max-Q Workstation Edition", 438.9e12),
    (r"RTX 6000 Ada Generation", 364.2e12),
    (r"GeForce RTX 5090", 209.5e12),
    (r"GeForce RTX 4090", 165.2e12),
    (r"GeForce RTX 3090", 71e12),
    (r"V100S-PCIE-32GB", 130e12),
    (r"V100-PCIE-(16|32)GB", 112e12),
    (r"V100-SXM2-(16|32)GB", 125e12),
    (r"T4", 65e12),
)
"""Pattern of a product's whole name -> dense BF16 FLOP/s of its tensor cores with FP32 accumulation (V100 and T4:
FP16). Source: NVIDIA's data sheets, halved if they count sparsity; for GB200 and GB300 the NVL72's divided by 72, for
B200 and B300 the HGX's divided by 8, for RTX cards the tables at the end of their architectures' white papers. A name
that goes on is another product: a laptop's, a ``Ti``, a MIG slice."""

_MAKER = r"(NVIDIA )?(Tesla )?"


def peak_flops(device_name: str) -> float:
    """Peak of one device in FLOP/s, see :data:`PEAKS`.

    Args:
        device_name: name of the GPU, as ``torch.cuda.get_device_name`` gives it.

    Raises:
        RecordingError: it is in no row of the table.
    """
    for pattern, peak in PEAKS:
        if re.fullmatch(rf"{_MAKER}({pattern})", device_name):
            return peak
    raise RecordingError(f"the peak of {device_name!r} is not known: give peak= in FLOP/s, from its data sheet")


def transformer_flops_per_token(parameters: int, *, layers: int, width: int, sequence: int) -> float:
    """FLOPs of a training per token, forward and backward: ``6 N + 12 L d T``.

    Source: PaLM, arXiv 2204.02311, appendix B. Recomputed activations do not count.

    Args:
        parameters: number N of the model's parameters without embeddings.
        layers: number of layers L.
        width: width d, heads times their size.
        sequence: tokens T of one sequence.

    Raises:
        RecordingError: no whole numbers of at least 1.
    """
    call = "transformer_flops_per_token(...)"
    n = check_whole(call, "parameters", parameters, least=1)
    attention = 12
    for name, value in (("layers", layers), ("width", width), ("sequence", sequence)):
        attention *= check_whole(call, name, value, least=1)
    return 6.0 * n + attention


def record_throughput(
    rank: RankContext, *, tokens: float, seconds: float, flops_per_token: float | None = None, peak: float | None = None
) -> None:
    """Record ``tokens_per_second``, and ``mfu`` (0 to 1) if FLOPs per token are given and the peak is known.

    Both are judged: they may not fall. Of the ranks' numbers the smallest counts.

    Args:
        rank: this process in its group.
        tokens: number of tokens that all ranks together have trained on.
        seconds: seconds that this rank needed for them, until its device was done.
        flops_per_token: FLOPs of a training per token, as :func:`transformer_flops_per_token` gives them, or None.
        peak: peak of one device in FLOP/s, by default :func:`peak_flops`. On a CPU there is no ``mfu`` without it.

    Raises:
        RecordingError: no numbers above 0, a GPU whose peak is not known, or more than the peak.
    """
    call = "record_throughput(...)"
    rate = _positive(call, "tokens", tokens) / _positive(call, "seconds", seconds)
    rank.record("tokens_per_second", rate, unit="tokens/s", better="higher")
    if flops_per_token is None:
        return
    if peak is None and rank.device.type == "cuda":
        peak = peak_flops(torch.cuda.get_device_name(rank.device))
    if peak is not None:
        used = rate * _positive(call, "flops_per_token", flops_per_token)
        mfu = used / (rank.world_size * _positive(call, "peak", peak))
        if mfu > 1:
            raise RecordingError(
                f"{call}: an mfu of {mfu:.3g}: {used / rank.world_size:.3g} FLOP/s on each device is more than its "
                f"peak, {peak:.3g}. peak= is in FLOP/s (989e12 for 989 TFLOP/s), flops_per_token= in FLOP, and tokens= "
                "and seconds= are of the same steps"
            )
        rank.record("mfu", mfu, better="higher")


def _positive(call: str, name: str, value: float) -> float:
    number = check_number(call, name, value)
    if number <= 0:
        refuse(call, f"{name} above 0", value)
    return number
