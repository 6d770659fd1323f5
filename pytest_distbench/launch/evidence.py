"""What a rank leaves behind that tells why it failed: its log, the watchdog's lines, its flight record, its stacks.

C++ writes an exception that nobody caught before it aborts, and Python's faulthandler the stacks behind it, at any
signal that kills for an error. They are longer than what a failure shows of a log, and end with frames of ours, which
are known by the file and name that they have in the worker.

NCCL does not raise where a rank waits. A thread of torch, the watchdog, finds that a collective is late or that its
communicator has failed, writes lines to stderr, waits for four times 15 s (TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC), and
aborts the process: SIGABRT, with dozens of C++ frames after the line that tells why.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TypeVar

import msgspec

from pytest_distbench.launch import signs
from pytest_distbench.launch.workplace import find_line
from pytest_distbench.records.iteration import FlightEntry, flight_entries
from pytest_distbench.records.launch import RankFate
from pytest_distbench.records.launch_files import LaunchFiles, open_left
from pytest_distbench.records.record import replace

_UNCAUGHT = re.compile(rb"terminate called after throwing an instance of")
_EXCEPTION = re.compile(r"instance of '(?P<kind>.+)'\n\s*what\(\):\s+(?P<what>.*)")
_WHERE_IN_C = re.compile(r"^\[enforce fail at \S+\] ")
_DUMP = re.compile(rb"Fatal Python error: ")
_THREAD = re.compile(r"^(?:Current thread|Thread) 0x", re.MULTILINE)
_BEHIND = re.compile(r"^(?:Extension modules:|Current thread's C stack)", re.MULTILINE)
_DUMP_LINES = 2_000


def read_dump(log: Path) -> str:
    dump = find_line(log, _DUMP, following=_DUMP_LINES)
    first = _THREAD.search(dump)
    return _BEHIND.split(dump[first.start() :], maxsplit=1)[0].rstrip() if first else ""


def before_dump(text: str) -> str:
    return text.partition(_DUMP.pattern.decode())[0].rstrip()


_SAID = re.compile(
    rb"(Watchdog caught collective operation timeout|(Process group|NCCL) watchdog thread terminated with exception"
    rb"|watchdog got stuck)"
)
_LATE = re.compile(
    r"Watchdog caught collective operation timeout: WorkNCCL\(SeqNum=(\d+), OpType=(\w+)"
    r".*"
)
_FRAMES = re.compile(r"^(?:Exception raised from|frame #|terminate called|\[rank\d+\]:\[)", re.MULTILINE)
_FOLLOWING = 6
"""Lines below the watchdog's in which torch says what an error of NCCL's means, and NCCL what it warned of last."""
_OPS = {
    "ALLREDUCE": "all_reduce", "ALLREDUCE_COALESCED": "all_reduce_coalesced", "ALLGATHER": "all_gather",
    "_ALLGATHER_BASE": "all_gather_into_tensor", "REDUCE_SCATTER": "reduce_scatter",
    "_REDUCE_SCATTER_BASE": "reduce_scatter_tensor", "ALLTOALL": "all_to_all", "ALLTOALL_BASE": "all_to_all_single",
}  # fmt: skip
"""torch's names for kinds of work; those not here are the functions' in capitals."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Abort:
    """Why a rank aborted, or was about to.

    In the watchdog's words, and below them what torch says of an error of NCCL's; or in those of an exception of C++
    that nobody caught. ``error`` is the exception's class. It may have been late in a collective, ``all_reduce``, whose
    number is that in its group; empty: it was not late.
    """

    text: str
    kind: signs.Kind
    error: str = "DistBackendError"
    op: str = ""
    number: int | None = None


def read_abort(log: Path) -> Abort | None:
    """What the watchdog wrote first into a rank's log, however much follows it; None: nothing."""
    text = _FRAMES.split(find_line(log, _SAID, following=_FOLLOWING), maxsplit=1)[0].rstrip()
    if late := _LATE.search(text):
        number, op = late.groups()
        return Abort(text=late[0], kind="wait", op=_OPS.get(op, op.lower()), number=int(number))
    if not text:
        return None
    text = text.partition("with exception: ")[2] or text
    return Abort(text=text, kind=_kind(text))


def read_uncaught(log: Path) -> Abort | None:
    """The exception of C++ that has ended a rank, with the first line of what it says; None: none has."""
    found = _EXCEPTION.search(find_line(log, _UNCAUGHT, following=1))
    if found is None:
        return None
    error, text = found["kind"], _WHERE_IN_C.sub("", found["what"].strip())
    return Abort(text=text if text == error else f"{error}: {text}", kind=_kind(text), error=error)


def _kind(text: str) -> signs.Kind:
    sign = signs.read(text)
    return sign.kind if sign else "cause"


_LARGEST_BYTES = 64 * 2**20

_Content = TypeVar("_Content")


def with_entered(fate: RankFate, files: LaunchFiles) -> tuple[RankFate, bool]:
    """A fate with the collectives that its rank has entered, as far as its recorders say.

    Groups have torch's name, which two backends may share: under NCCL it begins with ``nccl``. Returns also whether the
    rank waits for nobody by way of a GPU: NCCL's recorder is there, and nothing in it is unfinished.
    """
    try:
        found = _read(files.flight(fate.rank), dict[str, msgspec.Raw])
        recordings = {name: flight_entries(recording) for name, recording in (found or {}).items()}
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return fate, False
    if found is None:
        return fate, False
    told = _read(files.groups(fate.rank), dict[str, list[int]]) or {}
    by_group: dict[str, list[FlightEntry]] = {}
    for recorder, recorded in recordings.items():
        for entry in recorded:
            if entry.group_name and not entry.is_p2p and entry.collective_seq_id > 0:
                by_group.setdefault(f"{recorder} {entry.group_name}".strip(), []).append(entry)
    waiting = {name: rest[0] for name, entries in by_group.items() if (rest := _unfinished(entries))}
    fate = replace(
        fate,
        collective="none",
        collective_number=0,
        collective_is_over=not waiting,
        entered={name: max(e.collective_seq_id for e in entries) for name, entries in by_group.items()},
        unfinished={name: entry.collective_seq_id for name, entry in waiting.items()},
        groups={f"{recorder} {name}".strip(): ranks for recorder in ("", *recordings) for name, ranks in told.items()},
    )
    if not by_group:
        return fate, False
    # A GPU is given many, and works them off in order: the first that is not over is what it waits in.
    shown = min(waiting.values(), key=_moment) if waiting else max(chain(*by_group.values()), key=_moment)
    inputs = [f"{dtype}{size}" for dtype, size in zip(shown.dtypes, shown.input_sizes, strict=False)]
    of = f" of {', '.join(inputs)}" if inputs else ""
    within = "" if shown.group == "default" else f" in group {shown.group.removeprefix('group ')}"
    fate = replace(fate, collective=f"{shown.op}{of}{within}", collective_number=shown.collective_seq_id)
    of_nccl = recordings.get("nccl", [])
    return fate, bool(of_nccl) and all(e.is_over for e in of_nccl)


def _unfinished(entries: Sequence[FlightEntry]) -> list[FlightEntry]:
    """Of one group's collectives those after the last that is over, in their order: it ends them one by one."""
    ended = max((e.collective_seq_id for e in entries if e.is_over), default=0)
    return sorted((e for e in entries if e.collective_seq_id > ended), key=lambda e: e.collective_seq_id)


def _moment(entry: FlightEntry) -> tuple[int, int]:
    return (entry.time_created_ns, entry.collective_seq_id)


def _read(path: Path, kind: type[_Content]) -> _Content | None:
    try:
        with open_left(path) as file:
            return msgspec.json.decode(file.read(_LARGEST_BYTES), type=kind)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _frames_in(**functions: str) -> re.Pattern[str]:
    """Lines of a dump that name one of these functions, by the worker's module they are in."""
    each = (rf'{module}\.py", line \d+ in (?:{names})' for module, names in functions.items())
    return re.compile(rf"pytest_distbench/worker/(?:{'|'.join(each)})$", re.MULTILINE)


def _folder_of(package: str) -> str:
    """One that was built in its checkout is not among the others."""
    spec = importlib.util.find_spec(package)
    return str(Path(spec.origin).parent) if spec is not None and spec.origin else f"/no {package} here"


_LIFELINE = "_die_with_pytest"
_AT_WORK = _frames_in(main="_measure", membership="join_group|leave_group")
_ENTRY = _frames_in(
    main="_measure|run|_end", bodies="call", script="run_script", membership="join_group|leave_group", leaving="leave"
)
_OUTERMOST = _frames_in(main="run_rank|_end")
"""Our frame at the bottom of the main thread, which comes last: a dump that shows it is whole."""
_OURS = r"/pytest_distbench/(?:jobs|launch|testing|worker|workloads|instruments\.py)"
"""This package, and not a checkout that is called so."""
_LIBRARY = re.compile(rf"/site-packages/|{_OURS}|/lib/python3|^<")
_PACKAGE = re.compile(r"^(.*/site-packages/[^/]+)")
_WAITS = re.compile(rf"/(?:site|dist)-packages/torch/|{re.escape(_folder_of('torch'))}/|{_OURS}")
_LOGGING_WRAPPER = "wrapper"  # around every collective in torch
_FRAME = re.compile(r'File "(.+)", line (\d+) in (\S+)')
_TRACED = re.compile(r'File "(.+)", line (\d+), in (\S+)')
_NEXT_DUMP = re.compile(r"(?<=\S\n)(?=(?:Current thread|Thread|Stack) )")
"""Threads of one dump are separated by an empty line, dumps by nothing."""


def trim(text: str) -> str:
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


def raised_at(traceback: str) -> str:
    """The same of the last traceback in a text."""
    frames = _TRACED.findall(traceback[traceback.rfind("Traceback (most recent call last)") :])
    return waits_at("\n".join(f'  File "{file}", line {line} in {name}' for file, line, name in reversed(frames)))


def is_in_own_code(text: str) -> bool:
    """Whether the main thread's innermost user frame has called neither torch nor us, which wait for others."""
    called, (file, _, _) = _innermost(text)
    return bool(file) and not any(_WAITS.search(library) for library, _, _ in called)


def is_whole(text: str) -> bool:
    """Whether a text holds a whole dump. One of over 100 frames is cut and never looks whole."""
    return _OUTERMOST.search(text) is not None


def _innermost(text: str) -> tuple[list[tuple[str, str, str]], tuple[str, str, str]]:
    """The main thread's innermost user frame, and before it the frames of what it called, innermost first."""
    blocks = re.split(r"\n\s*\n", _last_dump(text).strip())
    main = next((block for block in blocks if _ENTRY.search(block)), blocks[-1])
    frames = _FRAME.findall(main)
    is_installed = all(_LIBRARY.search(file) for file, _, _ in frames)
    is_users = _by_package(main) if is_installed else lambda file: not _LIBRARY.search(file)
    first = next((i for i, (file, _, _) in enumerate(frames) if is_users(file)), None)
    return (frames, ("", "", "")) if first is None else (frames[:first], frames[first])


def _by_package(main: str) -> Callable[[str], bool]:
    """For a body or script that is installed as libraries are: what is in the package that our code called."""
    entry = _ENTRY.search(main)
    files = [file for file, _, _ in _FRAME.findall(main[: entry.start()] if entry else "")]
    outermost = next((file for file in reversed(files) if not re.search(_OURS, file)), "")
    package = _PACKAGE.search(outermost)
    return lambda file: package is not None and (file == package[1] or file.startswith(f"{package[1]}/"))


def _last_dump(text: str) -> str:
    """The last whole one of a rank at work, else the last whole one.

    The elastic agent may ask a rank once more while we end it: it is left half an answer, or answers from where it
    reports that a peer is gone, which is not where it waited.
    """
    dumps = _NEXT_DUMP.split(text)
    whole = [dump for dump in dumps if is_whole(dump)] or dumps[-1:]
    return next((dump for dump in reversed(whole) if _AT_WORK.search(dump)), whole[-1])
