"""Looks to torch as if it had used CUDA when it was imported: no process forked after that can. To be preloaded."""

from __future__ import annotations

import os

import torch

CHECK = os.environ.get("PYTORCH_NVML_BASED_CUDA_CHECK")
"""As modules that ask ``torch.cuda.is_available()`` find it."""


def _poison() -> None:
    torch.cuda._is_in_bad_fork = lambda: True  # type: ignore[assignment]


os.register_at_fork(after_in_child=_poison)
