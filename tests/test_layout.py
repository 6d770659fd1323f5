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
    # rows of logs: restarts, ranks, empty cells; exact tests that do not wait; whose optimizers step in a step;
    # the steps of CI; one value of a metric in all files, a trace for each rank; the first module that is wrong,
    # networks without float64, averages of weights, modules of simulated ranks; words on screens; any model under each
    # layout, without a test file, of whatever batch and labels; the line where a regressed timing lost its time, of a
    # loader's workers too; the path of a test; hunks of a slowdown; the line that holds memory; A/B by CPU time; what a
    # launch reads of /proc without pathlib, launchings before sessions
    "pytest_distbench": Budget(264, 66_960),
    # what real loggers write; each kind of training step, real frameworks; steps of CI; a table of other plugins;
    # each pattern in which a module may be wrong; models of a library; six more frameworks; shares of a slowdown;
    # peaks of memory; CPU time of pairs; runs that load no torch; both sets of processes of a confirmation
    "tests": Budget(329, 64_295),
}
"""A number that rises needs its reason in a comment on its line."""


def held(folder: str) -> Budget:
    files = [path.read_text() for path in (ROOT / folder).rglob("*.py")]
    return Budget(len(files), sum(text.count("\n") for text in files))


@pytest.mark.parametrize("folder", BUDGETS)
def test_a_folder_keeps_within_its_budget(folder: str) -> None:
    now, budget = held(folder), BUDGETS[folder]

    assert now.files <= budget.files
    assert now.lines <= budget.lines


def test_tests_that_share_a_launcher_go_to_one_worker(request: pytest.FixtureRequest) -> None:
    """pytest-xdist recognises groups by the ends of ids. A wrong group costs a launcher for each of its tests."""
    if not hasattr(request.config, "workerinput"):
        pytest.skip("one process has all tests")
    grouped = [item for item in request.session.items if item.get_closest_marker("xdist_group")]

    assert [item.nodeid for item in grouped if "@" not in item.nodeid.rpartition("]")[2]] == []
