"""Runs of pytest in a project whose ranks are made up, inside this process."""

from __future__ import annotations

from collections.abc import Callable

import pytest

EXIT_USAGE = 4

Project = Callable[[str], pytest.Pytester]


def run(project: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    return project.runpytest_inprocess("-p", "no:sugar", "-p", "no:cacheprovider", *arguments)
