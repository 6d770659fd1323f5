"""What a launch is given by the side of a comparison that it measures; alone it measures this tree."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pytest_distbench.errors import LauncherError
from pytest_distbench.launch.starters.contract import Launcher
from pytest_distbench.records.plan import LaunchPlan


def _nobody() -> Launcher:
    raise LauncherError("a launch of ranks needs a launcher, and its side has none")


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """What a launch is given besides its plan.

    Attributes:
        launcher: makes what starts its ranks, if it has any; the same at each call.
        python: runs what is not a rank; empty: this one.
        on_progress: gets lines of progress.
        on_output: gets (number, line) of what it prints, while it runs; None: nobody looks.
    """

    launcher: Callable[[], Launcher] = _nobody
    python: str = ""
    on_progress: Callable[[str], None] = lambda text: None
    on_output: Callable[[int, str], None] | None = None


Arm = tuple[LaunchPlan, Side]
"""One of the launches that are compared."""
