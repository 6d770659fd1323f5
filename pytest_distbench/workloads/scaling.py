"""Steps of data-parallel trainings at several world sizes: with and without communication, and their rates."""

from __future__ import annotations

import math
import statistics
import unittest
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from pytest_distbench.errors import RecordingError
from pytest_distbench.worker.arguments import check_number, check_whole, refuse
from pytest_distbench.workloads.compression import expect_support, hook_named

if TYPE_CHECKING:
    from pytest_distbench.worker.context import RankContext

_MAD_TO_STDEV = 1.4826
"""Standard deviation of a normal distribution over its median absolute deviation."""


class Rate(NamedTuple):
    """Samples per second, as tf_cnn_benchmarks has them: mean, its standard error, and jitter."""

    mean: float
    uncertainty: float
    jitter: float


def rate_of(samples: float, times: Sequence[float]) -> Rate:
    """The rate of steps, by the definitions of ``get_perf_timing`` in tf_cnn_benchmarks' ``benchmark_cnn.py``.

    The mean is samples over the mean time; the uncertainty the standard deviation of the steps' speeds over the root
    of their number; the jitter 1.4826 times the median absolute deviation of these speeds, which a few slow steps do
    not move.

    Args:
        samples: of one step.
        times: seconds of each step, above 0.
    """
    speeds = [samples / time for time in times]
    middle = statistics.median(speeds)
    return Rate(
        mean=samples / statistics.fmean(times),
        uncertainty=statistics.pstdev(speeds) / math.sqrt(len(speeds)),
        jitter=_MAD_TO_STDEV * statistics.median(abs(speed - middle) for speed in speeds),
    )


def parallel(rank: RankContext, model: nn.Module, *, compression: str = "none", **options: Any) -> nn.Module:
    """The model under DDP; or as it is where ``rank.params["communication"]`` is ``"off"``. A collective call.

    Args:
        rank: gives device and parameters.
        model: on the rank's device.
        compression: of gradients, a hook of ``workloads/compression.py``: ``none``, ``fp16``, ``bf16``. Where torch or
            the backend does not support it the test is skipped.
        options: of DistributedDataParallel.

    Raises:
        RecordingError: the communication is neither on nor off, or the hook needs more than a name.
        ConfigurationError: there is no such hook.
    """
    hook = hook_named(compression)
    if hook.takes_rank:
        refuse("parallel(...)", "compression to be a hook without settings, such as fp16", compression)
    if not has_communication(rank):
        return model
    expect_support(rank, compression)
    made = DistributedDataParallel(model, **options)
    try:
        hook.register(made, 1)
    except TypeError as error:  # what DDP refuses a hook with
        raise unittest.SkipTest(f"{compression}: {error}") from None
    return made


def has_communication(rank: RankContext) -> bool:
    """Whether ``rank.params["communication"]`` is ``"on"``, as it is where nobody says.

    Raises:
        RecordingError: it is neither on nor off.
    """
    wanted = rank.params.get("communication", "on")
    if wanted not in ("on", "off"):
        refuse("rank.params", "communication to be 'on' or 'off'", wanted)
    return bool(wanted == "on")


def record_rate(rank: RankContext, *, samples: float, loop: str = "step") -> None:
    """Record how many samples per second all ranks together train on, and what they send for it. A collective call.

    ``samples_per_second`` is judged: a series, one value per timed iteration of the loop, of the slowest rank; that of
    the launch is of the fast side, as of all clocks. Beside it ``samples_per_second_mean``, ``..._uncertainty`` and
    ``..._jitter``, see :func:`rate_of`; and with a fingerprint ``collectives`` and ``sent_bytes`` of a step, of the
    rank that has most, which are exact. Facts of the rate are the layout (``nodes``, ``ranks_per_node``) and the
    ``threads`` of each rank. At the point of the loop, after it.

    Args:
        rank: has run the loop.
        samples: of all ranks together in one iteration.
        loop: name of a loop of ``rank.timed``.

    Raises:
        RecordingError: the samples are no number above 0, or there is no such loop.
    """
    call = "record_rate(...)"
    if check_number(call, "samples", samples) <= 0:
        refuse(call, "samples above 0", samples)
    key = rank.point_key(loop)
    clocks = {rank.point_key(o.name): o.values for o in rank.notebook.observations if o.companions and o.is_series}
    if key not in clocks:
        raise RecordingError(
            f"{call}: no loop {key!r} of rank.timed has ended; there are {', '.join(clocks) or 'none'}"
        )
    if rank.only_structure:
        return
    times = rank.max_over_ranks(clocks[key])
    nodes, local = (int(most) + 1 for most in rank.max_over_ranks([rank.node, rank.local_rank]))
    facts = {"nodes": nodes, "ranks_per_node": local, "threads": torch.get_num_threads()}
    speeds = [samples / time for time in times]
    rank.record("samples_per_second", speeds, unit="samples/s", better="higher", facts=facts)
    for name, value in rate_of(samples, times)._asdict().items():
        rank.record(f"samples_per_second_{name}", value, unit="samples/s")
    _record_what_is_sent(rank, key)


def batch_of(rank: RankContext) -> int:
    """Samples of each rank in a step: ``rank.params["batch"]``.

    Raises:
        RecordingError: it is no whole number above 0.
    """
    return check_whole("rank.params", "batch", rank.params.get("batch"), least=1)


def _record_what_is_sent(rank: RankContext, key: str) -> None:
    """Of the iteration that was described; nothing where torch did not record it."""
    fingerprint = rank.watch.found.get(key)
    if fingerprint is None or fingerprint.missing:
        return
    rows = fingerprint.collectives
    rank.record("collectives", sum(row.count for row in rows), better="exact", reduce="max")
    sent = sum(row.message_bytes * row.count for row in rows)
    rank.record("sent_bytes", sent, unit="B", better="exact", reduce="max")
