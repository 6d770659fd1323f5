"""What a rank used: its CPU time and memory, the busy time of the CPUs it may use, and the software it ran."""

from __future__ import annotations

import os
import platform
import resource
import time
from typing import Any

import numpy
import psutil
import torch

from pytest_distbench.records.plan import LaunchPlan


def own_cpu_s() -> float:
    """Seconds this process, its threads and its children that have ended have computed."""
    own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


def peak_memory_bytes(plan: LaunchPlan) -> int:
    """On CUDA the most its allocator handed out; else the largest resident size, which repeats to half a per cent."""
    if plan.device == "cuda" and torch.cuda.is_initialized():
        return torch.cuda.max_memory_allocated()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def gpu() -> str:
    """UUID of the CUDA device in use, as torch spells it; empty where none is, or torch does not tell."""
    if not torch.cuda.is_initialized():
        return ""
    return str(getattr(torch.cuda.get_device_properties(torch.cuda.current_device()), "uuid", ""))


def usable_cpus() -> frozenset[int] | None:
    """Indices of the CPUs this process may use; None where the system does not tell."""
    return frozenset(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None


def busy_s(cpus: frozenset[int] | None) -> float:
    """Seconds these CPUs have been busy, together, since the machine started.

    Others do not count: on a machine that is divided among jobs, their work takes nothing from this one.

    Args:
        cpus: their indices; None: all. All count also where some are offline, as the list has no indices then.
    """
    per_cpu = psutil.cpu_times(percpu=True)
    if cpus is None or len(per_cpu) != os.sysconf("SC_NPROCESSORS_CONF") or max(cpus) >= len(per_cpu):
        return sum(map(_busy_s, per_cpu))
    return sum(_busy_s(per_cpu[index]) for index in cpus)


class Window:
    """A stretch of a rank's life, and what computed in it. It begins when it is made, and may begin again.

    Args:
        cpus: that the launch may use.

    Attributes:
        wall_s: its length in seconds; with the two others 0 until it ended.
        cpu_s: that this process and its children computed.
        busy_s: that all processes did on these CPUs.
    """

    def __init__(self, cpus: frozenset[int] | None) -> None:
        self._cpus = cpus
        self.wall_s = self.cpu_s = self.busy_s = 0.0
        self.begin()

    def begin(self) -> None:
        """From now on."""
        self._start = self._read()

    def end(self) -> None:
        """Until now."""
        self.wall_s, self.cpu_s, self.busy_s = (now - then for now, then in zip(self._read(), self._start, strict=True))

    def _read(self) -> tuple[float, float, float]:
        return time.perf_counter(), own_cpu_s(), busy_s(self._cpus)


def _busy_s(times: Any) -> float:
    """Of one CPU, from what psutil says of it."""
    return float(
        sum(times)
        - times.idle
        - getattr(times, "iowait", 0.0)
        - getattr(times, "guest", 0.0)
        - getattr(times, "guest_nice", 0.0)
    )


def software(plan: LaunchPlan) -> dict[str, str]:
    """Versions, and what decides which arithmetic runs and where."""
    found = {
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "numpy": numpy.__version__,
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "threads": str(torch.get_num_threads()),
    }
    if plan.numa_binding:
        found["numa_binding"] = plan.numa_binding
    if torch.cuda.is_initialized():  # to ask whether it is available would load the driver
        found["cuda"] = str(torch.version.cuda)
        found["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
        if (cudnn := torch.backends.cudnn.version()) is not None:
            found["cudnn"] = str(cudnn)
    return found
