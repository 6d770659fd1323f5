"""Lint, format, types, import contracts, workflows and the site of the pages, side by side: ``make lint``."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
SOURCES = ("pytest_distbench", "suites", "tests", "benchmarks", "conftest.py")
GITHUB = ROOT / ".github"
SCHEMA = ("check-jsonschema", "--builtin-schema")
CHECKS: tuple[tuple[str, ...], ...] = (
    ("mypy",),
    ("sphinx-build", "-q", "-W", "--keep-going", "-b", "html", "docs"),
    ("lint-imports",),
    ("ruff", "check", *SOURCES),
    ("ruff", "format", "--check", *SOURCES),
    (*SCHEMA, "vendor.github-workflows", *map(str, sorted(GITHUB.glob("workflows/*.yml")))),
    (*SCHEMA, "vendor.github-actions", *map(str, sorted(GITHUB.glob("actions/*/action.yml")))),
    ("zizmor", "--offline", "--no-progress", "--persona=auditor", ".github"),
)
"""The longest first."""


class Checked(NamedTuple):
    """What a tool said, empty if it found nothing, and how long it took."""

    name: str
    found: str
    wall_s: float


def check(command: Sequence[str]) -> Checked:
    """Run one tool in the root of the repository."""
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as site:
        made = [site] if command[0] == "sphinx-build" else []
        words = [str(Path(sys.executable).with_name(command[0])), *command[1:], *made]
        done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    found = (done.stdout + done.stderr or f"exit status {done.returncode}") if done.returncode else ""
    return Checked(" ".join(command[:3]), found, time.monotonic() - begin)


def main() -> int:
    """Print what each tool found, and its seconds; 1 if one found anything."""
    with ThreadPoolExecutor(2) as pool:
        checked = list(pool.map(check, CHECKS))
    for name, found, wall_s in checked:
        print(f"{wall_s:5.1f} s  {name}", found, sep="\n" if found else "")
    return int(any(found for _, found, _ in checked))


if __name__ == "__main__":
    sys.exit(main())
