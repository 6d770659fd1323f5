"""What machine this is: the hardware class that keys baselines, devices, and what may be recorded. Without torch."""

from __future__ import annotations

import contextlib
import os
import platform
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from pytest_distbench.errors import ConfigurationError
from pytest_distbench.machine.secrets import is_secret_name, mask_text
from pytest_distbench.records.environment import Environment

_ALLOWED = re.compile(
    r"(NCCL|GLOO|UCC|UCX|TORCH|OMP|MKL|KMP|ATEN|PYTORCH)_[A-Z0-9_]+|CUDA_VISIBLE_DEVICES|CUDA_LAUNCH_BLOCKING|CUBLAS_WORKSPACE_CONFIG"
)
_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASS|CREDENTIAL|AUTH", re.IGNORECASE)
"""In any part of a variable's name: to leave one out costs nothing."""
_MIG = "MIG-"
_MARKETING = re.compile(r"\((?:R|TM)\)|\bCPU\b|\bProcessor\b|@.*|\b\d+-Core\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Gpu:
    """One NVIDIA GPU as the driver names it."""

    name: str
    uuid: str


def cores() -> int:
    """CPU cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cpu_name() -> str:
    """Product name of the CPU, with family and model where the name alone is generic (as on cloud machines)."""
    fields: dict[str, str] = {}
    try:
        for line in Path("/proc/cpuinfo").read_text(errors="replace").splitlines():
            key, _, value = line.partition(":")
            if not key.strip():
                break
            fields[key.strip()] = value.strip()
    except OSError:
        pass
    name = _MARKETING.sub("", fields.get("model name", platform.machine())).strip()
    if "cpu family" in fields:
        name += f" f{fields['cpu family']}m{fields.get('model', '')}"
    return " ".join(name.split())


def gpus(variables: Mapping[str, str]) -> list[Gpu]:
    """The GPUs this process may use, read from the driver without torch.

    ``CUDA_VISIBLE_DEVICES`` is honoured as CUDA does: indices or UUID prefixes, ending at the first invalid one, and
    no more than one MIG device. An empty list where there is no NVIDIA driver.
    """
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return []
    try:
        handles = device_handles(pynvml)
        found = [Gpu(str(pynvml.nvmlDeviceGetName(h)), str(pynvml.nvmlDeviceGetUUID(h))) for h in handles]
    except pynvml.NVMLError:
        return []
    finally:
        pynvml.nvmlShutdown()
    return [found[i] for i in visible_devices(variables.get("CUDA_VISIBLE_DEVICES"), [g.uuid for g in found])]


def device_handles(nvml: Any) -> list[Any]:
    """Handles of all GPUs, in the driver's order, and after them of their MIG devices."""
    gpus = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]
    slices = []
    for gpu in gpus:
        with contextlib.suppress(nvml.NVMLError):
            for i in range(nvml.nvmlDeviceGetMaxMigDeviceCount(gpu)):
                with contextlib.suppress(nvml.NVMLError):  # the numbers have gaps
                    slices.append(nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, i))
    return gpus + slices


def visible_devices(setting: str | None, uuids: list[str]) -> list[int]:
    """Indices of the devices that ``CUDA_VISIBLE_DEVICES`` leaves visible, in its order.

    Args:
        setting: the variable's value; None: not set.
        uuids: of all GPUs, and after them of MIG devices, which only their UUID can name.
    """
    whole = sum(not uuid.startswith(_MIG) for uuid in uuids)
    if setting is None:
        return list(range(whole))
    chosen: list[int] = []
    for part in (p.strip() for p in setting.split(",")):
        hits = [i for i, uuid in enumerate(uuids) if uuid.startswith(part)] if part and not part.isdigit() else []
        if part.isdigit() and int(part) < whole:
            chosen.append(int(part))
        elif hits and part.startswith(_MIG):
            return hits[:1]
        elif hits:
            chosen.append(hits[0])
        else:
            break
    return chosen


def platform_key(device_name: str, *, gpu: bool) -> str:
    """The hardware class: product and, for a CPU, the cores in use. Never a host name or a clock reading."""
    slug = re.sub(r"[^a-z0-9.]+", "-", device_name.lower()).strip("-.") or "unknown"
    return slug if gpu else f"cpu-{slug}-{cores()}c"


def check_platform_name(name: str) -> str:
    """A platform name given by the user, checked: it becomes a folder.

    Raises:
        ConfigurationError: not usable as one folder name.
    """
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
        raise ConfigurationError(
            f"--distbench-platform: {name!r} is not a usable name: "
            "letters, digits, '.', '_' and '-', not starting with a dot"
        )
    return name


def variables_to_record(variables: Mapping[str, str]) -> dict[str, str]:
    """Environment variables that may be stored: an allow-list, without anything named like a secret."""
    return {
        name: mask_text(value.encode(errors="backslashreplace").decode())
        for name, value in sorted(variables.items())
        if _ALLOWED.fullmatch(name) and not _SECRET.search(name) and not is_secret_name(name)
    }


def installed_version(package: str) -> str:
    """Version of an installed package without importing it; ``not installed`` where there is none."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def describe(
    *,
    platform_name: str | None,
    gpu_name: str | None,
    software: dict[str, str],
    variables: Mapping[str, str],
    shares_gpu: bool = False,
) -> Environment:
    """The environment record of this machine. ``gpu_name`` is None for a CPU run."""
    device = gpu_name or cpu_name()
    return Environment(
        platform=platform_name or platform_key(device, gpu=gpu_name is not None),
        shares_gpu=shares_gpu,
        device=device,
        cores=cores(),
        software=software,
        variables=variables_to_record(variables),
    )
