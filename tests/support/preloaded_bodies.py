"""Bodies that use CUDA, or look how it was asked for before they were forked."""

from __future__ import annotations

import json
import os
import random
import sys
from typing import TYPE_CHECKING

import numpy as np
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


def draws(rank: RankContext) -> None:
    module = sys.modules["support.seeds_when_imported"]
    seeded = [torch.initial_seed(), random.random(), np.random.random(), module.SEEDED.random()]
    found = {"seeded": seeded, "unseeded": module.UNSEEDED.random()}
    (rank.data_dir / f"rank{rank.rank}.json").write_text(json.dumps(found))
