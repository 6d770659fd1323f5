"""Running git for a folder, whatever repository a hook around pytest means."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

_OF_ANOTHER_REPOSITORY = (
    "GIT_ALTERNATE_OBJECT_DIRECTORIES", "GIT_COMMON_DIR", "GIT_DIR", "GIT_GRAFT_FILE", "GIT_IMPLICIT_WORK_TREE",
    "GIT_INDEX_FILE", "GIT_INTERNAL_SUPER_PREFIX", "GIT_NAMESPACE", "GIT_NO_REPLACE_OBJECTS", "GIT_OBJECT_DIRECTORY",
    "GIT_PREFIX", "GIT_REPLACE_REF_BASE", "GIT_SHALLOW_FILE", "GIT_WORK_TREE",
)  # fmt: skip
"""What ``git rev-parse --local-env-vars`` lists, but for GIT_CONFIG...: by those a CI job sets safe.directory."""


def command(folder: Path, *arguments: str) -> Sequence[str]:
    """The command line; no hook of the repository runs."""
    return ["git", "-C", str(folder), "-c", "core.hooksPath=/dev/null", *arguments]


def variables(inherited: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment to run it in: the folder decides which repository is meant, and messages are in English."""
    return {k: v for k, v in inherited.items() if k not in _OF_ANOTHER_REPOSITORY} | {"LC_ALL": "C"}


def run(folder: Path, *arguments: str, timeout_s: float | None = None) -> subprocess.CompletedProcess[str]:
    """Run git to its end, without asking anything of the terminal.

    Raises:
        OSError: there is no git, or no such folder.
        subprocess.TimeoutExpired: it took longer.
    """
    return subprocess.run(
        command(folder, *arguments),
        env=variables(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        errors="surrogateescape",  # as names of files come
        timeout=timeout_s,
        check=False,
    )
