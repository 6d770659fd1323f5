"""Tests that pytest cannot parametrize: methods of unittest.TestCase. Each runs on one number of ranks."""

from __future__ import annotations

import pytest

from pytest_distbench.errors import DistbenchWarning
from pytest_distbench.plugin.markers import requirement, sizes
from pytest_distbench.plugin.names import RANKS
from pytest_distbench.run.settings import Settings

_LEFT_OUT = pytest.StashKey[str]()


def choose_ranks(item: pytest.Item, settings: Settings) -> None:
    """Have a test run on the most ranks that its markers and the run allow; skip it where they allow none."""
    requirement(item.iter_markers())
    wanted = sizes(item.iter_markers(), settings, getattr(item, "cls", None))
    running = sorted(size.ranks for size in wanted if not size.not_run)
    if not running:
        item.add_marker(pytest.mark.skip(reason=wanted[-1].not_run))
    item.stash[RANKS] = running[-1] if running else wanted[-1].ranks
    left_out = [f"on {ranks} ranks" for ranks in running[:-1]] + [f"with {name}" for name in settings.backends[1:]]
    if left_out:
        ours = f"on {item.stash[RANKS]} ranks with {settings.backends[0]}"
        item.stash[_LEFT_OUT] = f"{ours}, and not {', not '.join(left_out)}"


def warn_of_left_out(item: pytest.Item) -> None:
    """Say at which sizes, and with which backends, such a test does not run; as part of the test."""
    if _LEFT_OUT in item.stash:
        item.warn(
            DistbenchWarning(
                f"pytest cannot parametrize a method of unittest.TestCase: it runs {item.stash[_LEFT_OUT]}. "
                "A function, or a method of a plain class, runs with each"
            )
        )
