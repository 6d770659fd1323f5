"""Memory as metrics that are judged: what the allocator handed out and reserved, and what the device has in use."""

from __future__ import annotations

import resource
from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch

from pytest_distbench.errors import RecordingError
from pytest_distbench.machine.gpu_watch import own_memory
from pytest_distbench.records.kinds import Better
from pytest_distbench.records.metric import Scalar

if TYPE_CHECKING:
    from pytest_distbench.worker.context import RankContext


def reset_peak_memory(rank: RankContext) -> None:
    """Forget the peaks so far: :func:`record_peak_memory` then has those of what follows. CPUs cannot forget."""
    if rank.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(rank.device)


def record_peak_memory(rank: RankContext, *, at: Mapping[str, Scalar] | None = None) -> None:
    """Record ``memory[of=...]`` in bytes, of the rank with most. They are judged: memory may not grow.

    On CUDA ``of`` is ``allocated`` and ``reserved`` (the peaks of torch's allocator: by tensors, and with what it
    keeps), and ``process``: what this process has in use on the device at this moment, NCCL's buffers and CUDA's
    context included, where the driver tells. ``device`` is what all have, and is not judged: others are among them. On
    a CPU it is ``resident``: the largest resident size of the process so far.

    Args:
        rank: whose memory it is.
        at: tells several apart in one body, for example ``{"during": "evaluation"}``; call :func:`reset_peak_memory`
            before each of them.

    Raises:
        RecordingError: recorded before at this point, or a point with an ``of`` of its own.
    """
    if at is not None and "of" in at:
        raise RecordingError(
            f"record_peak_memory(...): wanted at= without 'of', which names the kind; found {dict(at)}"
        )
    if rank.device.type != "cuda":
        found: dict[str, int | None] = {"resident": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}
    else:
        free, total = torch.cuda.mem_get_info(rank.device)
        uuid = getattr(torch.cuda.get_device_properties(rank.device), "uuid", "")
        found = {
            "allocated": torch.cuda.max_memory_allocated(rank.device),
            "reserved": torch.cuda.max_memory_reserved(rank.device),
            "process": own_memory(f"GPU-{uuid}"),
            "device": total - free,
        }
    for of, num_bytes in found.items():
        if num_bytes is not None:
            better: Better = "info" if of == "device" else "lower"
            rank.record("memory", num_bytes, unit="B", better=better, at={**(at or {}), "of": of})
