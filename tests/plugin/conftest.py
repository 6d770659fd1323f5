"""A project whose test has a baseline, and GPUs that are made up."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import pytest
from support.nvml import Host, h100s, made_up
from support.projects import TEST, Project, run


@pytest.fixture
def recorded(project: Project) -> pytest.Pytester:
    """The test above with a baseline."""
    made = project(TEST)
    assert run(made, "--distbench-update").ret == 0
    return made


@pytest.fixture
def driver() -> Iterator[Callable[[Host], None]]:
    """Pretend that the driver shows a machine."""
    with contextlib.ExitStack() as stack:
        yield lambda host: stack.enter_context(made_up(host)) and None


@pytest.fixture
def gpus(driver: Callable[[Host], None]) -> Callable[[int], None]:
    """Pretend that the driver shows some GPUs."""
    return lambda count: driver(Host(cards=h100s(count)))
