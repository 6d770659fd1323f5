"""What a project adds to what the parent of all ranks imports once for them (``distbench_preload``).

No rank can use CUDA if the process it was forked from has. So each of these modules is looked at, and the one that did
it is named. Ranks know by the memory they inherit.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Sequence

from pytest_distbench.errors import ConfigurationError

NVML_CHECK = "PYTORCH_NVML_BASED_CUDA_CHECK"
"""At 1 ``torch.cuda.is_available()`` asks the driver's library in place of CUDA, which leaves a fork its CUDA."""

POISONED_BY: list[str] = []
"""The one among them whose import used CUDA; empty: none did."""


def load(names: Sequence[str]) -> None:
    """Import modules; one that is not there is passed over: a rank that needs it says so."""
    if not names:
        return
    from pytest_distbench.worker.forked import watched_seeds
    from pytest_distbench.worker.torch_internals import is_fork_poisoned

    with watched_seeds():
        for name in names:
            with contextlib.suppress(ImportError):
                importlib.import_module(name)
            if not POISONED_BY and is_fork_poisoned():
                POISONED_BY.append(name)


def check_fork() -> None:
    """To be called in a rank that is to use CUDA: it must not be forked from a process that has."""
    if POISONED_BY:
        raise ConfigurationError(
            f"importing {POISONED_BY[0]} (distbench_preload) used CUDA in the process that all ranks are forked from, "
            "which leaves the ranks without: let it ask for CUDA in a function, not when it is imported, or take it "
            "out of distbench_preload"
        )
