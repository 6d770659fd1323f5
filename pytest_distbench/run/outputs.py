"""What launches that passed have printed: there until their test is over, and for good where the user wants it."""

from __future__ import annotations

import hashlib
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

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
        """Remove what was kept for a test, which is over."""
        for folder in self._folders:
            shutil.rmtree(folder, ignore_errors=True)
        self._folders.clear()


def place(folder: Path, title: str) -> Path:
    """Where below a folder that of a case is kept; slashes in its title separate folders."""
    return folder.joinpath(*(_file_name(part) for part in title.split("/") if part))


def _file_name(text: str) -> str:
    name = quote(text, safe=" []=,+@:{}")
    if name in (".", ".."):
        return name.replace(".", "%2E")
    if len(name) <= _LONGEST_NAME:
        return name
    return f"{name[:_LONGEST_NAME]}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"
