"""What a rank used: its CPU time and memory, and the software it ran. Who else computed meanwhile is in ``load``."""

from __future__ import annotations

import contextlib
import ctypes
import platform
import resource
from pathlib import Path
from typing import Any

import numpy
import torch

from pytest_distbench.records.plan import LaunchPlan
from pytest_distbench.worker import state


def own_cpu_s() -> float:
    own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


class MemoryPeak:
    """The most memory that a rank needs from now on, beyond what its process has already.

    A process that has loaded torch has some hundred MiB, shared with others in part, beside which a model is little. So
    the system is asked to forget its high-water mark (proc_pid_clear_refs(5)), and what the process had is taken off.
    Pages of files are, too: which of a library's are read in, and when, is chance.
    """

    def __init__(self, plan: LaunchPlan) -> None:
        self._on_cuda = plan.device == "cuda"
        self._before: dict[str, int] = {}
        self.begin()

    def begin(self) -> None:
        self._before = {}
        with contextlib.suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")
            self._before = _memory()

    def num_bytes(self) -> int | None:
        """So far. On CUDA the most that torch's allocator handed out; None where the system does not tell."""
        if self._on_cuda:
            return torch.cuda.max_memory_allocated() if torch.cuda.is_initialized() else None
        with contextlib.suppress(OSError, KeyError):
            before, now = self._before, _memory()
            files = max(0, now["RssFile"] - before["RssFile"])
            return max(0, now["VmHWM"] - before["VmRSS"] - files)
        return None


def _memory() -> dict[str, int]:
    lines = Path("/proc/self/status").read_text(errors="replace").splitlines()
    pairs = (line.partition(":")[::2] for line in lines if line.endswith(" kB"))
    return {name: int(value.split()[0]) * 1024 for name, value in pairs}


def gpu() -> str:
    """UUID of the CUDA device in use, as torch spells it; empty where none is, or torch does not tell."""
    if not torch.cuda.is_initialized():
        return ""
    return str(getattr(torch.cuda.get_device_properties(torch.cuda.current_device()), "uuid", ""))


def software(plan: LaunchPlan) -> dict[str, str]:
    """Versions and settings: what decides which arithmetic runs and where."""
    found = {
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "numpy": numpy.__version__,
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "threads": str(torch.get_num_threads()),
        **state.settings(),
    }
    if plan.backend == "mpi" and (mpi := mpi_version(ctypes.CDLL(None))):
        found["mpi"] = mpi
    if plan.device == "cuda":
        found["numa_binding"] = plan.numa_binding or "none"
    if torch.cuda.is_initialized():  # to ask whether it is available would load the driver
        found["cuda"] = str(torch.version.cuda)
        found["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
        if (cudnn := torch.backends.cudnn.version()) is not None:
            found["cudnn"] = str(cudnn)
    return found


def mpi_version(process: Any) -> str:
    """Of the MPI library that torch has loaded into this process, its first words: ``Open MPI v5.0.6``; empty: none.

    ``MPI_Get_library_version`` of the MPI standard, at most 8192 characters there, may be called at any time.
    """
    try:
        ask = process.MPI_Get_library_version
    except AttributeError:
        return ""
    told, length = ctypes.create_string_buffer(8192), ctypes.c_int()
    ask(told, ctypes.byref(length))
    return told.value.decode(errors="replace").partition(",")[0].partition("\n")[0].strip()
