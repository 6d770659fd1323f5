"""Models of other people, which are compared and not tested: an error of theirs skips the case."""

from __future__ import annotations

import unittest
from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from pytest_distbench.errors import BodyError

CANNOT_TRAIN = "one rank alone cannot train it"


@contextmanager
def skipping(why: str) -> Iterator[None]:
    """Skip the case, and say why, if the code of other people raises. BodyError passes."""
    try:
        yield
    except (BodyError, unittest.SkipTest):
        raise
    except Exception as error:
        words = " ".join(str(error).split())[:200]
        raise unittest.SkipTest(f"{why}: {type(error).__name__}: {words}") from error


def blocks_of(module: nn.Module) -> nn.ModuleList | None:
    """Return the longest ModuleList, whose modules FSDP2 and checkpointing take one by one, or None."""
    return max((found for found in module.modules() if isinstance(found, nn.ModuleList)), key=len, default=None)
