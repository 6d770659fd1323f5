"""Where a launch works: a folder of its own, and a look at what it leaves elsewhere."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from pytest_distbench.errors import LauncherError
from pytest_distbench.launch.readers.place import note_before
from pytest_distbench.records.plan import LaunchPlan
from pytest_distbench.records.record import replace

_MOST_FILES = 5_000
_DEEPEST = 8
_NOT_LEFT = frozenset({
    "__pycache__", ".git", ".pytest_cache", ".mypy_cache", ".ruff_cache", ".hypothesis", ".tox", ".nox", "node_modules",
})  # fmt: skip
"""What others write while a launch runs, or in thousands; as an environment of Python, which has a pyvenv.cfg."""
_MOST_NAMED = 5


def settle(plan: LaunchPlan) -> LaunchPlan:
    """Make a launch's own folder, and put this launch's values where the plan has placeholders."""
    work = plan.files.work
    work.mkdir(exist_ok=True)
    place = plan.workplace
    working_dir = work if place.is_mirrored else Path(plan.fill(place.folder))
    if place.is_mirrored:
        with os.scandir(place.folder) as entries:
            for entry in entries:
                (work / entry.name).symlink_to(entry.path)
    plan.files.began.touch()
    if working_dir != work and "{" in place.folder:
        working_dir = _make(working_dir.resolve(), work.resolve())
    own = {name: plan.fill(value) for name, value in place.variables.items()}
    settled = replace(
        plan,
        work=plan.work.with_words(plan.fill),
        workplace=replace(place, variables={}),
        working_dir=str(working_dir),
        variables={**plan.variables, **own},
        python_path=[*filter(None, own.get("PYTHONPATH", "").split(os.pathsep)), *plan.python_path],
    )
    note_before(settled)
    return settled


def _make(folder: Path, work: Path) -> Path:
    """A folder that a test has named with placeholders: below the launch's own it is made."""
    if folder.is_relative_to(work):
        folder.mkdir(parents=True, exist_ok=True)
    elif not folder.is_dir():
        raise LauncherError(f"cwd=: there is no folder {folder}; one below {{launch_dir}} would be made")
    return folder


class Leftovers:
    """What is left in a folder that outlives the launch: the next launch, and the user, find it there.

    A folder that is too large or too deep is looked through in part.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._before = _Look(folder)

    def remark(self) -> str:
        """What was left, in a sentence, or that nobody could see it; empty where nothing was."""
        now = _Look(self._folder)
        unseen = self._before.unseen or now.unseen
        left = sorted(name for name, stamp in now.files.items() if self._before.files.get(name) != stamp)
        if unseen and (now.is_cut or self._before.is_cut or not left):
            return f"{self._folder} {unseen}: what a script leaves there, for later launches to find, is not noticed"
        if not left:
            return ""
        more = f" and {len(left) - _MOST_NAMED} more" if len(left) > _MOST_NAMED else ""
        return (
            f"left {', '.join(left[:_MOST_NAMED])}{more} in {self._folder}, where later launches find it and may go "
            "on from it; give it a path in {launch_dir}, which is each launch's own"
        )


class _Look:
    """The files below a folder at one moment: when each changed last, its size, and in words what was passed over."""

    def __init__(self, folder: Path) -> None:
        self.files: dict[str, tuple[int, int]] = {}
        self.is_cut = False
        self.unseen = ""
        for path in self._below(folder, _DEEPEST):
            with contextlib.suppress(OSError):  # gone meanwhile
                status = path.stat()
                self.files[str(path.relative_to(folder))] = status.st_mtime_ns, status.st_size
            if len(self.files) > _MOST_FILES:
                self.is_cut = True
                self.unseen = f"has more than {_MOST_FILES} files"
                break

    def _below(self, folder: Path, depth: int) -> Iterator[Path]:
        with contextlib.suppress(OSError), os.scandir(folder) as entries:
            for entry in entries:
                if entry.name in _NOT_LEFT:
                    continue
                if entry.is_dir(follow_symlinks=False):
                    if not depth:
                        self.unseen = f"has folders more than {_DEEPEST} deep"
                    elif not os.path.exists(f"{entry.path}/pyvenv.cfg"):
                        yield from self._below(Path(entry.path), depth - 1)
                elif not entry.name.endswith(".pyc"):
                    yield Path(entry.path)


def watched_folder(plan: LaunchPlan) -> Path | None:
    """Where a script may leave something that outlives its launch: None: nowhere.

    That is the folder that is linked into its own, or the one in which the test wants it to run.
    """
    if not plan.work.is_program:
        return None
    folder = Path(plan.workplace.folder if plan.workplace.is_mirrored else plan.working_dir)
    return None if folder.is_relative_to(plan.directory) else folder
