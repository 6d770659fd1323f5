"""The private folder of one pytest run: logs, rank reports, sockets. Removed when all went well, else kept for reading.

Kept folders do not pile up: a new run removes all but the newest few of its project, and those of other projects when
they are old; never one that is in use. What launches that passed have printed is there until their test is over, and
for good where the user wants it.
"""

from __future__ import annotations

import glob
import hashlib
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

from filelock import FileLock, Timeout

from pytest_distbench.launch.site.guardian import remove_traces
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.launch_files import LaunchFiles

_LONGEST_NAME = 120


@dataclass
class Outputs:
    """The output of the launches of one pytest run; copies of all of it may be kept in a folder."""

    kept_in: Path | None = None
    _folders: list[Path] = field(default_factory=list)

    def take(self, record: LaunchRecord, title: str, side: str = "") -> None:
        """Take over the folder of a launch that is over; of one that passed nothing is kept but what its ranks printed.

        Slashes in the title of its case separate folders.
        """
        folder = Path(record.logs)
        logs = LaunchFiles(folder).logs()
        if self.kept_in is not None and logs:
            target = place(self.kept_in, title) / f"launch{record.index + 1}{side and '-'}{side}"
            target.mkdir(parents=True, exist_ok=True)
            for log in logs:
                shutil.copyfile(log, target / log.name)
        if record.outcome == "failed":
            return
        self._folders.append(folder)
        for path in folder.iterdir() if folder.is_dir() else ():
            if path in logs:
                continue
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)

    def forget(self) -> None:
        for folder in self._folders:
            shutil.rmtree(folder, ignore_errors=True)
        self._folders.clear()


def place(folder: Path, title: str) -> Path:
    return folder.joinpath(*(_file_name(part) for part in title.split("/") if part))


def _file_name(text: str) -> str:
    name = quote(text, safe=" []=,+@:{}")
    if name in (".", ".."):
        return name.replace(".", "%2E")
    if len(name) <= _LONGEST_NAME:
        return name
    return f"{name[:_LONGEST_NAME]}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


KEPT = 3
"""Folders of a project's earlier runs that stay, the newest ones."""
OLD_S = 86400.0
"""When a folder goes that another project's run has left: projects share the place, and may never run again."""

_PREFIX = "distbench-"
_UNLOCKED = ".distbench-"
_LOCK = "in-use.lock"
_PROJECT = "project"
"""Holds the name of the project whose run it was."""
_SEMAPHORES = Path("/dev/shm")
"""Where named semaphores are files (sem_overview(7)); those of multiprocessing are named after the run directory."""


class RunDirectory:
    """A folder below the system's place for temporary files that only this user can enter.

    The project whose run it is, is told from others by its path.
    """

    def __init__(self, project: Path) -> None:
        made = Path(tempfile.mkdtemp(prefix=_UNLOCKED))  # mode 0700
        (made / _PROJECT).write_bytes(os.fsencode(project))
        (made / "data").mkdir()
        self._lock = FileLock(made / _LOCK)
        self._lock.acquire()
        # With its name it is locked: a sweep that comes between the two would take it for one of a run that has ended.
        self.path = made.rename(made.with_name(made.name.replace(_UNLOCKED, _PREFIX, 1)))
        self.data = self.path / "data"
        self._launches = 0
        _sweep(self.path)

    def is_whole(self) -> bool:
        """Whether all of it is there: a body, or a cleaner of temporary files, may have removed it."""
        return self.data.is_dir() and (self.path / _LOCK).exists()

    def next_launch(self) -> Path:
        self._launches += 1
        directory = self.path / f"launch{self._launches}"
        directory.mkdir(mode=0o700)
        return directory

    def close(self, *, keep: bool) -> None:
        self._lock.release()
        _unlink_semaphores(self.path)
        if not keep:
            shutil.rmtree(self.path, ignore_errors=True)


def _sweep(own: Path) -> None:
    ended = sorted(_ended_runs(own), key=_modified_at, reverse=True)
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
    """Empty for a folder that another run, which started at the same moment, is about to remove."""
    try:
        return (path / _PROJECT).read_bytes()
    except OSError:
        return b""


def _unlink_semaphores(run: Path) -> None:
    """Remove the locks of a run's ranks that are left: of one that was killed with its resource tracker."""
    for path in _SEMAPHORES.glob(f"sem.{glob.escape(run.name)}-*"):
        path.unlink(missing_ok=True)


def _modified_at(path: Path) -> float:
    """0 for a folder that another run, which started at the same moment, has removed meanwhile."""
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def is_of_an_ended_run(path: Path) -> bool:
    """Whether a folder is, or was, of a run of this user that has ended; a killed run's lock went with it."""
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


def _ended_runs(own: Path) -> Iterator[Path]:
    return (path for path in own.parent.glob(f"{_PREFIX}*/") if path != own and is_of_an_ended_run(path))
