"""The files below a folder that a rank reads; a recording notes them, to find those that git ignores."""

from __future__ import annotations

import importlib.util
import os
import sys
from typing import Any

_READS = ("open", "os.listdir", "os.scandir")
_PREFIX = "reads"
_MOST = 2_000  # paths: the first of a million images name their folder, and looking at each would take its time


def note_reads(root: str, folder: str, rank: int) -> None:
    """Append each path below ``root`` that this process or a fork of it reads, once, to a file in ``folder``.

    An audit hook cannot be removed, so only the first launch of a recording has it. It misses what C++ opens, and what
    other processes read that are not forked.
    """
    seen: set[str] = set()
    notes = os.open(os.path.join(folder, f"{_PREFIX}{rank}"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event not in _READS or len(seen) >= _MOST or not isinstance(arguments[0], str | bytes | os.PathLike):
            return
        if event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR):
            return
        try:
            name = os.fsdecode(arguments[0])
            if f"{os.sep}__pycache__{os.sep}" in name:  # an import reads what it has compiled of the file
                name = importlib.util.source_from_cache(name)
            for path in {os.path.abspath(name), os.path.realpath(name)} - seen:  # a script runs in a folder of links
                if path.startswith(f"{root}{os.sep}"):
                    seen.add(path)
                    os.write(notes, os.fsencode(path) + b"\0")
        except (OSError, ValueError):
            return  # what is raised here would be raised by the user's open()

    sys.addaudithook(hook)


def read_notes(folder: str) -> set[str]:
    names: set[str] = set()
    for entry in os.scandir(folder):
        if entry.name.startswith(_PREFIX) and entry.name.removeprefix(_PREFIX).isdecimal():
            with open(entry.path, "rb") as file:
                names.update(map(os.fsdecode, filter(None, file.read().split(b"\0"))))
    return names
