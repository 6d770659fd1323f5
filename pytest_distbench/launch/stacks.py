"""Where the ranks of a stuck launch are: their Python stacks, the line each waits at, its last collective."""

from __future__ import annotations

import contextlib
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Collection
from pathlib import Path

import msgspec

from pytest_distbench.launch import processes
from pytest_distbench.launch.control import ControlChannel
from pytest_distbench.wire import FLIGHT_REQUEST, STACKS_SIGNAL

_WAIT_S = 1.0
_LOOK_AGAIN_S = 0.02
_PY_SPY_S = 10.0
_LARGEST_FLIGHT_BYTES = 64 * 2**20

_LIFELINE = "_die_with_pytest"
_ENTRY = re.compile(
    r'pytest_distbench/worker/main\.py", line \d+ in (_measure|_join_group|_leave_group|run)$', re.MULTILINE
)
_LIBRARY = re.compile(r"/site-packages/|/pytest_distbench/|/lib/python3|^<")
_LOGGING_WRAPPER = "wrapper"  # around every collective in torch
_FRAME = re.compile(r'File "(.+)", line (\d+) in (\S+)')
_NEXT_DUMP = re.compile(r"(?<=\S\n)(?=(?:Current thread|Thread|Stack) )")
"""Threads of one dump are separated by an empty line, dumps by nothing."""


class _Frame(msgspec.Struct):
    name: str
    filename: str
    line: int


class _Thread(msgspec.Struct):
    """One thread in py-spy's JSON."""

    frames: list[_Frame]
    thread_name: str | None = None


class _Entry(msgspec.Struct):
    """One collective in the flight recorder; the fields we read."""

    profiling_name: str = ""
    collective_seq_id: int = 0
    pg_id: int = 0
    is_p2p: bool = False
    input_dtypes: list[str] = []
    input_sizes: list[list[int]] = []


class _Flight(msgspec.Struct):
    entries: list[_Entry] = []


class LastCollective(msgspec.Struct, frozen=True):
    """The last collective a rank entered in the default group: number (from 1) and what it was."""

    number: int
    what: str


def collect(directory: Path, channel: ControlChannel, *, undecided: Collection[int], held: Collection[int]) -> None:
    """Make ranks write their stacks and last collectives into ``directory``; returns when they have, or cannot.

    ``undecided`` ranks are still at work; of ``held`` ones, which have failed and wait, only the collectives matter.

    Ranks answer a signal, also while blocked in a collective. Where one does not (it masks the signal, or has not
    come that far), py-spy is asked, if it is installed and the kernel lets it look.
    """
    pids = channel.pids()
    answering = {rank: pids[rank] for rank in undecided if rank in pids}  # one without the handler would die of it
    before = {rank: _size(stacks_path(directory, rank)) for rank in answering}
    processes.send(answering.values(), STACKS_SIGNAL)
    for rank in (*answering, *held):
        channel.ask(rank, FLIGHT_REQUEST)
    deadline = time.monotonic() + _WAIT_S
    waiting, sizes = {*answering, *held}, before
    while waiting and time.monotonic() < deadline:
        time.sleep(_LOOK_AGAIN_S)
        now = {rank: _size(stacks_path(directory, rank)) for rank in waiting}
        waiting = {
            rank
            for rank in waiting
            if not flight_path(directory, rank).exists()
            or (rank in answering and (now[rank] == before[rank] or now[rank] != sizes[rank]))
        }
        sizes = now
    for rank in answering:
        if _size(stacks_path(directory, rank)) == before[rank]:
            _ask_py_spy(answering[rank], stacks_path(directory, rank))


def stacks_path(directory: Path, rank: int) -> Path:
    """Where a rank writes its stacks."""
    return directory / f"stacks{rank}.txt"


def flight_path(directory: Path, rank: int) -> Path:
    """Where a rank writes its flight recorder."""
    return directory / f"flight{rank}.json"


def last_collective(directory: Path, rank: int) -> LastCollective | None:
    """The last collective a rank entered in the default group; None where nothing is known."""
    path = flight_path(directory, rank)
    try:
        if path.stat().st_size > _LARGEST_FLIGHT_BYTES:
            return None
        entries = msgspec.json.decode(path.read_bytes(), type=_Flight).entries
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None
    found = [e for e in entries if e.pg_id == 0 and not e.is_p2p and e.collective_seq_id > 0]
    if not found:
        return LastCollective(0, "none")
    last = max(found, key=lambda e: e.collective_seq_id)
    name = last.profiling_name.rpartition(":")[2] or "collective"
    of = [f"{kind.lower()}{size}" for kind, size in zip(last.input_dtypes, last.input_sizes, strict=False)]
    return LastCollective(last.collective_seq_id, f"{name} of {', '.join(of)}" if of else name)


def py_spy() -> str | None:
    """The py-spy command, on the PATH or beside this Python."""
    return shutil.which("py-spy") or shutil.which("py-spy", path=str(Path(sys.executable).parent))


def trimmed(text: str) -> str:
    """The threads of the last dump that are the user's, each cut where our code called theirs."""
    threads = []
    for block in re.split(r"\n\s*\n", _last_dump(text).strip()):
        if _LIFELINE in block:
            continue
        lines = block.splitlines()
        cut = next((i for i, line in enumerate(lines) if _ENTRY.search(line)), len(lines))
        threads.append("\n".join(lines[:cut] if cut > 1 else lines))
    return "\n\n".join(threads)


def waits_at(text: str) -> str:
    """The main thread's innermost user frame as ``file.py:7 in function``, and what it called; empty if unknown."""
    blocks = re.split(r"\n\s*\n", _last_dump(text).strip())
    main = next((block for block in blocks if _ENTRY.search(block)), blocks[-1])
    frames = _FRAME.findall(main)
    for i, (file, line, function) in enumerate(frames):
        if not _LIBRARY.search(file):
            called = next((f", in {name}" for _, _, name in reversed(frames[:i]) if name != _LOGGING_WRAPPER), "")
            return f"{file.rpartition('/')[2]}:{line} in {function}{called}"
    return ""


def _last_dump(text: str) -> str:
    return _NEXT_DUMP.split(text)[-1]


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _ask_py_spy(pid: int, path: Path) -> None:
    found = py_spy()
    if found is None:
        return
    with contextlib.suppress(OSError, subprocess.SubprocessError, msgspec.DecodeError):
        command = [found, "dump", "--json", "--pid", str(pid)]
        done = subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL, timeout=_PY_SPY_S, check=True)
        threads = msgspec.json.decode(done.stdout, type=list[_Thread])
        path.write_text("\n\n".join(_as_faulthandler(thread) for thread in threads))


def _as_faulthandler(thread: _Thread) -> str:
    frames = [f'  File "{f.filename}", line {f.line} in {f.name}' for f in thread.frames]
    return "\n".join([f"Thread {thread.thread_name} (py-spy, most recent call first):", *frames])
