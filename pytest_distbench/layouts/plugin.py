"""The fixture of layouts. What it hands out is imported when a test asks for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pytest_distbench.layouts.fixtures import Equivalent
    from pytest_distbench.plugin.distbench import Distbench


@pytest.fixture
def equivalent(distbench: Distbench) -> Equivalent:
    """Compare a layout of a training with one rank: ``equivalent("gpt.py::gpt", "fsdp2")``."""
    from pytest_distbench.layouts.fixtures import Equivalent

    return Equivalent(distbench)
