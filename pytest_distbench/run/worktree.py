"""Another revision of the repository, or a copy of the working tree, checked out next to it during a run."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pytest_distbench import git
from pytest_distbench.errors import ConfigurationError, LauncherError
from pytest_distbench.run.directory import is_of_an_ended_run

FOLDER = "reference"
"""Of a worktree, in the run directory; the commit follows."""

_GIT_TIMEOUT_S = 300.0
_SHORT = 10
_LINES = 4
_LARGE_BYTES = 1 << 26
"""Data that nobody told git of; a copy would take longer than it is worth."""


@dataclass(frozen=True, slots=True)
class Revision:
    """A commit of the repository that pytest's root folder belongs to."""

    name: str
    commit: str
    root: Path

    def __str__(self) -> str:
        short = self.commit[:_SHORT]
        return short if self.commit.startswith(self.name) else f"{self.name} ({short})"


def find_revision(name: str, inside: Path, *, asked: str = "") -> Revision:
    asked = asked or f"--distbench-against {name}"
    if shutil.which("git") is None:
        raise ConfigurationError(f"{asked}: there is no git on PATH")
    top = _git(inside, "rev-parse", "--show-toplevel")
    if top.returncode:
        raise ConfigurationError(f"{asked}: git finds no working tree at {inside}: {_said(top)}")
    found = _git(inside, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}")
    if found.returncode:
        raise ConfigurationError(
            f"{asked}: the repository {top.stdout.strip()} has no commit of that name; see "
            "'git branch -a' and 'git tag'. A clone made by CI may be shallow: fetch the commit first"
        )
    return Revision(name, found.stdout.strip(), Path(top.stdout.strip()).resolve())


@contextlib.contextmanager
def check_out(revision: Revision, run_directory: Path, *, named: str = "") -> Iterator[Path]:
    """Have a revision in a folder of the run directory; afterwards neither the folder nor git's note of it is left.

    The working tree and its index are not touched, and no hook runs. What a run that was killed has left goes first. A
    revision that is there already, for another Python, has another folder. The folder is named after another commit
    where one is given.
    """
    remove_stale(revision.root)
    name = f"{FOLDER}-{(named or revision.commit)[:_SHORT]}"
    tree = run_directory / name
    for number in itertools.count(2):
        if not tree.exists():
            break
        tree = run_directory / f"{name}-{number}"
    try:
        _add(revision.root, tree, revision)
        yield tree
    finally:
        _remove(revision.root, tree)


@contextlib.contextmanager
def copy_beside(root: Path, run_directory: Path, *, named: str) -> Iterator[Path]:
    """Have the working tree itself where a revision would be: what differs from HEAD is copied, what it ignores linked.

    Raises:
        LauncherError: it is not to be had: a submodule differs, or what git does not know is large.
    """
    with check_out(find_revision("HEAD", root, asked="a copy of the working tree"), run_directory, named=named) as tree:
        others = ("ls-files", "--others", "--exclude-standard", "-z")
        for name in [*_names(root, "diff", "--name-only", "--no-renames", "-z", "HEAD"), *_names(root, *others)]:
            if not (root / name).resolve().is_relative_to(run_directory.resolve()):
                _copy(root / name, tree / name)
        for name in _names(root, *others, "--ignored", "--directory"):
            if Path(name).name != "__pycache__" and not os.path.lexists(tree / name):
                (tree / name).parent.mkdir(parents=True, exist_ok=True)
                (tree / name).symlink_to(root / name)
        yield tree


def _names(root: Path, *arguments: str) -> list[str]:
    listed = _git(root, *arguments)
    if listed.returncode:
        raise LauncherError(f"git could not list what is in {root}: {_said(listed)}")
    return [name.removesuffix("/") for name in listed.stdout.split("\0") if name]


def _copy(source: Path, target: Path) -> None:
    if (source.is_dir() and not source.is_symlink()) or (source.is_file() and source.stat().st_size > _LARGE_BYTES):
        raise LauncherError(f"{source} is no regular file, so it cannot be copied")
    target.unlink(missing_ok=True)
    if os.path.lexists(source):
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source, target, follow_symlinks=False)


def _add(root: Path, tree: Path, revision: Revision) -> None:
    """Make a worktree, with the submodules that the working tree has: git leaves them empty."""
    made = _git(root, "worktree", "add", "--quiet", "--detach", "--force", str(tree), revision.commit)
    if made.returncode:
        raise LauncherError(f"git could not check out {revision} next to the working tree: {_said(made)}")
    for path, commit in _submodules(tree):
        source = root / path
        if not (source / ".git").exists():
            continue  # not in the working tree either
        if _git(source, "cat-file", "-e", f"{commit}^{{commit}}").returncode:
            raise LauncherError(
                f"{revision} has the submodule {path} at {commit[:_SHORT]}, which is not fetched: git -C {source} "
                f"fetch origin {commit}"
            )
        _add(source, tree / path, Revision(f"{revision.name}:{path}", commit, source))


def _submodules(tree: Path) -> list[tuple[str, str]]:
    if not (tree / ".gitmodules").exists():
        return []
    listed = _git(tree, "ls-tree", "-r", "-z", "HEAD").stdout.split("\0")
    entries = [line.partition("\t") for line in listed if line.startswith("160000 commit ")]
    return [(path, description.split()[2]) for description, _, path in entries]


def remove_stale(root: Path) -> None:
    """Forget the worktrees of runs that were killed, known by their place; nobody else's are touched."""
    for line in _git(root, "worktree", "list", "--porcelain").stdout.splitlines():
        key, _, value = line.partition(" ")
        tree = Path(value)
        # A folder that is not here may be in a container that shares this checkout: git forgets it, some day later.
        if key == "worktree" and tree.name.startswith(FOLDER) and tree.exists() and is_of_an_ended_run(tree.parent):
            _remove(root, tree)
    _git(root, "worktree", "prune", "--expire=1.day.ago")


def _remove(root: Path, tree: Path) -> None:
    """Whatever state it is in: files that a rank left there, or a folder that is gone already."""
    for path, _ in _submodules(tree):
        if (root / path / ".git").exists():
            _remove(root / path, tree / path)
    if _git(root, "worktree", "remove", "--force", "--force", str(tree)).returncode:
        shutil.rmtree(tree, ignore_errors=True)
        _git(root, "worktree", "remove", "--force", "--force", str(tree))


def _git(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    try:
        return git.run(folder, *arguments, timeout_s=_GIT_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        return subprocess.CompletedProcess(arguments, 1, "", str(error))


def _said(done: subprocess.CompletedProcess[str]) -> str:
    """The end of what it printed: the reason often stands before the last line, which says what to do about it."""
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    return " | ".join(lines[-_LINES:]) if lines else f"git ended with exit code {done.returncode}"
