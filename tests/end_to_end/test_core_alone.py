"""The core passes its tests without each of its extensions, and without all of them.

The tests of the rooms that start no process group, and one launch: a minute for each choice of extensions.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from pytest_distbench.extensions import EXTENSIONS

ROOT = Path(__file__).parents[2]
NOT_ROOMS = {*EXTENSIONS, "end_to_end", "support", "__pycache__"}
ROOMS = sorted(path.name for path in (ROOT / "tests").iterdir() if path.is_dir() and path.name not in NOT_ROOMS)
"""Rooms of the core that have tests."""

LAUNCH = """
def step(rank):
    for _ in rank.timed("step", warmup=1, iterations=3):
        rank.barrier()


def test_step(distbench):
    run = distbench.run(step, launches=1)
    assert min(run.values("step")) > 0
"""


def copy_without(names: Sequence[str], folder: Path) -> None:
    """Copy the package, its tests and what these read, but for the folders and the lines of these extensions."""
    for name in ("pytest_distbench", "tests", "docs", "suites", "baselines", "benchmarks", ".github"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        for extension in names:
            shutil.rmtree(folder / name / extension, ignore_errors=True)
    for name in ("pyproject.toml", "conftest.py", "README.md", "Makefile", "tox.ini", "CHANGELOG.md"):
        shutil.copy(ROOT / name, folder)
    table = folder / "pytest_distbench/extensions.py"
    left = [name for name in EXTENSIONS if name not in names]
    table.write_text(re.sub(r"EXTENSIONS = \[.*?\]", f"EXTENSIONS = {left}", table.read_text(), count=1))
    gone = [rf"pytest_distbench(\.| import .*\b){name}\b" for name in names]
    support = folder / "tests/support"  # of it goes what imports one of them, or from there
    while found := [path for path in support.glob("*.py") if re.search("|".join(gone), path.read_text())]:
        for path in found:
            path.unlink()
            gone.append(rf"support(\.| import .*\b){path.stem}\b")


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder), "TMPDIR": str(folder.parent / "tmp")},
        text=True,
        capture_output=True,
        check=False,
    )


@pytest.mark.nightly
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("names", [*([name] for name in EXTENSIONS), EXTENSIONS], ids=[*EXTENSIONS, "all"])
def test_the_core_passes_its_tests_without(names: list[str]) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as place:  # a name that is short enough for sockets
        Path(place, "tmp").mkdir()
        copy_without(names, core := Path(place, "core"))
        (core / "test_launch.py").write_text(LAUNCH)
        launched = run(core, "test_launch.py", "--world-size=2")
        rooms = [f"tests/{room}" for room in ROOMS]
        tested = run(core, "-x", "-m", "not spawn and not thorough and not nightly", *rooms)

    assert (launched.returncode, tested.returncode) == (0, 0), launched.stdout + tested.stdout
