"""The body of ``launch_cost.py``, in a file that does not train: its parent does not import what trainings need."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_distbench import RankContext


def barrier(_rank: RankContext) -> None:
    """One barrier."""
    import torch.distributed as dist

    dist.barrier()
