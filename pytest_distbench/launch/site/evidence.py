"""Evidence from the ranks of a launch that is stuck or has failed, which write it while they still live.

Ranks that SIGKILL did not end are told, too: the kernel keeps them while a driver or a file system does not come back.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

import msgspec

from pytest_distbench.launch.evidence import is_whole
from pytest_distbench.launch.site import processes
from pytest_distbench.records.launch_files import LaunchFiles, open_left
from pytest_distbench.records.wire import FLIGHT_REQUEST, STACKS_SIGNAL
from pytest_distbench.units import format_bytes

_STATES = {"D": "the kernel waits for a device or a file system", "R": "the kernel is working for it"}


def tell_stuck(pids: Mapping[int, int], *, after_s: float, on_gpu: bool) -> dict[int, str]:
    left = {rank: pid for rank, pid in pids.items() if processes.is_alive(pid)}
    held = gpu_memory(left.values()) if left and on_gpu else {}
    told = {}
    for rank, pid in left.items():
        state = processes.state(pid)
        what = f", and holds {format_bytes(held[pid])} of GPU memory" if pid in held else ""
        told[rank] = (
            f"rank {rank} (pid {pid}) is still there {after_s:.0f} s after it was killed: state {state}, "
            f"{_STATES.get(state, 'it is on its way out')}{what}; ps -o pid,stat,wchan {pid} shows when it has gone"
        )
    return told


def gpu_memory(pids: Collection[int]) -> dict[int, int]:
    """Process id -> bytes of GPU memory that NVML says it holds. In a container NVML may know it by another number."""
    held: Counter[int] = Counter()
    with contextlib.suppress(Exception):  # no driver, or one that answers nothing any more: that is why we ask
        import pynvml as nvml

        nvml.nvmlInit()
        for index in range(nvml.nvmlDeviceGetCount()):
            with contextlib.suppress(nvml.NVMLError):
                handle = nvml.nvmlDeviceGetHandleByIndex(index)
                for process in nvml.nvmlDeviceGetComputeRunningProcesses(handle):
                    if process.pid in pids and process.usedGpuMemory:  # None: the driver does not count it
                        held[process.pid] += process.usedGpuMemory
        nvml.nvmlShutdown()
    return dict(held)


_WAIT_S = 5.0
"""For an answer. A busy machine is slow, and what is not told is lost; a rank that cannot answer costs this much."""
_LOOK_AGAIN_S = 0.02
_PY_SPY_S = 10.0


def collect(
    files: LaunchFiles,
    pids: Mapping[int, int],
    ask: Callable[[int, bytes], None],
    *,
    undecided: Collection[int],
    held: Collection[int],
) -> None:
    """Make ranks write their stacks and last collectives into the launch's files; returns when they have, or cannot.

    Undecided ranks are still at work; held ones have failed and wait: of them only the collectives matter. Ranks answer
    a signal, also while blocked in a collective. Where one does not (it masks the signal, or has not come that far),
    py-spy is asked, if it is installed and the kernel lets it look.
    """
    at_work = {rank: pids[rank] for rank in undecided if rank in pids}
    # One without the handler would die of the signal: it has not come that far, or the body took the handler away.
    able = {rank: pid for rank, pid in at_work.items() if not processes.is_stopped(pid)}
    answering = {rank: pid for rank, pid in able.items() if processes.catches(pid, STACKS_SIGNAL)}
    before = {rank: _size(files.stacks(rank)) for rank in answering}
    processes.send(answering.values(), STACKS_SIGNAL)
    _wait_until(lambda: all(is_whole(_written(files.stacks(rank), since)) for rank, since in before.items()))
    asked = (*answering, *held)  # only now: a thread that works while its frames are read may show nonsense
    for rank in asked:
        ask(rank, FLIGHT_REQUEST)
    _wait_until(lambda: all(files.flight(rank).exists() for rank in asked))
    for rank, pid in at_work.items():
        if _size(files.stacks(rank)) == before.get(rank, 0):
            _ask_py_spy(pid, files.stacks(rank))


def py_spy() -> str | None:
    """The py-spy command, on the PATH or beside this Python."""
    return shutil.which("py-spy") or shutil.which("py-spy", path=str(Path(sys.executable).parent))


def _wait_until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _WAIT_S
    while not is_so() and time.monotonic() < deadline:
        time.sleep(_LOOK_AGAIN_S)


def _written(path: Path, start: int) -> str:
    with contextlib.suppress(OSError), open_left(path) as file:
        file.seek(start)
        return file.read().decode(errors="replace")
    return ""


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
        path.write_text(as_faulthandler(done.stdout))


def as_faulthandler(told: bytes) -> str:
    """What py-spy says of threads, in JSON, as Python's faulthandler writes it."""
    blocks = []
    for thread in msgspec.json.decode(told):
        frames = [f'  File "{f["filename"]}", line {f["line"]} in {f["name"]}' for f in thread["frames"]]
        blocks.append("\n".join([f"Thread {thread['thread_name']} (py-spy, most recent call first):", *frames]))
    return "\n\n".join(blocks)
