"""Lint, format, types, import contracts, workflows and the site of the pages: ``make lint``."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.lint

ROOT = Path(__file__).parent.parent
SOURCES = ("pytest_distbench", "suites", "tests", "benchmarks", "conftest.py")
GITHUB = ROOT / ".github"
SCHEMA = ("check-jsonschema", "--builtin-schema")
CHECKS: tuple[tuple[str, ...], ...] = (
    ("mypy",),
    ("sphinx-build", "-q", "-W", "--keep-going", "-b", "html", "docs", "{site}"),
    ("lint-imports",),
    ("ruff", "check", *SOURCES),
    ("ruff", "format", "--check", *SOURCES),
    (*SCHEMA, "vendor.github-workflows", *map(str, sorted(GITHUB.glob("workflows/*.yml")))),
    (*SCHEMA, "vendor.github-actions", *map(str, sorted(GITHUB.glob("actions/*/action.yml")))),
    ("zizmor", "--offline", "--no-progress", "--persona=auditor", ".github"),
)


@pytest.mark.parametrize("command", CHECKS, ids=lambda command: " ".join(command[:3]))
def test_a_tool_finds_nothing(command: tuple[str, ...], tmp_path: Path) -> None:
    words = [str(Path(sys.executable).with_name(command[0])), *command[1:]]
    words = [word.replace("{site}", str(tmp_path)) for word in words]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout + done.stderr
