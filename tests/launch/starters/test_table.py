"""The table of launchers: one row makes a launcher, and nothing is imported before it is made."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from pytest_distbench.launch.starters import DEFAULT_LAUNCHER, LAUNCHERS, LauncherSetup
from pytest_distbench.records.options import OPTIONS


@pytest.mark.parametrize("name", ["warm", "torchrun"])
def test_a_row_makes_the_launcher_of_its_name(tmp_path: Path, name: str) -> None:
    made = LAUNCHERS[name].make(LauncherSetup(directory=tmp_path, session="cookie"))

    assert (made.name, made.session) == (name, "cookie")


def test_the_default_is_a_row_that_can_do_everything() -> None:
    assert LAUNCHERS[DEFAULT_LAUNCHER].holds_two


def test_the_help_names_every_launcher() -> None:
    assert all(name in OPTIONS["launcher"].summary for name in ("warm", "torchrun", DEFAULT_LAUNCHER))


def test_reading_the_table_imports_nothing_of_ours_but_the_table() -> None:
    code = """
import sys, pytest_distbench.launch.starters
print(sorted(name for name in sys.modules if name.startswith("pytest_distbench") or name in ("torch", "psutil")))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    package = "pytest_distbench"
    assert done.stdout.strip() == str([package, f"{package}.launch", f"{package}.launch.starters"])
