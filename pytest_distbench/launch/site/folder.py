"""The folder of a relay on its host: it goes with the relay, or when the next one starts there."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

_PREFIX = "distbench-relay-"
_LOCK = "lock"


@contextlib.contextmanager
def relay_folder() -> Iterator[Path]:
    """A folder of this process's own below TMPDIR; those of relays that were killed are removed.

    They hold the plans of launches, with all variables of the environment.
    """
    _sweep(Path(tempfile.gettempdir()))
    with tempfile.TemporaryDirectory(prefix=_PREFIX, ignore_cleanup_errors=True) as made:
        folder = Path(made)
        with (folder / f".{_LOCK}").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            (folder / f".{_LOCK}").rename(folder / _LOCK)  # held already when others see it
            yield folder


def _sweep(above: Path) -> None:
    for folder in above.glob(f"{_PREFIX}*/"):
        with contextlib.suppress(OSError):  # of another user, or removed meanwhile, or in use
            if folder.lstat().st_uid == os.getuid() and not folder.is_symlink():
                with (folder / _LOCK).open() as lock:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(folder, ignore_errors=True)
