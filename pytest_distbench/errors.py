"""The exceptions that this package raises on purpose.

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
    """A test passed, but something about it should be fixed; pytest lists it in its warnings summary."""


class Terminated(KeyboardInterrupt):
    """SIGTERM arrived; the run ends as at Ctrl-C."""


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
    """A launch passed, but its output or files lack a number that a reader wants."""


class DerivationError(DistbenchError):
    """A function that a test gave to ``judge`` raised, or returned no number."""


class BackendUnavailable(DistbenchError):
    """The process-group backend does not exist in this build of torch, or has no device.

    Attributes:
        backend: the backend that was wanted.
        reason: why it is not available.
        available: the backends that this build of torch has.
    """

    def __init__(self, backend: str, reason: str, available: Collection[str]) -> None:
        super().__init__(f"backend {backend!r} is not available here: {reason}")
        self.backend = backend
        self.reason = reason
        self.available = available


class AroundUnavailable(DistbenchError):
    """The surroundings that a test wants for its launches are not available here: control groups, a network."""


class TableError(DistbenchError):
    """A table of a report cannot be made: the code of an added row raised."""


class ExtensionError(DistbenchError):
    """The code of a row that was added to a table raised, or returned a value of the wrong type."""


class LauncherError(DistbenchError):
    """The launcher, not a rank, failed."""


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
    """Several stored files cannot be read; the message has the reason of each, and a common next step once."""

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
    """Format a value for an error message: short, on one line, even if its ``repr`` raises."""
    try:
        text = repr(value)
    except Exception as broken:  # noqa: BLE001 its own text must not hide what is wrong with it
        text = f"<{type(value).__name__} without text: {type(broken).__name__}>"
    text = text.encode(errors="backslashreplace").decode().replace("\n", " ")
    return text if len(text) <= longest else f"{text[: longest - 4]} ..."


def error_text(error: Exception) -> str:
    """Format an exception of foreign code on one line: ``ValueError: text``."""
    return f"{type(error).__name__}: {error}".replace("\n", " ")


def line_of(error: Exception) -> str:
    """Return the line of foreign code that raised an error: ``" (/suite/conftest.py:12)"``, or ""."""
    frames = reversed(traceback.extract_tb(error.__traceback__))
    frame = next((f for f in frames if not f.filename.startswith((_PACKAGE, _LIBRARY, "<frozen"))), None)
    return f" ({frame.filename}:{frame.lineno})" if frame is not None else ""


@contextlib.contextmanager
def blame(row: str) -> Iterator[None]:
    """Raise :class:`ExtensionError` with the name of a table's row for an error that the code of the row raises."""
    try:
        yield
    except DistbenchError:
        raise
    except Exception as error:
        raise ExtensionError(f"{row}: {error_text(error)}{line_of(error)}") from error


_Row = TypeVar("_Row")


def look_up(table: Mapping[str, _Row], name: object, what: str, *, hint: str = "") -> _Row:
    """Return the row of a table with this name.

    Raises:
        ConfigurationError: there is no such row; the message lists the names that exist.
    """
    if not isinstance(name, str) or name not in table:
        raise ConfigurationError(f"unknown {what} {show(name)}: known are {', '.join(table)}{hint}")
    return table[name]


def expect(kind: type[_Row], given: object, by: str) -> _Row:
    """Return a value that a table's row gave, or raise :class:`ExtensionError` if it has another type than ``kind``."""
    if not isinstance(given, kind):
        raise ExtensionError(f"{by} gave {show(given)}; wanted a {kind.__name__}")
    return given


def line_outside() -> str:
    """Return the line that called into this package: ``test_a.py:12``."""
    frame = sys._getframe()
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.f_back
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
