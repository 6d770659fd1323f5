"""Where the ranks of a stuck launch are: their Python stacks, the line each waits at, its last collective."""

from __future__ import annotations

import contextlib
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TypeVar

import msgspec

from pytest_distbench.launch import processes
from pytest_distbench.launch.channel import ControlChannel
from pytest_distbench.records.launch_files import LaunchFiles
from pytest_distbench.records.wire import FLIGHT_REQUEST, STACKS_SIGNAL

_WAIT_S = 2.0
_LOOK_AGAIN_S = 0.02
_PY_SPY_S = 10.0
_LARGEST_FLIGHT_BYTES = 64 * 2**20

_DEFAULT_GROUP = "default_pg"
_LIFELINE = "_die_with_pytest"
_ENTRY = re.compile(
    r'pytest_distbench/worker/main\.py", line \d+ in (_measure|_join_group|_leave_group|run)$', re.MULTILINE
)
_OUTERMOST = re.compile(r'pytest_distbench/worker/main\.py", line \d+ in run_rank$', re.MULTILINE)
"""Our frame at the bottom of the main thread, which comes last: a dump that shows it is whole."""
_LIBRARY = re.compile(r"/site-packages/|/pytest_distbench/|/lib/python3|^<")
_WAITS = re.compile(r"/torch/|/pytest_distbench/")
_LOGGING_WRAPPER = "wrapper"  # around every collective in torch
_FRAME = re.compile(r'File "(.+)", line (\d+) in (\S+)')
_NEXT_DUMP = re.compile(r"(?<=\S\n)(?=(?:Current thread|Thread|Stack) )")
"""Threads of one dump are separated by an empty line, dumps by nothing."""


_Content = TypeVar("_Content")


class _Frame(msgspec.Struct):
    name: str
    filename: str
    line: int


class _Thread(msgspec.Struct):
    """One thread in py-spy's JSON."""

    frames: list[_Frame]
    thread_name: str | None = None


class _Entry(msgspec.Struct):
    """One collective in the flight recorder; the fields we read. ``retired``: it is over, or was given up."""

    profiling_name: str = ""
    collective_seq_id: int = 0
    process_group: list[str] = []
    """Its name, and its description."""
    time_created_ns: int = 0
    is_p2p: bool = False
    retired: bool = False
    input_dtypes: list[str] = []
    input_sizes: list[list[int]] = []


class _Flight(msgspec.Struct):
    entries: list[_Entry] = []


class Entered(msgspec.Struct, frozen=True):
    """The collectives that a rank has entered.

    Attributes:
        number: of the last one in its group, from 1; 0: none.
        what: it was, ``all_reduce of float[8]``.
        is_over: it has ended, or was given up.
        numbers: group's name -> number of the last one there.
        members: group's name -> its ranks; of the groups this rank belongs to.
    """

    number: int
    what: str
    is_over: bool
    numbers: dict[str, int]
    members: dict[str, list[int]]


def collect(files: LaunchFiles, channel: ControlChannel, *, undecided: Collection[int], held: Collection[int]) -> None:
    """Make ranks write their stacks and last collectives into the launch's files; returns when they have, or cannot.

    ``undecided`` ranks are still at work; of ``held`` ones, which have failed and wait, only the collectives matter.

    Ranks answer a signal, also while blocked in a collective. Where one does not (it masks the signal, or has not
    come that far), py-spy is asked, if it is installed and the kernel lets it look.
    """
    pids = channel.pids()
    at_work = {rank: pids[rank] for rank in undecided if rank in pids}
    # One without the handler would die of the signal: it has not come that far, or the body took the handler away.
    able = {rank: pid for rank, pid in at_work.items() if not processes.is_stopped(pid)}
    answering = {rank: pid for rank, pid in able.items() if processes.catches(pid, STACKS_SIGNAL)}
    before = {rank: _size(files.stacks(rank)) for rank in answering}
    processes.send(answering.values(), STACKS_SIGNAL)
    _wait_until(lambda: all(_is_whole(files.stacks(rank), before[rank]) for rank in answering))
    asked = (*answering, *held)  # only now: a thread that works while its frames are read may show nonsense
    for rank in asked:
        channel.ask(rank, FLIGHT_REQUEST)
    _wait_until(lambda: all(files.flight(rank).exists() for rank in asked))
    for rank, pid in at_work.items():
        if _size(files.stacks(rank)) == before.get(rank, 0):
            _ask_py_spy(pid, files.stacks(rank))


def entered(files: LaunchFiles, rank: int) -> Entered | None:
    """What a rank's flight recorder says; None where it says nothing."""
    entries = _read(files.flight(rank), _Flight)
    if entries is None:
        return None
    members = _read(files.groups(rank), dict[str, list[int]]) or {}
    found = [e for e in entries.entries if e.process_group and not e.is_p2p and e.collective_seq_id > 0]
    numbers: dict[str, int] = {}
    for entry in found:
        group = entry.process_group[0]
        numbers[group] = max(entry.collective_seq_id, numbers.get(group, 0))
    if not found:
        return Entered(0, "none", is_over=True, numbers=numbers, members=members)
    last = max(found, key=lambda e: (e.time_created_ns, e.collective_seq_id))
    what = last.profiling_name.rpartition(":")[2] or "collective"
    if of := [f"{kind.lower()}{size}" for kind, size in zip(last.input_dtypes, last.input_sizes, strict=False)]:
        what += f" of {', '.join(of)}"
    name, description, *_ = (*last.process_group, "")
    if description != _DEFAULT_GROUP:
        what += f" in group {name if description in ('', 'undefined') else description}"
    return Entered(last.collective_seq_id, what, is_over=last.retired, numbers=numbers, members=members)


def _read(path: Path, kind: type[_Content]) -> _Content | None:
    try:
        if path.stat().st_size > _LARGEST_FLIGHT_BYTES:
            return None
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


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
    called, (file, line, function) = _innermost(text)
    if not file:
        return ""
    within = next((f", in {name}" for _, _, name in reversed(called) if name != _LOGGING_WRAPPER), "")
    return f"{file.rpartition('/')[2]}:{line} in {function}{within}"


def is_in_own_code(text: str) -> bool:
    """Whether the main thread's innermost user frame has called neither torch nor us, which wait for others."""
    called, (file, _, _) = _innermost(text)
    return bool(file) and not any(_WAITS.search(library) for library, _, _ in called)


def _innermost(text: str) -> tuple[list[tuple[str, str, str]], tuple[str, str, str]]:
    """The main thread's innermost user frame, and before it the frames of what it called, innermost first."""
    blocks = re.split(r"\n\s*\n", _last_dump(text).strip())
    main = next((block for block in blocks if _ENTRY.search(block)), blocks[-1])
    frames = _FRAME.findall(main)
    first = next((i for i, (file, _, _) in enumerate(frames) if not _LIBRARY.search(file)), None)
    return (frames, ("", "", "")) if first is None else (frames[:first], frames[first])


def _last_dump(text: str) -> str:
    """The last whole one: the elastic agent may ask a rank once more while we end it, and be left half an answer."""
    dumps = _NEXT_DUMP.split(text)
    return next((dump for dump in reversed(dumps) if _OUTERMOST.search(dump)), dumps[-1])


def _wait_until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _WAIT_S
    while not is_so() and time.monotonic() < deadline:
        time.sleep(_LOOK_AGAIN_S)


def _is_whole(path: Path, start: int) -> bool:
    """Whether a file holds a whole dump from ``start`` on. One of over 100 frames is cut and never looks whole."""
    try:
        text = path.read_bytes()[start:].decode(errors="replace")
    except OSError:
        return False
    return _OUTERMOST.search(text) is not None


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
        if processes.is_stopped(pid):  # it cannot be stopped once more, and will not move
            command.append("--nonblocking")
        done = subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL, timeout=_PY_SPY_S, check=True)
        threads = msgspec.json.decode(done.stdout, type=list[_Thread])
        path.write_text("\n\n".join(_as_faulthandler(thread) for thread in threads))


def _as_faulthandler(thread: _Thread) -> str:
    frames = [f'  File "{f.filename}", line {f.line} in {f.name}' for f in thread.frames]
    return "\n".join([f"Thread {thread.thread_name} (py-spy, most recent call first):", *frames])
