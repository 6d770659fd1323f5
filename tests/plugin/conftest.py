"""A project whose test has a baseline, and GPUs that are made up."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.projects import TEST, Project, run

from pytest_distbench.machine import hardware


@pytest.fixture
def recorded(project: Project) -> pytest.Pytester:
    """The test above with a baseline."""
    made = project(TEST)
    assert run(made, "--distbench-update").ret == 0
    return made


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Pretend that the driver shows some GPUs."""
    return lambda count: monkeypatch.setattr(
        hardware, "gpus", lambda variables: [hardware.Gpu("NVIDIA H200", f"GPU-{i}") for i in range(count)]
    )
