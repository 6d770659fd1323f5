"""Runs of pytest in a project whose ranks are made up, inside this process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

EXIT_USAGE = 4
LEAKING = ("-p", "no:rerunfailures")
"""Leaves a thread with a socket behind each run inside this process, where pytest-xdist is installed."""
TEST = """
    def body(rank):
        pass

    def test_step(distbench):
        distbench.run(body, params={"stand_in": {"step": [0.0200, 0.0201, 0.0199, 0.0202, 0.0198], "count!exact": 7}})
"""
"""One case with a clock and an exact number."""

Project = Callable[[str], pytest.Pytester]


def run(project: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    left_out = ("-p", "no:sugar", "-p", "no:cacheprovider", *LEAKING)
    return project.runpytest_inprocess(*left_out, *arguments)


def stored(project: pytest.Pytester) -> list[Path]:
    """The files of its baselines."""
    return sorted((project.path / "baselines").rglob("*.json"))
