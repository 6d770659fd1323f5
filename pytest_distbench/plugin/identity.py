"""What defines a workload, without what only names a place on this machine or in this run."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

_PATH = re.compile(r"(?:(?<![\w/.:~-])|(?<=file://))/[^/\s=:,;'\"]+(?:/[^/\s=:,;'\"]+)+/?")
"""An absolute path of at least two parts, at the beginning of a text or behind a separator."""

_MEETING = re.compile(
    r"--?(?:(?:master|main[-_]process)[-_](?:addr|ip|port)|rdzv[-_](?:endpoint|id)|port|dist[-_]url)(?P<value>=.*)?",
    re.DOTALL,
)
"""Options that say where processes meet, as launchers and scripts name them."""

MEETING_VARIABLES = ("MASTER_ADDR", "MASTER_PORT")
"""The same in the environment."""

_OF_A_RUN = re.compile(r"pytest-\d+|popen-gw\d+")
"""Folders in which pytest makes one for each test."""


@dataclass(frozen=True)
class Places:
    """The folders that differ between machines and runs.

    ``root`` is that of the tests, and in ``made`` pytest was told to make its temporary ones (``--basetemp``).
    """

    root: Path
    made: Path | None = None

    def leave_out(self, value: Any) -> Any:
        """A JSON-able value, with a word in the place of each path that differs between machines or runs.

        Below the root of the tests it is the path from there. Anywhere else the last part alone counts, the name of a
        data set or a file wherever it lies; not even that counts of a folder that was made and named for this run.
        """
        if isinstance(value, str):
            return _PATH.sub(lambda match: self._word_for(Path(match[0])), value)
        if isinstance(value, dict):
            return {key: self.leave_out(inner) for key, inner in value.items()}
        if isinstance(value, list):
            return [self.leave_out(inner) for inner in value]
        return value

    def _word_for(self, path: Path) -> str:
        if self._is_of_project(path):
            return f"{{rootdir}}/{path.relative_to(self.root)}"
        above = path.parent
        is_of_this_run = above in (Path(tempfile.gettempdir()), self.made) or _OF_A_RUN.fullmatch(above.name)
        return "{path}" if is_of_this_run else f"{{path}}/{path.name}"

    def _is_of_project(self, path: Path) -> bool:
        """Below the root, and not in a temporary folder that lies there."""
        temporary = Path(tempfile.gettempdir())
        if self.made is not None and path.is_relative_to(self.made):
            return False
        if path.is_relative_to(temporary) and not self.root.is_relative_to(temporary):
            return False
        return path.is_relative_to(self.root)


def leave_out_meeting(words: Sequence[str]) -> list[str]:
    """A command line with a word in the place of each address and port where its processes meet."""
    kept: list[str] = []
    is_value = False
    for word in words:
        option = _MEETING.fullmatch(word)
        if is_value:
            kept.append("{meeting}")
        elif option and option["value"]:
            kept.append(word.partition("=")[0] + "={meeting}")
        else:
            kept.append(word)
        is_value = option is not None and not option["value"] and not is_value
    return kept


def places_of(config: pytest.Config) -> Places:
    """Those of a pytest run."""
    made = config.getoption("basetemp", None)
    return Places(config.rootpath, None if made is None else Path(config.invocation_params.dir, made).resolve())
