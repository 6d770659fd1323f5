"""Where a reader looks: the output and the files of one rank of one launch.

What lay there before the launch is noted, of the files that are read after it: a script may append to an earlier run's.
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

from pytest_distbench.errors import ReadingError
from pytest_distbench.records.plan import LaunchPlan

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
