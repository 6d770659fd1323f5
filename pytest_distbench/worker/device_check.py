"""The body of the launch that is made before the first test under ``--gpu``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from pytest_distbench.worker.context import RankContext


def compute(rank: RankContext) -> None:
    """Compute a number on the rank's device: driver, torch and its kernels fit each other."""
    assert torch.ones(1, device=rank.device).item() == 1
