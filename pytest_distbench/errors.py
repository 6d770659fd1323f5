"""What can go wrong, as exceptions that carry the facts.

Every message says what was wanted, what was found, where, and what to do next.
"""

from __future__ import annotations

import contextlib
import sys
import traceback
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

_PACKAGE = str(Path(__file__).resolve().parent)
_LIBRARY = str(Path(traceback.__file__).parent)


class DistbenchWarning(UserWarning):
    """A test passed, and something about it should be mended: pytest lists it in its warnings summary."""


class Terminated(KeyboardInterrupt):
    """SIGTERM has asked the run to end, which it does as at Ctrl-C."""


class DistbenchError(Exception):
    """Base of all errors this package raises on purpose."""


class ConfigurationError(DistbenchError):
    """An option, ini key, marker or reader has a value that cannot be used."""


class BodyError(DistbenchError):
    """A body or its parameters cannot be handed to the ranks."""


class ForeignModuleError(DistbenchError):
    """A group that measures another revision imported a module of the working tree."""


class RecordingError(DistbenchError):
    """A rank gave something that cannot be measured, merged or stored."""


class DataError(DistbenchError):
    """A file of a data set is not there, or is damaged."""


class ReadingError(DistbenchError):
    """A launch has passed, and a number that was to be read of what it printed or wrote is not there."""


class DerivationError(DistbenchError):
    """A function that a test gave to ``judge`` raised, or returned no number."""


class BackendUnavailable(DistbenchError):
    """The process-group backend does not exist in this build of torch, or has no device.

    Attributes:
        backend: that was wanted.
        reason: why it is not there.
        available: those that this build of torch has.
    """

    def __init__(self, backend: str, reason: str, available: Collection[str]) -> None:
        super().__init__(f"backend {backend!r} is not available here: {reason}")
        self.backend = backend
        self.reason = reason
        self.available = available


class AroundUnavailable(DistbenchError):
    """What a test wants around its launches cannot be made here: control groups, a network."""


class TableError(DistbenchError):
    """A table cannot be made of a run: what somebody's row of it does raises."""


class ExtensionError(DistbenchError):
    """A row that somebody added to a table does what it must not."""


class LauncherError(DistbenchError):
    """The launcher itself (not a rank) failed."""


class StoredFileError(DistbenchError):
    """A baseline or run file cannot be read or written; nothing was changed."""

    def __init__(self, path: Path, problem: str, next_step: str) -> None:
        super().__init__(f"{path}: {problem}. {next_step}")
        self.path = path
        self.problem = problem
        self.next_step = next_step

    @property
    def each(self) -> Sequence[StoredFileError]:
        """The error of each file."""
        return [self]


_MOST_FILES = 10


class StoredFilesError(StoredFileError):
    """Several of them cannot be read; each is named with its own reason, and a next step that they share once."""

    def __init__(self, errors: Sequence[StoredFileError]) -> None:
        shared = errors[0].next_step if len({error.next_step for error in errors}) == 1 else ""
        lines = [f"{e.path}: {e.problem}" + ("" if shared else f". {e.next_step}") for e in errors[:_MOST_FILES]]
        if (more := len(errors) - _MOST_FILES) > 0:
            lines.append(f"and {more} more")
        problem = "\n  ".join([f"{len(errors)} files cannot be used:", *lines])
        DistbenchError.__init__(self, "\n".join(filter(None, [problem, shared])))
        self.path, self.problem, self.next_step = errors[0].path, problem, shared
        self._each = list(errors)

    @property
    def each(self) -> Sequence[StoredFileError]:
        return self._each


def show(value: object, *, longest: int = 200) -> str:
    """A value as it may stand in an error: short, on one line, whatever its own class does."""
    try:
        text = repr(value)
    except Exception as broken:  # noqa: BLE001 its own text must not hide what is wrong with it
        text = f"<{type(value).__name__} without text: {type(broken).__name__}>"
    text = text.encode(errors="backslashreplace").decode().replace("\n", " ")
    return text if len(text) <= longest else f"{text[: longest - 4]} ..."


def tell(error: Exception) -> str:
    """What the code of somebody else raised, on one line."""
    return f"{type(error).__name__}: {error}".replace("\n", " ")


def line_of(error: Exception) -> str:
    """Where it was raised in the code of somebody else, to stand behind its text; empty where that had no part in it.

    ``" (/suite/conftest.py:12)"``.
    """
    frames = reversed(traceback.extract_tb(error.__traceback__))
    frame = next((f for f in frames if not f.filename.startswith((_PACKAGE, _LIBRARY, "<frozen"))), None)
    return f" ({frame.filename}:{frame.lineno})" if frame is not None else ""


@contextlib.contextmanager
def blame(row: str) -> Iterator[None]:
    """Tell what a row of a table raises, which somebody may have added, as what it is."""
    try:
        yield
    except DistbenchError:
        raise
    except Exception as error:
        raise ExtensionError(f"{row}: {tell(error)}{line_of(error)}") from error


_Row = TypeVar("_Row")


def look_up(table: Mapping[str, _Row], name: object, what: str, *, hint: str = "") -> _Row:
    """The row of that name in a table.

    Raises:
        ConfigurationError: there is none; the message lists those there are.
    """
    if not isinstance(name, str) or name not in table:
        raise ConfigurationError(f"unknown {what} {show(name)}: known are {', '.join(table)}{hint}")
    return table[name]


def expect(kind: type[_Row], given: object, by: str) -> _Row:
    """What a row of a table gave, which somebody may have added: it has to be of this kind."""
    if not isinstance(given, kind):
        raise ExtensionError(f"{by} gave {show(given)}; wanted a {kind.__name__}")
    return given


def line_outside() -> str:
    """The line that called into this package: ``test_a.py:12``."""
    frame = sys._getframe()
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.f_back
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
