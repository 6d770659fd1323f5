"""A project whose test has a baseline."""

from __future__ import annotations

import pytest
from support.projects import TEST, Project, run


@pytest.fixture
def recorded(project: Project) -> pytest.Pytester:
    """The test above with a baseline."""
    made = project(TEST)
    assert run(made, "--distbench-update").ret == 0
    return made
