"""What a rank used: its CPU time and memory, and the software it ran. Who else computed meanwhile is in ``load``."""

from __future__ import annotations

import platform
import resource

import numpy
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
