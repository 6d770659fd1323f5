"""Where a launch works: a folder of its own, and a look at what it leaves elsewhere."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from pytest_distbench.errors import LauncherError
from pytest_distbench.records.plan import LaunchPlan
from pytest_distbench.records.record import replace

_MOST_FILES = 5_000
_DEEPEST = 8
_NOT_LEFT = frozenset({"__pycache__", ".git", ".pytest_cache", ".mypy_cache", ".ruff_cache", ".hypothesis"})
"""What others write while a launch runs."""
_MOST_NAMED = 5


def settle(plan: LaunchPlan) -> LaunchPlan:
    """Make a launch's own folder, and put this launch's values where the plan has placeholders.

    Raises:
        OSError: there is no room for the folder.
        LauncherError: the test wants it to run in a folder that is not there.
    """
    work = plan.files.work
    work.mkdir(exist_ok=True)
    if plan.mirrored:
        with os.scandir(plan.mirrored) as entries:
            for entry in entries:
                (work / entry.name).symlink_to(entry.path)
    plan.files.began.touch()
    working_dir = Path(plan.fill(plan.working_dir)) if plan.working_dir else work
    if working_dir != work and "{" in plan.working_dir:
        working_dir = _make(working_dir.resolve(), work.resolve())
    own = {name: plan.fill(value) for name, value in plan.own_variables.items()}
    return replace(
        plan,
        body=replace(
            plan.body,
            arguments=[plan.fill(argument) for argument in plan.body.arguments],
            command=[plan.fill(word) for word in plan.body.command],
        ),
        working_dir=str(working_dir),
        variables={**plan.variables, **own},
        python_path=[*filter(None, own.get("PYTHONPATH", "").split(os.pathsep)), *plan.python_path],
        own_variables={},
    )


def _make(folder: Path, work: Path) -> Path:
    """A folder that a test has named with placeholders: below the launch's own it is made.

    Raises:
        LauncherError: it is elsewhere, and is not there.
    """
    if folder.is_relative_to(work):
        folder.mkdir(parents=True, exist_ok=True)
    elif not folder.is_dir():
        raise LauncherError(f"cwd=: there is no folder {folder}; one below {{launch_dir}} would be made")
    return folder


class Leftovers:
    """What is left in a folder that outlives the launch: the next launch, and the user, find it there.

    Args:
        folder: that is watched; a folder that is too large to be looked through is not.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._before = _look(folder)

    def remark(self) -> str:
        """What was left, in a sentence; empty where nothing was."""
        now = _look(self._folder)
        if self._before is None or now is None:
            return ""
        left = sorted(name for name, stamp in now.items() if self._before.get(name) != stamp)
        if not left:
            return ""
        more = f" and {len(left) - _MOST_NAMED} more" if len(left) > _MOST_NAMED else ""
        return (
            f"left {', '.join(left[:_MOST_NAMED])}{more} in {self._folder}, where later launches find it and may go "
            "on from it; give it a path in {launch_dir}, which is each launch's own"
        )


def watched_folder(plan: LaunchPlan) -> Path | None:
    """Where a script may leave something that outlives its launch: None: nowhere.

    That is the folder that is linked into its own, or the one in which the test wants it to run.
    """
    if not plan.body.is_script:
        return None
    folder = Path(plan.mirrored or plan.working_dir)
    return None if folder.is_relative_to(plan.directory) else folder


def _look(folder: Path) -> Mapping[str, tuple[int, int]] | None:
    """Time of the last change and size of each file, by its path in the folder; None: there are too many."""
    found: dict[str, tuple[int, int]] = {}
    for path in _files(folder, _DEEPEST):
        with contextlib.suppress(OSError):  # gone meanwhile
            status = path.stat()
            found[str(path.relative_to(folder))] = status.st_mtime_ns, status.st_size
        if len(found) > _MOST_FILES:
            return None
    return found


def _files(folder: Path, depth: int) -> Iterator[Path]:
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.name in _NOT_LEFT:
                continue
            if entry.is_dir(follow_symlinks=False):
                if depth:
                    yield from _files(Path(entry.path), depth - 1)
            elif not entry.name.endswith(".pyc"):
                yield Path(entry.path)
