"""Ranks that SIGKILL did not end: the kernel keeps them while a driver or a file system does not come back."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Collection, Mapping

from pytest_distbench.launch.site import processes
from pytest_distbench.units import format_bytes

_STATES = {"D": "the kernel waits for a device or a file system", "R": "the kernel is at work for it"}


def tell_stuck(pids: Mapping[int, int], *, after_s: float, on_gpu: bool) -> dict[int, str]:
    """What is to be said of the ranks that are still there so long after they were killed."""
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
