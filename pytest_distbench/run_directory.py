"""The private folder of one pytest run: logs, rank reports, sockets. Removed when all went well, else kept for reading.

Kept folders do not pile up: a new run removes all but the newest few, and never one that is in use.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout

KEPT = 3
"""Folders of earlier runs that stay, the newest ones."""

_PREFIX = "distbench-"
_LOCK = "in-use.lock"


class RunDirectory:
    """A folder below the system's place for temporary files that only this user can enter.

    Raises:
        OSError: there is no place to write to.
    """

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix=_PREFIX))  # mode 0700
        self.data = self.path / "data"
        self.data.mkdir()
        self._lock = FileLock(self.path / _LOCK)
        self._lock.acquire()
        self._launches = 0
        _sweep(self.path)

    def next_launch(self) -> Path:
        """Make the folder of the next launch."""
        self._launches += 1
        directory = self.path / f"launch{self._launches}"
        directory.mkdir(mode=0o700)
        return directory

    def close(self, *, keep: bool) -> None:
        """Let go of the folder; remove it unless somebody may want to read it."""
        self._lock.release()
        if not keep:
            shutil.rmtree(self.path, ignore_errors=True)


def _sweep(own: Path) -> None:
    ended = sorted(_ended(own), key=lambda path: path.stat().st_mtime, reverse=True)
    for path in ended[KEPT:]:
        shutil.rmtree(path, ignore_errors=True)


def _ended(own: Path) -> Iterator[Path]:
    """Folders of this user's runs that have ended, one killed by SIGKILL included: its lock went with it."""
    for path in own.parent.glob(f"{_PREFIX}*/"):
        with contextlib.suppress(OSError, Timeout):
            if path != own and path.stat().st_uid == os.getuid() and (path / _LOCK).exists():
                with FileLock(path / _LOCK, timeout=0):
                    pass
                yield path
