"""Where a reader looks, and what is wrong with a reader before anything is launched.

Where a reader looks: the output and the files of one rank of one launch.

What lay there before the launch is noted, of the files that are read after it: a script may append to an earlier run's.

What is wrong with a reader, before anything is launched.
"""

from __future__ import annotations

import contextlib
import difflib
import hashlib
import json
import re
import signal
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_distbench.errors import ReadingError, show
from pytest_distbench.launch.readers import READERS
from pytest_distbench.launch.readers.formats import VALUE
from pytest_distbench.records.choices import Wanted, number, one_of, whole
from pytest_distbench.records.kinds import METRIC_KINDS
from pytest_distbench.records.metric import as_scalar, is_axis
from pytest_distbench.records.plan import LaunchPlan
from pytest_distbench.records.reader import TAKES, Reader
from pytest_distbench.records.wire import can_be_written

_LINE_END = re.compile(r"\r\n|\n|\r")
_COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_LONGEST_SHOWN = 160
_MOST_SHOWN = 5
_MOST_COMPARED = 2_000
_COARSEST_S = 2.0
"""Some file systems note times in steps of this, or by a server's clock: a file of this launch may look older."""
LONGEST_S = 60.0
"""CPU seconds that reading one metric may take."""


@dataclass(frozen=True, slots=True)
class Found:
    """A value as text, where it stands: for an error, and what the script has written there beside it."""

    text: str
    where: str
    beside: str


@dataclass(frozen=True, slots=True)
class Place:
    """The output and files of one rank."""

    plan: LaunchPlan
    rank: int

    def lines(self) -> Iterator[str]:
        """What the rank printed, on stdout and stderr, line by line; a progress bar's states are lines too."""
        try:
            with self.plan.files.log(self.rank).open(errors="replace", newline="") as log:
                for line in log:
                    yield from (_COLOURS.sub("", part) for part in _LINE_END.split(line.rstrip("\r\n")))
        except FileNotFoundError:
            return

    def path(self, source: str) -> Path:
        """A file of the launch: relative paths are relative to the working directory."""
        path = Path(self.plan.working_dir, self.plan.fill(source))
        if not path.exists():
            near = sorted(p.name for p in path.parent.iterdir()) if path.parent.is_dir() else []
            there = f"{path.parent} has {', '.join(near[:_MOST_SHOWN]) or 'nothing'}"
            raise ReadingError(
                f"there is no {path}; " + (there if path.parent.is_dir() else f"nor a folder {path.parent}")
            )
        if not (path.is_file() or path.is_dir()):
            raise ReadingError(f"{path} is neither a file nor a folder: reading it might never end")
        if path.is_file() and not self.is_of_this_launch(path):
            raise ReadingError(
                f"{path} was not written by this launch, it is older: did an earlier run leave it beside the script?"
            )
        if path.is_file() and (earlier := appended_to(self.plan, path)):
            raise ReadingError(
                f"{path} was there before this launch, which has appended to it: its first {earlier} bytes are an "
                "earlier run's. Delete it, or have the script write it into {launch_dir}"
            )
        return path

    def is_of_this_launch(self, path: Path) -> bool:
        """Whether a file was written since the launch began."""
        began = self.plan.files.began
        return not began.exists() or path.stat().st_mtime >= began.stat().st_mtime - _COARSEST_S


@contextlib.contextmanager
def limited() -> Iterator[None]:
    """End what searches for ever, as a regular expression may: by CPU time, which waiting does not use.

    Only the main thread can be interrupted; Python's ``re`` asks for signals while it searches.
    """

    def stop(*_: object) -> None:
        raise ReadingError(
            f"searching took longer than {LONGEST_S:.0f} s of CPU time: does a repetition hold another, as in (a+)+?"
        )

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, LONGEST_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)
        signal.signal(signal.SIGVTALRM, before)


def nearest(pattern: str, lines: Iterable[str]) -> Sequence[str]:
    """The lines that look most like what a pattern would match; the last ones where none does."""
    kept = [line.strip() for line in lines if line.strip()][-_MOST_COMPARED:]
    words = set(re.findall(r"[A-Za-z]{2,}", re.sub(r"\\[A-Za-z]|\(\?P<\w+>", " ", pattern)))
    sharing = [line for line in kept if words & set(re.findall(r"[A-Za-z]{2,}", line))]
    literal = re.sub(r"\\[A-Za-z]|\(\?P<\w+>|[\\^$.*+?()\[\]{}|]", " ", pattern)
    close = difflib.get_close_matches(literal, list(dict.fromkeys(sharing)), n=_MOST_SHOWN, cutoff=0.0)
    return [line[:_LONGEST_SHOWN] for line in close or kept[-_MOST_SHOWN:]]


_FILE_KINDS = ("jsonl", "csv")
"""Readers of one file. TensorBoard begins a new one in every run."""

_MOST_BYTES = 2**20
"""Of a file's beginning: who appends leaves it as it is, who writes anew hardly writes the same."""


def note_before(plan: LaunchPlan) -> None:
    """Keep the size and the beginning of each file that will be read, if it is there."""
    found = {}
    for reader in plan.read.values():
        if reader.kind not in _FILE_KINDS:
            continue
        path = Path(plan.working_dir, plan.fill(reader.source))
        with contextlib.suppress(OSError):
            if path.is_file() and (size := path.stat().st_size):
                found[str(path)] = (size, _digest(path, size))
    if found:
        plan.files.before.write_text(json.dumps(found))


def appended_to(plan: LaunchPlan, path: Path) -> int:
    """Bytes of an earlier run that a file still begins with; 0 where it is the launch's own."""
    if not plan.files.before.exists():
        return 0
    size, digest = json.loads(plan.files.before.read_text()).get(str(path), (0, ""))
    return size if size and path.stat().st_size > size and _digest(path, size) == digest else 0


def _digest(path: Path, size: int) -> str:
    with path.open("rb") as file:
        return hashlib.sha256(file.read(min(size, _MOST_BYTES))).hexdigest()


def problem_with(reader: Reader) -> str:
    """The first thing that is wrong, as wanted and found; empty where nothing is."""
    if reader.kind not in READERS:
        return f"unknown kind of reader {show(reader.kind)}; known are {', '.join(READERS)}"
    for name in ("source", "key", "since", "unit", "take"):
        if not isinstance(getattr(reader, name), str):
            return f"{name}={show(getattr(reader, name))}; wanted text"
        if not can_be_written(getattr(reader, name)):
            return f"{name}={show(getattr(reader, name))} holds half of a surrogate pair, which no output or file can"
    if reader.kind == "stdout":
        return _problem_with_pattern(reader.source) or _problem_with_values(reader)
    return _problem_with_values(reader)


def _problem_with_pattern(source: str) -> str:
    try:
        pattern = re.compile(source)
    except (re.error, OverflowError, RecursionError) as error:
        return f"{source!r} is no regular expression: {error}"
    if pattern.groups == 1 or VALUE in pattern.groupindex:
        return ""
    return (
        f"{source!r} has {pattern.groups} groups; wanted one around the number, or several of which one is "
        f"(?P<{VALUE}>...)"
    )


def _problem_with_values(reader: Reader) -> str:
    kind = METRIC_KINDS[reader.better]
    for name, wanted in _WANTED.items():
        if wanted.take(value := getattr(reader, name)) is None:
            return f"{name}={show(value)}; wanted {wanted.words}"
    if reader.take and kind.shape == "series":
        return f"take={reader.take!r} makes one number, and better={reader.better!r} judges a series"
    for name, scalars in (("at", reader.at), ("identity", reader.identity)):
        if not isinstance(scalars, dict) or not all(map(is_axis, scalars)):
            return f"{name}={show(scalars)}; wanted a dict from names, without [ ] = and , to plain values"
        if not all(map(_is_plain, scalars.values())):
            return f"{name}={show(scalars)}; wanted finite numbers, printable texts, True or False"
    return ""


def _is_plain(value: object) -> bool:
    return isinstance(value, bool | int | float | str) and as_scalar(value) is not None


_WANTED: dict[str, Wanted[Any]] = {
    "scale": Wanted("a finite number other than 0", lambda value: number().plain().take(value) or None),
    "rank": Wanted("the number of a rank, or 'all'", lambda value: "all" if value == "all" else whole(0).take(value)),
    "skip": Wanted("how many values at the start do not count", whole(0).take),
    "first": Wanted("how many values count", lambda value: "all" if value is None else whole(1).take(value)),
    "take": Wanted(one_of(TAKES).words, one_of(["", *TAKES]).take),
}
