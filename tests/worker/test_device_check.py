"""The body that is run before the first test on GPUs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from pytest_distbench.worker.device_check import compute


def test_a_device_that_computes_passes_and_one_that_is_not_there_raises() -> None:
    there: Any = SimpleNamespace(device="cpu")
    compute(there)
    missing: Any = SimpleNamespace(device="cuda:99")
    with pytest.raises((AssertionError, RuntimeError)):
        compute(missing)
