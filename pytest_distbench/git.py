"""Run git for a folder, even inside a git hook that sets GIT_DIR for another repository."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

_OF_ANOTHER_REPOSITORY = (
    "GIT_ALTERNATE_OBJECT_DIRECTORIES", "GIT_COMMON_DIR", "GIT_DIR", "GIT_GRAFT_FILE", "GIT_IMPLICIT_WORK_TREE",
    "GIT_INDEX_FILE", "GIT_INTERNAL_SUPER_PREFIX", "GIT_NAMESPACE", "GIT_NO_REPLACE_OBJECTS", "GIT_OBJECT_DIRECTORY",
    "GIT_PREFIX", "GIT_REPLACE_REF_BASE", "GIT_SHALLOW_FILE", "GIT_WORK_TREE",
)  # fmt: skip
"""Variables by which git finds another repository than that of its folder: ``git rev-parse --local-env-vars``."""


def command(folder: Path, *arguments: str) -> Sequence[str]:
    """The command line of git for a folder; hooks of the repository are off."""
    return ["git", "-C", str(folder), "-c", "core.hooksPath=/dev/null", *arguments]


def variables(inherited: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment for git: the repository is that of the folder, and messages are in English."""
    return {k: v for k, v in inherited.items() if k not in _OF_ANOTHER_REPOSITORY} | {"LC_ALL": "C"}


def run(folder: Path, *arguments: str, timeout_s: float | None = None) -> subprocess.CompletedProcess[str]:
    """Run git to its end, without a terminal.

    Raises:
        OSError: git or the folder does not exist.
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


def last_commit(path: Path) -> str:
    """The commit that last changed a file, or "" if it is unknown or the file differs from it."""
    try:
        changed = run(path.parent, "status", "--porcelain", "--ignored", "--", path.name)
        found = run(path.parent, "log", "-1", "--format=%h", "--abbrev=10", "--", path.name)
    except OSError:
        return ""
    return "" if changed.returncode or changed.stdout.strip() else found.stdout.strip()


def describe_commit(folder: Path, *, timeout_s: float = 30.0) -> str:
    """The commit that is checked out around a folder, followed by ``-dirty`` where tracked files differ from it.

    "" if there is no repository, no commit yet, or no git.
    """
    try:
        head = run(folder, "rev-parse", "--verify", "--quiet", "HEAD", timeout_s=timeout_s)
        status = run(folder, "status", "--porcelain", "--untracked-files=no", timeout_s=timeout_s)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    if head.returncode:
        return ""
    return head.stdout.strip() + ("-dirty" if status.stdout.strip() else "")


def knows(folder: Path, revision: str, *, timeout_s: float = 30.0) -> bool:
    """Whether the repository around a folder has a revision, such as ``HEAD`` or ``refs/heads/main``."""
    try:
        found = run(folder, "rev-parse", "--verify", "--quiet", revision, timeout_s=timeout_s)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return found.returncode == 0


BRANCHES = ("GITHUB_HEAD_REF", "GITHUB_REF_NAME", "CI_COMMIT_REF_NAME")
"""Variables of CI systems with the name of the branch, because they check out a commit or a merge of it."""

_PULL_REQUESTS = ("CI_MERGE_REQUEST_IID", "GITHUB_REF")
_OF_PULL_REQUEST = re.compile(r"(?:refs/pull/|refs/heads/pull-request/)?([0-9]+)(?:/merge|/head)?")


def describe_branch(folder: Path, *, inherited: Mapping[str, str] = os.environ, timeout_s: float = 30.0) -> str:
    """The branch that is checked out around a folder, in CI the one that the job is for, or ""."""
    if named := next(filter(None, map(inherited.get, BRANCHES)), ""):
        return named
    try:
        found = run(folder, "symbolic-ref", "--short", "--quiet", "HEAD", timeout_s=timeout_s)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return found.stdout.strip()


def pull_request(inherited: Mapping[str, str] = os.environ) -> str:
    """The number of the pull request, or merge request, that a CI job is for, or "".

    A bot that copies pull requests for self-hosted runners names their branches ``pull-request/7``.
    """
    found = (_OF_PULL_REQUEST.fullmatch(inherited.get(name, "")) for name in _PULL_REQUESTS)
    return next((number[1] for number in found if number), "")


def why_ignored(file: Path, *, timeout_s: float = 30.0) -> str:
    """The rule by which git ignores an untracked file, ``.gitignore:3: *.json``, or ""."""
    try:
        done = run(file.parent, "check-ignore", "--verbose", "--", file.name, timeout_s=timeout_s)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    source, line, pattern = [*done.stdout.partition("\t")[0].split(":", 2), "", ""][:3]
    is_ignored = done.returncode == 0 and not pattern.startswith("!")  # which takes a file out of another rule
    return f"{source}:{line}: {pattern}" if is_ignored else ""
