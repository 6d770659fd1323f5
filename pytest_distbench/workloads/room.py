"""Room: whether the ranks have memory for what a workload wants to make, asked before it is made."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_distbench.errors import RecordingError
from pytest_distbench.units import format_bytes
from pytest_distbench.workloads.pool import free_bytes

if TYPE_CHECKING:
    from pytest_distbench.worker.context import RankContext


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
