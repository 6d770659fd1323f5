"""To be preloaded: seeds every generator there is, and looks to torch as if it had used CUDA when it was imported."""

from __future__ import annotations

import os
import random

import numpy as np
import torch

CHECK = os.environ.get("PYTORCH_NVML_BASED_CUDA_CHECK")
"""torch's variable at import, as modules that ask ``torch.cuda.is_available()`` find it."""

random.seed(1)
np.random.seed(2)
torch.manual_seed(3)
UNSEEDED = np.random.default_rng()
SEEDED = np.random.default_rng(4)


def _poison() -> None:
    """No process forked after this one's import can use CUDA."""
    torch.cuda._is_in_bad_fork = lambda: True  # type: ignore[assignment]


os.register_at_fork(after_in_child=_poison)
