"""Room: whether the ranks have memory for what a workload wants to make, asked before it is made."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psutil
import torch

from pytest_distbench.errors import RecordingError
from pytest_distbench.units import format_bytes

if TYPE_CHECKING:
    from pytest_distbench.worker.context import RankContext

MOST_OF_MEMORY = 0.8
"""Share of the free memory that may be taken: the backend wants some as well."""


def expect_room(rank: RankContext, wanted_bytes: int, *, what: str) -> None:
    """Fail in all ranks if one of them has no memory for it. A collective call.

    Raises:
        RecordingError: what was wanted, and what there is.
    """
    free = free_bytes(rank)
    if lacking := int(rank.sum_over_ranks(int(wanted_bytes > free))):
        raise RecordingError(
            f"{lacking} of {rank.world_size} ranks have no memory for {what}: wanted {format_bytes(wanted_bytes)}, "
            f"rank {rank.rank} may take {format_bytes(int(free))}; choose a smaller message"
        )


def free_bytes(rank: RankContext) -> float:
    """What one rank may take: ranks share the memory of the host, and on CUDA may share a device."""
    if rank.device.type == "cuda":
        sharing = -(-rank.world_size // torch.cuda.device_count())
        return MOST_OF_MEMORY * torch.cuda.mem_get_info(rank.device)[0] / sharing
    return MOST_OF_MEMORY * psutil.virtual_memory().available / rank.world_size
