"""The size of each room, within its budget; and tests that share a launcher go to one worker."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parent.parent


class Budget(NamedTuple):
    files: int
    lines: int


BUDGETS = {
    # advisory verdicts; spellings of markers; ini keys are rows; numbers name their statistic; how good a baseline is;
    # the end of a run on one screen; messages that need a second line; lines and users' words that explain knows;
    # init writes a workflow that records, and .gitignore; the baseline's launches, curve, communication in the report
    # four extensions in folders of their own
    "pytest_distbench": Budget(249, 62_340),
    # --distbench-out, advisory; slow tests; ini keys alone; the words of the field; printed numbers are computed again;
    # how good a baseline is; screens; words of the field in messages; code that git does not know; the site's search;
    # every command of the workflows; baseline and outliers in the report; what a noise hides; what a comment is of;
    # merges, quotes, lost artifacts in the workflows; ini, .gitignore and branches that init finds
    # the wheel in an empty environment; the release workflow
    "tests": Budget(313, 57_560),
}
"""A number that rises needs its reason in its line."""


def held(folder: str) -> Budget:
    files = [path.read_text() for path in (ROOT / folder).rglob("*.py")]
    return Budget(len(files), sum(text.count("\n") for text in files))


@pytest.mark.parametrize("folder", BUDGETS)
def test_a_folder_keeps_within_its_budget(folder: str) -> None:
    now, budget = held(folder), BUDGETS[folder]

    assert now.files <= budget.files
    assert now.lines <= budget.lines


def test_tests_that_share_a_launcher_go_to_one_worker(request: pytest.FixtureRequest) -> None:
    """pytest-xdist tells groups by the ends of ids. A group of nobody's costs a launcher for each of its tests."""
    if not hasattr(request.config, "workerinput"):
        pytest.skip("one process has all tests")
    grouped = [item for item in request.session.items if item.get_closest_marker("xdist_group")]

    assert [item.nodeid for item in grouped if "@" not in item.nodeid.rpartition("]")[2]] == []
