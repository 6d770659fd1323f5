"""Evidence of why a rank failed: its log, the watchdog's lines, its flight recorder dump, its stacks.

C++ writes an uncaught exception before it aborts, and Python's faulthandler then writes the stacks, as at any fatal
signal. They are longer than the part of a log that a failure shows, and end with frames of this package, recognised by
file and function name.

NCCL does not raise where a rank waits. A thread of torch, the watchdog, finds that a collective is late or that its
communicator has failed, writes lines to stderr, waits for four times 15 s (TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC), and
aborts the process: SIGABRT, with dozens of C++ frames after the line with the reason.

NCCL's messages are those of ``ncclGetErrorString`` and of its warnings (``src/init.cc``, ``src/bootstrap.cc``,
``src/misc/shmutils.cc``, ``src/transport``). torch puts ``NCCL error in: FILE:LINE`` before them; after them, what the
code means, and ``Last error:`` with NCCL's latest warning (``NCCLUtils.cpp``, ``ProcessGroupNCCL.cpp``). CUDA's
messages are those of ``cudaGetErrorString``.
"""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Literal

import msgspec

from pytest_distbench.launch.reduce import read_left
from pytest_distbench.launch.workplace import find_line
from pytest_distbench.records.iteration import FlightEntry, operation, read_flight_recorder
from pytest_distbench.records.launch import ErrorReport, RankFate
from pytest_distbench.records.launch_files import LaunchFiles
from pytest_distbench.records.record import replace

_LAST_PACE = 10  # collectives, by which it is seen how often a rank enters one
_SOON_S, _TIMES_PACE = 1.0, 5.0  # a rank whose last collective is older, and by so many times its pace, hangs
_UNCAUGHT = re.compile(rb"terminate called after throwing an instance of")
_EXCEPTION = re.compile(r"instance of '(?P<kind>.+)'\n\s*what\(\):\s+(?P<what>.*)")
_WHERE_IN_C = re.compile(r"^\[enforce fail at \S+\] ")
_DUMP = re.compile(rb"Fatal Python error: ")
_THREAD = re.compile(r"^(?:Current thread|Thread) 0x", re.MULTILINE)
_BEHIND = re.compile(r"^(?:Extension modules:|Current thread's C stack)", re.MULTILINE)
_DUMP_LINES = 2_000
_LONGEST_PATH = 4_096


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
_LATE = re.compile(r"Watchdog caught collective operation timeout: WorkNCCL\(SeqNum=(\d+), OpType=(\w+).*")
_FRAMES = re.compile(r"^(?:Exception raised from|frame #|terminate called|\[rank\d+\]:\[)", re.MULTILINE)
_FOLLOWING = 6  # lines below the watchdog's: torch's meaning of an NCCL error, and NCCL's last warning


def read_abort(log: Path) -> ErrorReport | None:
    """The watchdog's first error in a rank's log, with torch's lines about NCCL, or None."""
    text = _FRAMES.split(find_line(log, _SAID, following=_FOLLOWING), maxsplit=1)[0].rstrip()
    if late := _LATE.search(text):
        return _abort("DistBackendError", late[0])
    return _abort("DistBackendError", text.partition("with exception: ")[2] or text) if text else None


def late_collective(text: str) -> tuple[str, int | None]:
    """The collective that the watchdog found late, such as ``all_reduce``, and its number, or ("", None)."""
    late = _LATE.search(text)
    return (operation(late[2]), int(late[1])) if late else ("", None)


def read_uncaught(log: Path) -> ErrorReport | None:
    """The C++ exception that ended a rank, with the first line of its text, or None."""
    found = _EXCEPTION.search(find_line(log, _UNCAUGHT, following=1))
    if found is None:
        return None
    kind, text = found["kind"], _WHERE_IN_C.sub("", found["what"].strip())
    return _abort(kind, text if text == kind else f"{kind}: {text}")


def _abort(kind: str, text: str) -> ErrorReport:
    said = [f"{kind}: {text}"]
    return ErrorReport(kind=kind, message=text, traceback=text, raised_at=0.0, torch_errors=said, began_in_torch=True)


def with_entered(fate: RankFate, files: LaunchFiles) -> tuple[RankFate, bool]:
    """A rank's fate with the collectives that the rank entered, from the dump of torch's flight recorders.

    Keys are torch's group names, prefixed ``nccl`` under NCCL, as two backends may share a name. The second value says
    whether on a GPU the rank waits for no other: NCCL's recorder exists and all of its collectives are complete.
    """
    try:
        found = read_left(files.flight(fate.rank), dict[str, msgspec.Raw])
        recordings = {name: read_flight_recorder(recording) for name, recording in (found or {}).items()}
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return fate, False
    if found is None:
        return fate, False
    groups = read_left(files.groups(fate.rank), dict[str, list[int]]) or {}
    by_group: dict[str, list[FlightEntry]] = {}
    for recorder, recorded in recordings.items():
        for entry in recorded:
            if entry.group_name and not entry.is_p2p and entry.collective_seq_id > 0:
                by_group.setdefault(f"{recorder} {entry.group_name}".strip(), []).append(entry)
    waiting = {}
    if fate.is_hung:
        fate = replace(fate, went_on=_went_on(list(chain(*recordings.values())), files.flight(fate.rank)))
    for name, entries in by_group.items():  # a group ends its collectives one by one
        ended = max((e.collective_seq_id for e in entries if e.is_over), default=0)
        if rest := [e for e in entries if e.collective_seq_id > ended]:
            waiting[name] = min(rest, key=lambda e: e.collective_seq_id)
    fate = replace(
        fate,
        collective="none",
        collective_number=0,
        collective_is_over=not waiting,
        entered={name: max(e.collective_seq_id for e in entries) for name, entries in by_group.items()},
        unfinished={name: entry.collective_seq_id for name, entry in waiting.items()},
        groups={
            f"{recorder} {name}".strip(): ranks for recorder in ("", *recordings) for name, ranks in groups.items()
        },
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


def awaited_file(path: Path) -> str:
    """Path of the file that a rank waits for, as the rank noted it at ``path``, or ""."""
    with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError):
        return (read_left(path, str) or "")[:_LONGEST_PATH]
    return ""


def _went_on(entries: Sequence[FlightEntry], dump: Path) -> int:
    """Number of collectives entered by a rank that was still entering them at its usual pace before the dump, or 0."""
    moments = sorted(entry.time_created_ns / 1e9 for entry in entries)[-_LAST_PACE:]
    if len(moments) < _LAST_PACE:
        return 0
    pace_s = statistics.median(after - before for before, after in itertools.pairwise(moments))
    stalled_s = dump.stat().st_mtime - moments[-1]
    return max(entry.record_id for entry in entries) + 1 if stalled_s <= max(_SOON_S, _TIMES_PACE * pace_s) else 0


def _moment(entry: FlightEntry) -> tuple[int, int]:
    return (entry.time_created_ns, entry.collective_seq_id)


def _frames_in(**functions: str) -> re.Pattern[str]:
    each = (rf'{module}\.py", line \d+ in (?:{names})' for module, names in functions.items())
    return re.compile(rf"pytest_distbench/worker/(?:{'|'.join(each)})$", re.MULTILINE)


_TORCH = importlib.util.find_spec("torch")
_TORCH_FOLDER = str(Path(_TORCH.origin).parent) if _TORCH is not None and _TORCH.origin else "/no torch here"
"""Folder of torch, which may be a checkout outside of site-packages."""
_LIFELINE = "_die_with_pytest"
_AT_WORK = _frames_in(main="_measure", membership="join_group|leave_group")
_USER_CALL = _frames_in(
    main="_measure|run|_end", bodies="call", script="run_script", membership="join_group|leave_group", leaving="leave"
)
_OUTERMOST = _frames_in(main="run_rank|_end")
"""Pattern of this package's frame at the bottom of the main thread's stack; it ends a dump, which is then complete."""
_ROOMS = "|".join(sorted(path.parent.name for path in Path(__file__).parents[1].glob("*/__init__.py")))
_OURS = rf"/pytest_distbench/(?:{_ROOMS}|instruments\.py)"  # this package, and not a checkout that is called so
_LIBRARY = re.compile(rf"/site-packages/|{_OURS}|/lib/python3|^<")
_PACKAGE = re.compile(r"^(.*/site-packages/[^/]+)")
_WAITS = re.compile(rf"/(?:site|dist)-packages/torch/|{re.escape(_TORCH_FOLDER)}/|{_OURS}")
_LOGGING_WRAPPER = "wrapper"  # around every collective in torch
_FRAME = re.compile(r'File "(.+)", line (\d+) in (\S+)')
_TRACED = re.compile(r'File "(.+)", line (\d+), in (\S+)')
_NEXT_DUMP = re.compile(r"(?<=\S\n)(?=(?:Current thread|Thread|Stack) )")
"""Boundary of dumps: an empty line separates threads, nothing separates dumps."""


def trim(text: str) -> str:
    """The stacks in a text's last dump, without this package's thread and without frames that lead to user code."""
    threads = []
    for block in re.split(r"\n\s*\n", _last_dump(text).strip()):
        if _LIFELINE in block:
            continue
        lines = block.splitlines()
        cut = next((i for i, line in enumerate(lines) if _USER_CALL.search(line)), len(lines))
        threads.append("\n".join(lines[:cut] if cut > 1 else lines))
    return "\n\n".join(threads)


def waits_at(text: str) -> str:
    """The main thread's innermost user frame, ``file.py:7 in function, in called``, or ""."""
    called, (file, line, function) = _innermost(text)
    if not file:
        return ""
    within = next((f", in {name}" for _, _, name in reversed(called) if name != _LOGGING_WRAPPER), "")
    return f"{file.rpartition('/')[2]}:{line} in {function}{within}"


def raised_at(traceback: str) -> str:
    """:func:`waits_at` for the last traceback in a text."""
    frames = _TRACED.findall(traceback[traceback.rfind("Traceback (most recent call last)") :])
    return waits_at("\n".join(f'  File "{file}", line {line} in {name}' for file, line, name in reversed(frames)))


def is_in_own_code(text: str) -> bool:
    """Whether the main thread's innermost user frame called neither torch nor this package."""
    called, (file, _, _) = _innermost(text)
    return bool(file) and not any(_WAITS.search(library) for library, _, _ in called)


def is_whole(text: str) -> bool:
    """Whether a text holds a complete dump. faulthandler cuts stacks at 100 frames; those never look complete."""
    return _OUTERMOST.search(text) is not None


def _innermost(text: str) -> tuple[list[tuple[str, str, str]], tuple[str, str, str]]:
    """The main thread's innermost user frame, after the frames that it called, innermost first."""
    blocks = re.split(r"\n\s*\n", _last_dump(text).strip())
    main = next((block for block in blocks if _USER_CALL.search(block)), blocks[-1])
    frames = _FRAME.findall(main)
    users = [i for i, (file, _, _) in enumerate(frames) if not _LIBRARY.search(file)]
    if not users:  # a body or script that is installed as libraries are: what is in the package that our code called
        call = _USER_CALL.search(main)
        files = [file for file, _, _ in _FRAME.findall(main[: call.start()] if call else "")]
        outermost = next((file for file in reversed(files) if not re.search(_OURS, file)), "")
        if package := _PACKAGE.search(outermost):
            own = (package[1], f"{package[1]}/")
            users = [i for i, (file, _, _) in enumerate(frames) if file == own[0] or file.startswith(own[1])]
    first = next(iter(users), None)
    return (frames, ("", "", "")) if first is None else (frames[:first], frames[first])


def _last_dump(text: str) -> str:
    """The last complete dump made inside the body or the group's setup, else the last complete one.

    An elastic agent that is ending may request another dump, which is then cut short, or shows the report of a lost
    peer.
    """
    dumps = _NEXT_DUMP.split(text)
    whole = [dump for dump in dumps if is_whole(dump)] or dumps[-1:]
    return next((dump for dump in reversed(whole) if _AT_WORK.search(dump)), whole[-1])


@dataclass(frozen=True, slots=True)
class Sign:
    """A known error: a pattern searched case-insensitively in its text, its meaning and advice.

    ``kind``: ``wait`` if another rank did not come, ``victim`` if another died, ``cause`` if the error began here.
    """

    text: str
    meaning: str = ""
    advice: str = ""
    kind: Literal["wait", "victim", "cause"] = "cause"


_SEE_XID = (
    "sudo dmesg | grep -i xid names the fault; nvidia-smi -q -d ECC,ROW_REMAPPER,PAGE_RETIREMENT shows the memory"
)
_NCCL_DEBUG = "run it again with NCCL_DEBUG=WARN: the rank's log then says what failed"
_TORCH_FOR_DRIVER = (
    "install the build that fits the driver: uv pip install --reinstall-package torch --torch-backend=auto torch"
)
_BLOCKING = "CUDA reports it late: run it again with CUDA_LAUNCH_BLOCKING=1, or under compute-sanitizer"

MISMATCH = "collectives do not match"  # gloo finds it where a message is longer than its receiver has room for

SIGNS: Sequence[Sign] = (
    # A wait: of NCCL's watchdog, of NCCL_BLOCKING_WAIT, of a store.
    Sign(r"watchdog caught collective operation timeout|timed out in blocking wait", kind="wait"),
    Sign(
        r"store.*(timeout|timed out)|wait timeout after|timed out waiting|timeout waiting|DistStoreError", kind="wait"
    ),
    # A peer is gone. Before the causes: NCCL's latest warning stands behind these, and may be an old one.
    Sign(r"remote process exited or there was a network error|ncclRemoteError", kind="victim"),
    Sign(
        r"connectFullMesh failed.*remote=\[(::ffff:)?127\.(?!0\.0\.1\])",
        "gloo uses an address that leads each host to itself",
        "the host's name leads to it in /etc/hosts: set GLOO_SOCKET_IFNAME to the interface between hosts (ip -brief "
        "addr lists them)",
    ),
    Sign(r"connectFullMesh failed", kind="victim"),
    Sign(r"connection (closed|reset) by (remote )?peer|connection was (closed|reset)", kind="victim"),
    Sign(r"broken pipe|application timeout", kind="victim"),
    Sign(
        r"initialize the default process group twice",
        "the process group exists when a function begins",
        "remove init_process_group from the body, or let it make the group: distbench.run(body, makes_group=False)",
    ),
    Sign(
        r"received data size doesn't match expected size",
        MISMATCH,
        "the usual causes are a branch that depends on the rank or its data, or a rank that runs its loop once more; "
        "shapes and dtypes must be equal in all ranks",
    ),
    # The device is full, ill, or not ours.
    Sign(
        r"/dev/shm/nccl-|shared memory segment|unable to (write to|mmap).*</torch_",
        "/dev/shm is full",
        "NCCL needs 10 to 40 MB there per rank: docker run --shm-size=1g, or remove the files of a killed run (ls "
        "/dev/shm/nccl-*)",
    ),
    Sign(
        r"(CUDA|Cuda failure).*out of memory|OutOfMemoryError|ErrorMemoryAllocation|CU\w+_STATUS_ALLOC_FAILED",
        "the GPU's memory is full",
        "nvidia-smi shows what else uses it; NCCL needs a few hundred MB in addition to torch's allocator",
    ),
    Sign(r"uncorrectable ECC error|double.bit ECC", "the GPU's memory is damaged", _SEE_XID),
    Sign(r"uncorrectable NVLink error|nvlink.*hardware error", "an NVLink failed", _SEE_XID),
    Sign(r"\bxid\b|fallen off the bus|GPU is lost|hardware stack error", "the GPU failed", _SEE_XID),
    Sign(
        r"system not yet initialized",
        "the NVSwitches are not set up",
        "check systemctl status nvidia-fabricmanager: it must run, in the driver's version",
    ),
    Sign(
        r"unspecified launch failure|illegal (memory access|instruction)|misaligned address|invalid program counter"
        r"|device-side assert",
        "a kernel failed, of the body or of a library",
        _BLOCKING,
    ),
    Sign(
        r"busy or unavailable",
        "the GPU accepts no further process",
        "check nvidia-smi -q -d COMPUTE: in exclusive mode each rank needs its own GPU",
    ),
    Sign(
        r"no kernel image is available",
        "this torch has no kernels for this GPU",
        "install a torch that fits the GPU; python -c 'import torch; print(torch.cuda.get_arch_list())' lists what "
        "this one has",
    ),
    Sign(
        r"driver version is insufficient|driver combination|found no NVIDIA driver|driver on your system is too old",
        "the driver does not fit this torch",
        f"{_TORCH_FOR_DRIVER}; or install a newer driver",
    ),
    Sign(
        r"torch not compiled with CUDA enabled|has no attribute '_cuda_|doesn't have NCCL built in",
        "this torch is built for the CPU only",
        f"with a GPU {_TORCH_FOR_DRIVER}; without one the script has to choose the device cpu and the backend gloo",
    ),
    Sign(
        r"no (CUDA|HIP) GPUs are available|no (CUDA|ROCm)-capable device is detected",
        "the rank sees no GPU",
        "check CUDA_VISIBLE_DEVICES in the rank's environment (AMD: ROCR_ and HIP_VISIBLE_DEVICES too): it names a "
        "missing GPU; or the container has none (docker run --gpus all; AMD: --device=/dev/kfd --device=/dev/dri)",
    ),
    Sign(
        r"invalid device ordinal",
        "the rank sees fewer GPUs than it has to choose from",
        "compare CUDA_VISIBLE_DEVICES in the rank's environment with nvidia-smi -L: a scheduler or a container may "
        "give each task one GPU (Slurm: use --gpus-per-node, not --gpus-per-task)",
    ),
    Sign(
        r"re-initialize CUDA in forked subprocess",
        "CUDA was in use before the rank was forked",
        "a module of distbench_preload, or the body before it forks, uses CUDA: remove the module, or use "
        "--distbench-launcher=torchrun",
    ),
    # NCCL was asked for what it cannot do.
    Sign(
        r"duplicate GPU detected|multiple ranks are using the same (GPU|partition)",
        "two ranks use one GPU",
        "give each rank its own GPU (CUDA_VISIBLE_DEVICES), or let them share one: --distbench-share=gpu",
    ),
    Sign(
        r"mismatched NCCL version",
        "the ranks have different NCCL versions",
        "check pip list | grep nccl, LD_LIBRARY_PATH and LD_PRELOAD: one of them leads a rank to another libnccl",
    ),
    Sign(
        r"no socket interface found|failed to find.*interface",
        "NCCL found no network interface",
        "set NCCL_SOCKET_IFNAME to an interface of this host (ip -brief addr lists them)",
    ),
    Sign(
        r"NVLink SHARP|NVLS",
        "NVLink SHARP does not work here",
        "switch it off with NCCL_NVLS_ENABLE=0, or check systemctl status nvidia-fabricmanager",
    ),
    Sign(
        r"too many open files",
        "too many open files",
        "raise ulimit -n: NCCL opens several files for each pair of ranks",
    ),
    Sign(
        r"ibv_\w+ failed|cannot allocate memory",
        "memory could not be registered, or there is none left",
        "set ulimit -l unlimited for InfiniBand; free shows the host's memory",
    ),
    Sign(
        r"watchdog got stuck",
        "a call of CUDA or NCCL did not come back, or a thread holds Python's lock",
        "the rank's stacks show where; TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC sets how long it may take",
    ),
    # What the code alone says, where NCCL's latest warning says no more.
    Sign(r"ncclUnhandledCudaError|unhandled cuda error", "a call of CUDA failed inside NCCL", _NCCL_DEBUG),
    Sign(r"ncclSystemError|unhandled system error", "a call of the system failed inside NCCL", _NCCL_DEBUG),
    Sign(r"ncclInternalError|NCCL.*internal error", "a check inside NCCL failed", _NCCL_DEBUG),
    Sign(r"ncclInvalidArgument|NCCL.*invalid argument", "NCCL was given a wrong argument", _NCCL_DEBUG),
    Sign(
        r"ncclInvalidUsage|NCCL.*invalid usage",
        "NCCL was used in an invalid way",
        f"{_NCCL_DEBUG}; often two ranks use one GPU, or sizes and types differ between ranks",
    ),
    # An abort without a reason: somebody else's. With one, the reason has been found above.
    Sign(r"NCCL communicator was aborted", kind="victim"),
    Sign(
        r"CU(BLAS|DNN)_STATUS_NOT_INITIALIZED",
        "cuBLAS or cuDNN could not begin on the GPU",
        "its memory is often full (nvidia-smi shows what uses it), or LD_LIBRARY_PATH leads to another version (pip "
        "list | grep nvidia)",
    ),
    Sign(
        r"\bCU(BLAS|DNN|FFT|SOLVER|SPARSE)\w*_STATUS_\w+",
        "a CUDA library refused a call, or its kernel failed",
        f"{_BLOCKING}; LD_LIBRARY_PATH may lead to another version of the library (pip list | grep nvidia)",
    ),
    Sign(
        r"CUDA driver error",
        "a call of the CUDA driver failed",
        f"the driver may be too old for this torch (nvidia-smi shows its version); {_TORCH_FOR_DRIVER}",
    ),
    Sign(r"CUDA error", "a call of CUDA failed", _BLOCKING),
)
"""Known errors; the first whose pattern is found applies, so specific patterns come before general ones."""


def read_sign(text: str) -> Sign | None:
    """The first of :data:`SIGNS` that an error's text matches, or None."""
    return next((sign for sign in SIGNS if re.search(sign.text, text, re.IGNORECASE)), None)


def last_error(text: str) -> str:
    """NCCL's latest warning, which torch appends to its own error, or ""."""
    _, _, after = text.partition("Last error:")
    return next((line.strip() for line in after.splitlines() if line.strip()), "")
