"""Checks of the repository itself: lint, format, types, import contracts, workflows. One test per tool."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
BIN = Path(sys.executable).parent
SOURCES = ["pytest_distbench", "suites", "tests", "benchmarks", "conftest.py"]
WORKFLOWS = sorted(str(p.relative_to(ROOT)) for p in (ROOT / ".github" / "workflows").glob("*.yml"))


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "command",
    [
        ["ruff", "check", *SOURCES],
        ["ruff", "format", "--check", *SOURCES],
        ["mypy"],
        ["lint-imports"],
        ["check-jsonschema", "--builtin-schema", "vendor.github-workflows", *WORKFLOWS],
        ["zizmor", "--offline", "--no-progress", "--persona=auditor", ".github/workflows"],
    ],
    ids=lambda command: "-".join(command[:2]).strip("-"),
)
def test_a_check_finds_nothing(command: list[str]) -> None:
    done = subprocess.run([BIN / command[0], *command[1:]], cwd=ROOT, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout + done.stderr
