"""Bodies that use CUDA, or look how it was asked for before they were forked."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from pytest_distbench import RankContext


def uses_cuda(rank: RankContext) -> None:
    del rank
    torch.cuda.init()


def tells_how_cuda_was_asked_for(rank: RankContext) -> None:
    del rank
    assert sys.modules["support.poisons_fork"].CHECK == "1"
    assert "PYTORCH_NVML_BASED_CUDA_CHECK" not in os.environ
