"""What a training computes with: the precision and the algorithms that a body, and not the machine, chooses."""

from __future__ import annotations

import functools
from operator import attrgetter
from typing import Any

import torch

_OPERATIONS = {"matmul": "cuda.matmul", "conv": "cudnn.conv", "rnn": "cudnn.rnn"}
"""Where torch 2.9 and later keep the precision of each, in ``torch.backends``."""

_autocast_types: set[str] = set()
"""To which autocast was switched on in this process."""


def forbid_tf32() -> None:
    """Compute in float32 what is float32, on every card.

    Where torch keeps a precision for each operation, that decides. The flags from before are set first and all the
    same: torch refuses to read them where they contradict it, in its own compiler too. So is what stands for all
    operations, to which torch goes back at the end of ``torch.backends.cudnn.flags``.
    """
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False
    for kept in (torch.backends, torch.backends.cudnn, *map(_kept, _OPERATIONS)):
        if hasattr(kept, "fp32_precision"):
            kept.fp32_precision = "ieee"


def note_autocast() -> None:
    """From now on remember to which types autocast is switched on: at its end a body has left it."""
    enter = torch.autocast.__enter__
    if hasattr(enter, "__wrapped__"):
        return

    @functools.wraps(enter)
    def entering(self: torch.autocast) -> Any:
        result = enter(self)
        if torch.is_autocast_enabled(self.device):
            _autocast_types.add(str(torch.get_autocast_dtype(self.device)).removeprefix("torch."))
        return result

    torch.autocast.__enter__ = entering  # type: ignore[method-assign]


def settings() -> dict[str, str]:
    """What is chosen now, by the names of :data:`pytest_distbench.records.environment.SETTINGS`."""
    found = {
        "autocast": "+".join(sorted(_autocast_types)) or "off",
        "deterministic": _on(torch.are_deterministic_algorithms_enabled()),
    }
    if torch.cuda.is_initialized():
        found |= {f"{operation}_precision": _precision(operation) for operation in _OPERATIONS}
        found["cudnn_benchmark"] = _on(torch.backends.cudnn.benchmark)
        found["cudnn_deterministic"] = _on(torch.backends.cudnn.deterministic)
    return found


def _kept(operation: str) -> Any:
    """What has the precision; without one where this torch has none for each operation."""
    try:
        return attrgetter(_OPERATIONS[operation])(torch.backends)
    except AttributeError:
        return None


def _precision(operation: str) -> str:
    """``ieee`` or ``tf32``."""
    precision = getattr(_kept(operation), "fp32_precision", None)
    if precision is None:
        allows = torch.backends.cuda.matmul if operation == "matmul" else torch.backends.cudnn
        precision = "tf32" if allows.allow_tf32 else "ieee"
    return "ieee" if precision == "none" else str(precision)


def _on(is_on: bool) -> str:  # noqa: FBT001
    return "on" if is_on else "off"
