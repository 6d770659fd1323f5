"""Runs of pytest in a project whose ranks are made up, inside this process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

EXIT_USAGE = 4
LEFT_OUT = (
    "allure_pytest",
    "cacheprovider",
    "html",
    "html_fixtures",
    "hypothesispytest",
    "metadata",
    "pytest_cov",
    "pytest_jsonreport",
    "rerunfailures",
    "sugar",
)
ALONE = " ".join(f"-p no:{name}" for name in LEFT_OUT)
"""Options that leave out plugins of others: to import them takes a quarter of a second, and they show things of their
own. With pytest-xdist pytest-rerunfailures leaves a thread with a socket behind each run inside this process."""
TEST = """
    def body(rank):
        pass

    def test_step(distbench):
        distbench.run(body, params={"stand_in": {"step": [0.0200, 0.0201, 0.0199, 0.0202, 0.0198], "count!exact": 7}})
"""
"""One case with a clock and an exact number."""

Project = Callable[[str], pytest.Pytester]


def run(project: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    return project.runpytest_inprocess(*arguments)


def stored(project: pytest.Pytester) -> list[Path]:
    """The files of its baselines."""
    return sorted((project.path / "baselines").rglob("*.json"))
