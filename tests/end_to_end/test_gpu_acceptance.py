"""The acceptance script for GPUs, as far as made-up ones can show that it works."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import gpu_acceptance
import pytest

SCRIPT = Path(gpu_acceptance.__file__)


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(SCRIPT), *arguments], capture_output=True, text=True, check=False)


@pytest.mark.spawn
def test_a_line_is_told_with_what_was_expected_and_seen_and_kept(tmp_path: Path) -> None:
    done = run("--stand-in", "--only", "fork,driver", "--json", str(tmp_path / "seen.json"))

    assert done.returncode == 0, done.stdout + done.stderr
    assert "seen      1 passed" in done.stdout
    assert "1 ok, 0 FAILED, 1 not run" in done.stdout
    kept = json.loads((tmp_path / "seen.json").read_text())
    assert [(line["line"], line["outcome"]) for line in kept["lines"]] == [("fork", "ok"), ("driver", "not run")]
    assert kept["machine"]["torch"]


@pytest.mark.spawn
def test_a_line_that_finds_something_else_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_ADDOPTS", "--nonsense")
    done = run("--stand-in", "--only", "fork")

    assert done.returncode == 1
    assert "0 ok, 1 FAILED, 0 not run" in done.stdout
