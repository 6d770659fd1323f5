"""The run directory: logs, rank reports, sockets, worktrees. It is kept only if a launch failed.

A new run removes all kept directories of its project but the newest few, and those of other projects when they are old,
but none that is in use. The output of launches that passed is removed after their test; ``--distbench-out`` copies it.
"""

from __future__ import annotations

import contextlib
import glob
import hashlib
import itertools
import os
import shutil
import stat
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from filelock import FileLock, Timeout

from pytest_distbench import git
from pytest_distbench.errors import ConfigurationError, LauncherError
from pytest_distbench.launch.site.processes import remove_traces
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.launch_files import LaunchFiles

_LONGEST_NAME = 120


def place(folder: Path, title: str) -> Path:
    """The path of a title below a folder; slashes in the title separate folders."""
    for part in filter(None, title.split("/")):
        name = quote(part, safe=" []=,+@:{}")
        if name in (".", ".."):
            name = name.replace(".", "%2E")
        if len(name) > _LONGEST_NAME:
            name = f"{name[:_LONGEST_NAME]}-{hashlib.sha256(part.encode()).hexdigest()[:8]}"
        folder = folder / name
    return folder


KEPT = 3  # folders of a project's earlier runs that stay, the newest ones
OLD_S = 86400.0
"""Age at which the directory of another project is removed, because that project may never run again."""

_PREFIX = "distbench-"
_UNLOCKED = ".distbench-"
_LOCK = "in-use.lock"
_PROJECT = "project"  # holds the name of the project whose run it was
_SEMAPHORES = Path("/dev/shm")
"""Folder of named semaphores (sem_overview(7)); those of multiprocessing are named after the run directory."""


class RunDirectory:
    """A folder below TMPDIR that only this user can enter.

    Args:
        project: path that identifies the project.
        kept_in: folder for copies of the ranks' output, or None.
    """

    def __init__(self, project: Path, kept_in: Path | None = None) -> None:
        self.failed = 0
        self._kept_in = kept_in
        self._printed: list[Path] = []
        made = Path(tempfile.mkdtemp(prefix=_UNLOCKED))  # mode 0700
        (made / _PROJECT).write_bytes(os.fsencode(project))
        (made / "data").mkdir()
        self._lock = FileLock(made / _LOCK)
        self._lock.acquire()
        # Renamed after locking: a sweep in between would take it for the directory of a run that has ended.
        self.path = made.rename(made.with_name(made.name.replace(_UNLOCKED, _PREFIX, 1)))
        self.data = self.path / "data"
        self._launches = 0
        _sweep(self.path)

    def next_launch(self) -> Path:
        self._launches += 1
        directory = self.path / f"launch{self._launches}"
        directory.mkdir(mode=0o700)
        return directory

    def take(self, record: LaunchRecord, title: str, side: str = "") -> None:
        """Take over the folder of a launch that is over; if it passed, only the output of its ranks is kept."""
        self.failed += record.outcome == "failed"
        folder = Path(record.logs)
        logs = LaunchFiles(folder).logs()
        if self._kept_in is not None and logs:
            target = place(self._kept_in, title) / f"launch{record.index + 1}{side and '-'}{side}"
            target.mkdir(parents=True, exist_ok=True)
            for log in logs:
                shutil.copyfile(log, target / log.name)
        if record.outcome == "failed":
            return
        self._printed.append(folder)
        for path in folder.iterdir() if folder.is_dir() else ():
            if path in logs:
                continue
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)

    def forget(self) -> None:
        """Remove the output of launches that passed, at the end of their test."""
        for folder in self._printed:
            shutil.rmtree(folder, ignore_errors=True)
        self._printed.clear()

    def close(self) -> None:
        self._lock.release()
        _unlink_semaphores(self.path)
        if not self.failed:
            shutil.rmtree(self.path, ignore_errors=True)


def _sweep(own: Path) -> None:
    ended = [path for path in own.parent.glob(f"{_PREFIX}*/") if path != own and is_of_an_ended_run(path)]
    ended.sort(key=_modified_at, reverse=True)
    project = _project_of(own)
    of_others = [path for path in ended if _project_of(path) != project]
    going = [path for path in ended if path not in of_others][KEPT:]
    going += [path for path in of_others if time.time() - _modified_at(path) > OLD_S]
    for path in ended:
        _unlink_semaphores(path)
        if path in going:
            shutil.rmtree(path, ignore_errors=True)
            continue
        for launch in path.glob("launch*/"):  # one whose every process was killed at once left sockets, and secrets
            remove_traces(LaunchFiles(launch))


def _project_of(path: Path) -> bytes:
    try:
        return (path / _PROJECT).read_bytes()
    except OSError:  # another run, which started at the same moment, is removing it
        return b""


def _unlink_semaphores(run: Path) -> None:
    for path in _SEMAPHORES.glob(f"sem.{glob.escape(run.name)}-*"):
        path.unlink(missing_ok=True)


def _modified_at(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:  # another run, which started at the same moment, has removed it
        return 0.0


def is_of_an_ended_run(path: Path) -> bool:
    """Whether a folder is, or was, the run directory of a run of this user that has ended or was killed."""
    if not path.name.startswith(_PREFIX):
        return False
    if not path.exists():
        return True
    try:
        found = path.lstat()  # another user may put a link here, to any folder of this one
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or not (path / _LOCK).exists():
            return False
        with FileLock(path / _LOCK, timeout=0):
            return True
    except (OSError, Timeout):
        return False


PACKAGE = Path(__file__).resolve().parents[1]
"""Folder of this package. Baseline launches import it from here too, even when the measured repository contains it."""

FOLDER = "tree"  # prefix of a worktree's name in the run directory; the commit follows

_GIT_TIMEOUT_S = 300.0
_SHORT = 10
_LINES = 4
_OTHERS = ("ls-files", "--others", "--exclude-standard", "-z")
_LARGE_BYTES = 1 << 26  # untracked data; a copy would take longer than it is worth


@dataclass(frozen=True, slots=True)
class Revision:
    """A commit of the repository of pytest's root directory."""

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
    """Check out a revision in a worktree below the run directory, and remove it at the end.

    Neither the working tree nor its index changes, and no hook runs. Worktrees of killed runs are removed first. A
    second worktree of a revision, for another Python, has a number.

    Args:
        named: the commit that the worktree is named after, if it is not that of the revision.
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
def copy_working_tree(root: Path, run_directory: Path, *, named: str) -> Iterator[Path]:
    """Make a worktree with the state of the working tree: changed files are copied, ignored ones linked.

    Raises:
        LauncherError: a submodule differs, or an untracked file is large.
    """
    with check_out(find_revision("HEAD", root, asked="a copy of the working tree"), run_directory, named=named) as tree:
        for name in [*_names(root, "diff", "--name-only", "--no-renames", "-z", "HEAD"), *_names(root, *_OTHERS)]:
            source, target = root / name, tree / name
            if source.resolve().is_relative_to(run_directory.resolve()):
                continue
            is_folder, is_large = source.is_dir(), source.is_file() and source.stat().st_size > _LARGE_BYTES
            if (is_folder and not source.is_symlink()) or is_large:
                raise LauncherError(f"{source} is no regular file, so it cannot be copied")
            if target.is_dir() and not target.is_symlink():
                shutil.rmtree(target)  # a link is in its place now
            target.unlink(missing_ok=True)
            if os.path.lexists(source):
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, target, follow_symlinks=False)
        for name in _names(root, *_OTHERS, "--ignored", "--directory"):
            if Path(name).name != "__pycache__" and not os.path.lexists(tree / name):
                (tree / name).parent.mkdir(parents=True, exist_ok=True)
                (tree / name).symlink_to(root / name)
        yield tree


def differing_names(revision: Revision) -> list[str]:
    """Names of the files that differ between a revision and the working tree, and of untracked files."""
    seen = "--ignore-submodules=none"  # not as .gitmodules says, which the candidate may have changed
    tracked = _names(revision.root, "diff", "--name-only", "--no-renames", seen, "-z", revision.commit)
    return sorted({*tracked, *_names(revision.root, *_OTHERS)})


def _names(root: Path, *arguments: str) -> list[str]:
    listed = _git(root, *arguments)
    if listed.returncode:
        raise LauncherError(f"git could not list what is in {root}: {_said(listed)}")
    return [name.removesuffix("/") for name in listed.stdout.split("\0") if name]


def _add(root: Path, tree: Path, revision: Revision) -> None:
    """Add a worktree, with the submodules that the working tree has, which git leaves empty."""
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
    found = [line.partition("\t") for line in listed if line.startswith("160000 commit ")]
    return [(path, description.split()[2]) for description, _, path in found]


def remove_stale(root: Path) -> None:
    """Remove the worktrees of killed runs, which are known by their path; no others."""
    for line in _git(root, "worktree", "list", "--porcelain").stdout.splitlines():
        key, _, value = line.partition(" ")
        tree = Path(value)
        # A folder that is not here may be in a container that shares this checkout: git forgets it, some day later.
        if key == "worktree" and tree.name.startswith(FOLDER) and tree.exists() and is_of_an_ended_run(tree.parent):
            _remove(root, tree)
    _git(root, "worktree", "prune", "--expire=1.day.ago")


def _remove(root: Path, tree: Path) -> None:
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
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    # not the last line alone: it often says what to do, and one before it why
    return " | ".join(lines[-_LINES:]) if lines else f"git ended with exit code {done.returncode}"
