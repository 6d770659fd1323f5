"""Runs of pytest in a project whose ranks are made up, inside this process."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

EXIT_USAGE = 4
ALONE = {
    "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    "PYTEST_ADDOPTS": "-p no:cacheprovider -p no:unraisableexception -p distbench -p benchmark -p timeout -p xdist",
}
"""Variables that leave out the plugins of others that we know nothing of, and five garbage collections at the end of a
run: together a quarter of a second."""
TEST = """
    def body(rank):
        pass

    def test_step(distbench):
        distbench.run(body, params={"stand_in": {"step": [0.0200, 0.0201, 0.0199, 0.0202, 0.0198], "count!exact": 7}})
"""
"""A test of one case with a timing and an exact number."""

Project = Callable[[str], pytest.Pytester]


_ROOTS = {Path(path) for path in (sys.prefix, sys.base_prefix, Path(__file__).parents[2], *sys.path) if path}
"""Packages may lie outside of the environment that runs: a file of its may name their folder."""


class ModulesOfProject:
    """A replacement of pytest's snapshot: forgets the modules of the project that a run inside this process has loaded.

    Pytest's own forgets all modules that were not there before, and for a moment also the older ones. What is then
    loaded again, by a later run or by another thread in that moment, has classes other than those of the objects in
    use, or is a module of C that cannot be loaded twice.
    """

    def __init__(self, preserve: Callable[[str], bool] | None = None) -> None:
        del preserve
        self._before = dict(sys.modules)

    def restore(self) -> None:
        for name in sys.modules.keys() - self._before.keys():
            if not _is_installed(sys.modules[name]):
                del sys.modules[name]
        sys.modules.update(self._before)


def _is_installed(module: ModuleType) -> bool:
    """Whether it is one of Python, of a package, or of this repository, and none that a test has written."""
    spec = getattr(module, "__spec__", None)
    if spec is None or spec.origin is None:
        return False
    return spec.origin in ("built-in", "frozen") or any(Path(spec.origin).is_relative_to(root) for root in _ROOTS)


def run(project: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    return project.runpytest_inprocess(*arguments)


def stored(project: pytest.Pytester) -> list[Path]:
    return sorted((project.path / "baselines").rglob("*.json"))


RECORDER = """
import msgspec
from pytest_distbench.launch.starters import LAUNCHERS, LauncherKind
from pytest_distbench.testing import StandInLauncher

class Recorder(StandInLauncher):
    def start(self, plan):
        with open("plans-seen", "ab") as file:
            file.write(msgspec.json.encode(plan) + b"\\n")
        return super().start(plan)

LAUNCHERS["recorder"] = LauncherKind(
    help="", make=lambda setup: Recorder(setup.session), holds_two=True, sets_threads=True, variables={"MINE": "1"}
)
"""
"""Added to a conftest.py: a launcher that writes down the plan of each launch, a line each."""
