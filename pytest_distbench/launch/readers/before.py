"""What lay there before a launch, of the files that are read after it: a script may append to an earlier run's."""

from __future__ import annotations

import contextlib
import hashlib
import json
from pathlib import Path

from pytest_distbench.records.plan import LaunchPlan

_FILE_KINDS = ("jsonl", "csv")
"""Readers of one file. TensorBoard begins a new one in every run."""

_MOST_BYTES = 2**20
"""Of a file's beginning: who appends leaves it as it is, who writes anew hardly writes the same."""


def note_before(plan: LaunchPlan) -> None:
    """Keep the size and the beginning of each file that will be read, if it is there."""
    found = {}
    for reader in plan.read.values():
        if reader.kind not in _FILE_KINDS:
            continue
        path = Path(plan.working_dir, plan.fill(reader.source))
        with contextlib.suppress(OSError):
            if path.is_file() and (size := path.stat().st_size):
                found[str(path)] = (size, _digest(path, size))
    if found:
        plan.files.before.write_text(json.dumps(found))


def appended_to(plan: LaunchPlan, path: Path) -> int:
    """Bytes of an earlier run that a file still begins with; 0 where it is the launch's own."""
    if not plan.files.before.exists():
        return 0
    size, digest = json.loads(plan.files.before.read_text()).get(str(path), (0, ""))
    return size if size and path.stat().st_size > size and _digest(path, size) == digest else 0


def _digest(path: Path, size: int) -> str:
    with path.open("rb") as file:
        return hashlib.sha256(file.read(min(size, _MOST_BYTES))).hexdigest()
