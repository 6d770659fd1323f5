"""What trainings of a scaling test share: the model with or without communication, and the rate with its spread."""

from __future__ import annotations

import math
import os
import statistics
import unittest
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from pytest_distbench.errors import RecordingError, show
from pytest_distbench.records.iteration import (
    COMMUNICATION,
    RATE,
    RATE_COMMUNICATION,
    RATE_JITTER,
    RATE_OF,
    RATE_RANKS_PER_NODE,
    RATE_UNCERTAINTY,
    SAMPLES,
)
from pytest_distbench.records.metric import Scalar
from pytest_distbench.worker.notebook import check_metric, check_whole
from pytest_distbench.workloads.compression import HOOKS, expect_support

if TYPE_CHECKING:
    from torch import nn

    from pytest_distbench.worker.context import RankContext

MAD_TO_STDEV = 1.4826
"""Times the median absolute deviation of a normal distribution gives its standard deviation."""


def parallel(rank: RankContext, model: nn.Module) -> nn.Module:
    """The model under DistributedDataParallel, or as it is where the run is without communication. A collective call.

    Of ``rank.params``: *communication*, ``on`` (default) or ``off``; *overlap*, ``off`` where
    :func:`average_gradients` sends behind the backward pass what DDP sends beside it (default ``on``); *compression*, a
    hook of ``workloads/compression.py`` that sends gradients as ``fp16`` or ``bf16`` (default ``none``).

    Args:
        rank: gives parameters and device.
        model: on the rank's device.

    Raises:
        RecordingError: a parameter is none of its values.
        SkipTest: torch or the backend does not support the hook here.
    """
    communication = rank.params.get("communication", "on")
    if communication not in COMMUNICATION:
        raise RecordingError(f"communication={show(communication)}; wanted one of {', '.join(COMMUNICATION)}")
    compression = rank.params.get("compression", "none")
    hooks = {name: hook for name, hook in HOOKS.items() if not hook.takes_rank}
    if compression not in hooks:
        raise RecordingError(f"compression={show(compression)}; wanted one of {', '.join(hooks)}")
    if communication == "off" or not _overlaps(rank):
        return model
    expect_support(rank, compression)
    from torch.nn.parallel import DistributedDataParallel

    ddp = DistributedDataParallel(model, device_ids=[rank.device] if rank.device.type == "cuda" else None)
    try:
        hooks[compression].register(ddp, 1)
    except TypeError as error:  # what DDP refuses a hook with
        raise unittest.SkipTest(f"{compression}: {error}") from None
    return ddp


def average_gradients(rank: RankContext, model: nn.Module) -> None:
    """Send the gradients in one tensor behind the backward pass, where :func:`parallel` left that to it. Collective.

    Phases: ``all_reduce``, and in it ``copy``, of the gradients into that tensor and back.
    """
    if rank.params.get("communication") == "off" or _overlaps(rank):
        return
    import torch
    import torch.distributed as dist

    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    with rank.phase("all_reduce"):
        with rank.phase("copy"):
            sent = torch.cat([gradient.view(-1) for gradient in gradients])
        dist.all_reduce(sent)
        with rank.phase("copy"):
            for gradient, part in zip(
                gradients, (sent / rank.world_size).split([g.numel() for g in gradients]), strict=True
            ):
                gradient.copy_(part.view_as(gradient))


def _overlaps(rank: RankContext) -> bool:
    overlap = rank.params.get("overlap", "on")
    if overlap not in ("on", "off"):
        raise RecordingError(f"overlap={show(overlap)}; wanted on or off")
    return bool(overlap == "on")


class Rate(NamedTuple):
    """Samples per second: mean, standard error of the mean, and jitter; of one step there is only the mean."""

    mean: float
    uncertainty: float | None
    jitter: float | None


def rate_of(samples: float, seconds: Sequence[float]) -> Rate:
    """The rate of steps that took so long, each of so many samples.

    The mean is ``samples / mean(t)``, the uncertainty ``std(samples / t) / sqrt(n)``, the jitter 1.4826 times the
    median absolute deviation of ``samples / t``. Source: ``get_perf_timing`` in tf_cnn_benchmarks' benchmark_cnn.py.
    """
    speeds = [samples / t for t in seconds]
    middle = statistics.median(speeds)
    if len(speeds) == 1:
        return Rate(middle, None, None)
    return Rate(
        mean=samples / statistics.fmean(seconds),
        uncertainty=statistics.pstdev(speeds) / math.sqrt(len(speeds)),
        jitter=MAD_TO_STDEV * statistics.median(abs(speed - middle) for speed in speeds),
    )


def record_rate(rank: RankContext, *, samples: int, of: str = "step") -> None:
    """Record ``samples_per_second`` of all ranks, with ``uncertainty`` and ``jitter``, from a loop's timed iterations.

    They are the sums of the ranks' own, and shown; what is judged is the time of the loop. ``samples_per_step``, of all
    ranks too, has to stay what it is.

    Args:
        rank: that timed the loop.
        samples: that this rank trains on in an iteration; other ranks may have more or fewer.
        of: the loop.

    Raises:
        RecordingError: no loop of that name was timed here, or samples is no whole number of at least 1.
    """
    call = "record_rate(...)"
    samples, of = check_whole(call, "samples", samples, least=1), check_metric(call, of)
    series = next((o.values for o in rank.notebook.observations if o.name == of and o.is_series), None)
    if series is None:
        raise RecordingError(f"{call}: no loop {of!r} was timed before; wanted rank.timed({of!r}, ...)")
    found = rate_of(samples, series)
    rank.record(SAMPLES, samples, better="exact", reduce="sum")
    rank.record(RATE, found.mean, unit="samples/s", better="info", reduce="sum", facts=facts_of_rate(rank, of))
    for name, spread in {RATE_UNCERTAINTY: found.uncertainty, RATE_JITTER: found.jitter}.items():
        if spread is not None:
            rank.record(name, spread, unit="samples/s", better="info", reduce="sum")


def facts_of_rate(rank: RankContext, of: str) -> dict[str, Scalar]:
    """What the table of scaling tests reads beside a rate: the loop that it is of, and how its workers train."""
    return {
        RATE_OF: of,
        RATE_COMMUNICATION: rank.params.get("communication", COMMUNICATION[0]),
        RATE_RANKS_PER_NODE: int(os.environ.get("LOCAL_WORLD_SIZE", rank.world_size)),
    }
