"""What machine this is: the hardware class that keys baselines, and what may be recorded. Without torch."""

from __future__ import annotations

import importlib.util
import os
import platform
import re
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

from pytest_distbench.errors import ConfigurationError
from pytest_distbench.machine.addresses import mask_addresses
from pytest_distbench.machine.gpus import Gpus, slug
from pytest_distbench.machine.secrets import is_secret_name, mask_text
from pytest_distbench.records.environment import Environment
from pytest_distbench.records.gpu import GpuHost
from pytest_distbench.units import format_bytes

_ALLOWED = re.compile(
    r"(NCCL|GLOO|UCC|UCX|TORCH|OMP|MKL|KMP|ATEN|PYTORCH|CUDNN|CUBLAS|CUBLASLT)_[A-Z0-9_]+|NVIDIA_TF32_OVERRIDE"
    r"|CUDA_(VISIBLE_DEVICES|DEVICE_ORDER|DEVICE_MAX_CONNECTIONS|LAUNCH_BLOCKING|MODULE_LOADING)"
)
_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASS|CREDENTIAL|AUTH", re.IGNORECASE)
"""In any part of a variable's name: to leave one out costs nothing."""
_MARKETING = re.compile(r"\((?:R|TM)\)|\bCPU\b|\bProcessor\b|@.*|\b\d+-Core\b", re.IGNORECASE)


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


def cpu_class() -> str:
    """The hardware class of a run on the CPU: product and cores in use. Never a host name or a clock reading."""
    return f"cpu-{slug(cpu_name())}-{cores()}c"


def system(root: Path = Path("/")) -> dict[str, str]:
    """What software runs on, as far as it tells: OS, kernel, firmware, product name and memory of the machine.

    In a container the OS is the container's, and the rest the host's; of memory what it may use. Serial numbers are not
    read.
    """
    dmi = root / "sys/class/dmi/id"
    found = {
        "OS": _os_name(root / "etc/os-release"),
        "kernel": f"{platform.system()} {platform.release()} {platform.machine()}",
        "firmware": _words(dmi / "bios_vendor", dmi / "bios_version", dmi / "bios_date"),
        "machine": _words(dmi / "sys_vendor", dmi / "product_name"),
        "memory": _memory(root),
    }
    return {name: value for name, value in found.items() if value}


def _os_name(path: Path) -> str:
    """``PRETTY_NAME`` of os-release(5)."""
    found = re.search(r"""^PRETTY_NAME=["']?([^"'\n]*)""", _content(path), re.MULTILINE)
    return found[1].strip() if found else ""


def _memory(root: Path) -> str:
    """Of the host, or what its control group allows where that is less."""
    there = re.search(r"^MemTotal: +(\d+) kB", _content(root / "proc/meminfo"), re.MULTILINE)
    allowed = _content(root / "sys/fs/cgroup/memory.max").strip()
    sizes = [*([int(there[1]) * 1024] if there else []), *([int(allowed)] if allowed.isdecimal() else [])]
    return format_bytes(min(sizes)) if sizes else ""


def _words(*paths: Path) -> str:
    return " ".join(filter(None, (" ".join(_content(path).split()) for path in paths)))


def _content(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def check_platform_name(name: str) -> str:
    """A platform name given by the user, checked: it becomes a folder."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
        raise ConfigurationError(
            f"--distbench-platform: {name!r} is not a usable name: "
            "letters, digits, '.', '_' and '-', not starting with a dot"
        )
    return name


def variables_to_record(variables: Mapping[str, str]) -> dict[str, str]:
    """Environment variables that may be stored: an allow-list, without addresses and anything named like a secret."""
    return {
        name: mask_addresses(mask_text(value.encode(errors="backslashreplace").decode()))
        for name, value in sorted(variables.items())
        if _ALLOWED.fullmatch(name) and not _SECRET.search(name) and not is_secret_name(name)
    }


def installed_version(package: str) -> str:
    """Version of an installed package without importing it; ``not installed`` where there is none."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


_BUILT_FOR = {"hip": "rocm", "rocm": "rocm", "xpu": "xpu"}
"""What a torch names that is built for devices of other makers -> as its local version calls them."""


def torch_is_built_for(version: str | None = None) -> str:
    """Devices of other makers than NVIDIA that the installed torch is built for; empty: none.

    It is read in ``torch/version.py``, without importing torch: the version of an image's own build does not say it.

    Args:
        version: what stands there; None: it is read.
    """
    if version is None:
        found = importlib.util.find_spec("torch")
        places = found.submodule_search_locations if found is not None else None
        try:
            version = Path(next(iter(places or [])), "version.py").read_text()
        except (OSError, StopIteration, UnicodeDecodeError):
            return ""
    said = re.search(rf"^({'|'.join(_BUILT_FOR)})\b[^=\n]*=\s*['\"]", version, re.MULTILINE)
    return _BUILT_FOR[said[1]] if said else ""


def describe(
    *,
    platform_name: str | None,
    gpus: Gpus,
    software: dict[str, str],
    variables: Mapping[str, str],
    shares_gpu: bool = False,
    shares_host: bool = False,
) -> Environment:
    """The environment record of this machine; of a run on the CPU where no GPU is visible to it."""
    visible = gpus.visible
    host = GpuHost(
        driver=gpus.driver,
        cuda=gpus.cuda,
        cpu=cpu_name(),
        gpus=list(visible),
        links=[list(row) for row in gpus.links],
        unreadable=list(gpus.unreadable),
    )
    return Environment(
        platform=platform_name or (gpus.platform if visible else cpu_class()),
        shares_gpu=shares_gpu,
        shares_host=shares_host,
        device=", ".join(dict.fromkeys(gpu.name for gpu in visible)) or cpu_name(),
        cores=cores(),
        software=software,
        system=system(),
        variables=variables_to_record({**variables, **gpus.variables}),
        gpu_host=host if visible else None,
    )
