"""The file in which ``distbench bisect`` keeps how far it has come: below the folder of git, one per question."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

from pytest_distbench.records.bisection import Bisection
from pytest_distbench.store.files import FileKind

SCHEMA = 1

BISECTIONS = FileKind(
    name="bisection",
    record=Bisection,
    schema=SCHEMA,
    max_bytes=64 * 2**20,
    next_step="Begin anew with distbench bisect --restart",
    where="distbench bisect keeps there how far it has come: make the folder of git writable",
)


def place_of(git_folder: Path, good: str, bad: str, asked: Sequence[str]) -> Path:
    """Where the state lies of a search between two commits, for what was asked."""
    name = hashlib.sha256(json.dumps([good, bad, *asked]).encode()).hexdigest()[:12]
    return git_folder / "distbench" / f"bisect-{name}.json"
