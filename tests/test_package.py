"""The package as a user's project sees it: its one public name, and its types."""

from __future__ import annotations

import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest

import pytest_distbench

PACKAGE = Path(__file__).parents[1] / "pytest_distbench"

BODY = """
from pytest_distbench import RankContext

def body(rank: RankContext) -> None:
    reveal_type(rank.world_size)
    reveal_type(rank.agree(0.5))
    rank.record("m", 1.0, better=3)
"""


def test_bodies_are_annotated_with_the_rank_context() -> None:
    from pytest_distbench.worker.context import RankContext

    assert pytest_distbench.RankContext is RankContext


@pytest.mark.timeout(300)
def test_a_type_checker_sees_the_types_of_the_installed_package(tmp_path: Path) -> None:
    """Installed as the wheel has it, every file of the package: without py.typed its types would not count."""
    venv.create(tmp_path / "venv", symlinks=True)
    [site] = (tmp_path / "venv" / "lib").glob("python*/site-packages")
    shutil.copytree(PACKAGE, site / "pytest_distbench", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "user.py").write_text(BODY)
    python = tmp_path / "venv" / "bin" / "python"
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        f"--python-executable={python}",
        "--cache-dir=cache",
        "user.py",
    ]
    done = subprocess.run(command, cwd=tmp_path, env={}, capture_output=True, text=True, check=False)

    assert 'int"' in done.stdout.splitlines()[0]
    assert 'float"' in done.stdout.splitlines()[1]
    assert 'user.py:7: error: Argument "better" to "record" of "Member" has incompatible type' in done.stdout
    assert "Found 1 error in 1 file" in done.stdout
