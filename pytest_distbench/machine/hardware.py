"""Description of this machine: its platform, its Pythons, and what may be recorded; without torch.

Addresses and host names are stored only on request.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from pytest_distbench.errors import ConfigurationError
from pytest_distbench.machine.gpus import Gpus, slug
from pytest_distbench.machine.secrets import MASK, is_secret_name, mask_text
from pytest_distbench.records.environment import Environment, GpuHost
from pytest_distbench.releases import OLDEST_PYTHON, check_torch, text
from pytest_distbench.units import format_bytes

_ADDRESS = re.compile(
    r"(?<![\w.:-])(?:\d{1,3}(?:\.\d{1,3}){3}(?![\w-]|\.\d)|[0-9A-Fa-f:]{1,40}:[0-9A-Fa-f:.]{0,40}(?<!\.)(?![\w:-]))"
)
"""IPv4 addresses, and whatever may be an IPv6 address."""
_OF_A_VERSION = re.compile(r"(?i)(?:version|driver|cudnn|cuda|nccl|mpi|torch)[\s=:v]{1,3}$")
"""Text before a version of four numbers, which looks like an address."""
_HOST_OF_USER = re.compile(r"(?<=[\w.-]@)(?:(?:[\w-]+\.)+[A-Za-z]{2,}\b|[A-Za-z][\w-]*(?=:[/~\w]))")
"""Host of ``user@host``; a name without a dot only if a path follows: ``local@ws1`` is a case."""


def host_name() -> str:
    """Name of this machine, without asking a name server."""
    return os.uname().nodename


def mask_addresses(text: str) -> str:
    """Mask IP addresses, this machine's name, and hosts in ``user@host.domain`` and ``user@host:path``.

    What means the same everywhere stays (``127.0.0.1``, ``0.0.0.0``), and so do hosts in URLs.
    """
    text = _HOST_OF_USER.sub(MASK, _ADDRESS.sub(_masked, text))
    return re.sub(rf"(?<![\w.-]){re.escape(host_name())}(?![\w-])(?:\.[\w-]+)*", MASK, text)


def _masked(found: re.Match[str]) -> str:
    try:
        address = ipaddress.ip_address(found[0])
    except ValueError:
        return found[0]
    is_version = _OF_A_VERSION.search(found.string, max(0, found.start() - 12), found.start())
    return found[0] if address.is_loopback or address.is_unspecified or is_version else MASK


NEEDED = ("torch", "numpy", "msgspec", "psutil")  # a rank's imports besides this package

_PROBE_TIMEOUT_S = 60.0
_PROBE = """
import json, sys
from importlib import metadata
found = {}
for name in %r:
    try:
        found[name] = metadata.version(name)
    except metadata.PackageNotFoundError:
        pass
print(json.dumps([list(sys.version_info[:3]), found, sys.path]))
"""


@dataclass(frozen=True, slots=True)
class Interpreter:
    executable: Path
    versions: Mapping[str, str]
    path: tuple[str, ...]

    def __str__(self) -> str:
        return f"torch {self.versions['torch']}, python {self.versions['python']}"


def find_interpreter(given: str, folder: Path) -> Interpreter:
    """Find a Python and the versions of its packages, without importing them."""
    option = f"distbench_against_python = {given}"
    executable = folder / Path(given).expanduser()
    if os.sep not in given and not executable.exists() and (on_path := shutil.which(given)):
        executable = Path(on_path)
    if executable.is_dir():
        raise ConfigurationError(f"{option}: that is a folder; give the executable, for example {given}/bin/python")
    variables = {k: v for k, v in os.environ.items() if k not in ("PYTHONHOME", "PYTHONPATH")}
    try:
        done = subprocess.run(
            [executable, "-c", _PROBE % (NEEDED,)],
            env=variables,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_PROBE_TIMEOUT_S,
            check=False,
        )
        version, found, path = json.loads(done.stdout)
    except OSError as error:
        raise ConfigurationError(f"{option}: cannot run {executable}: {error.strerror or error}") from None
    except subprocess.TimeoutExpired:
        raise ConfigurationError(
            f"{option}: {executable} did not answer for {_PROBE_TIMEOUT_S:g} s; is it a Python?"
        ) from None
    except (ValueError, TypeError):
        said = (done.stderr.strip() or done.stdout.strip() or f"exit code {done.returncode}").splitlines()[-1]
        raise ConfigurationError(f"{option}: does not answer as a Python 3 does: {said[:200]}") from None
    if tuple(version[:2]) < OLDEST_PYTHON:
        raise ConfigurationError(
            f"{option}: Python {'.'.join(map(str, version))}; ranks need {text(OLDEST_PYTHON)} or later"
        )
    missing = [name for name in NEEDED if name not in found]
    if missing:
        raise ConfigurationError(
            f"{option}: it lacks {', '.join(missing)}; {executable} -m pip install {' '.join(missing)}"
        )
    check_torch(found["torch"], f"{option}: ")
    versions = {"python": ".".join(map(str, version)), **found}
    return Interpreter(executable, versions, tuple(p for p in path if p))


_ALLOWED = re.compile(
    r"(NCCL|GLOO|UCC|UCX|TORCH|OMP|MKL|KMP|ATEN|PYTORCH|CUDNN|CUBLAS|CUBLASLT)_[A-Z0-9_]+|NVIDIA_TF32_OVERRIDE"
    r"|CUDA_(VISIBLE_DEVICES|DEVICE_ORDER|DEVICE_MAX_CONNECTIONS|LAUNCH_BLOCKING|MODULE_LOADING)"
)
_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASS|CREDENTIAL|AUTH", re.IGNORECASE)  # in any part of a variable's name
_MARKETING = re.compile(r"\((?:R|TM)\)|\bCPU\b|\bProcessor\b|@.*|\b\d+-Core\b", re.IGNORECASE)


def cores() -> int:
    return len(os.sched_getaffinity(0))


def cpu_name() -> str:
    """The CPU's product name, with family and model if that is generic, as on cloud machines."""
    fields: dict[str, str] = {}
    with contextlib.suppress(OSError):
        first = Path("/proc/cpuinfo").read_text(errors="replace").partition("\n\n")[0]
        for line in first.splitlines():
            key, _, value = line.partition(":")
            fields[key.strip()] = value.strip()
    name = _MARKETING.sub("", fields.get("model name", platform.machine())).strip()
    if "cpu family" in fields:
        name += f" f{fields['cpu family']}m{fields.get('model', '')}"
    return " ".join(name.split())


def cpu_class() -> str:
    """Platform of a run on the CPU: product and cores in use; never a host name or a host's clock rate."""
    return f"cpu-{slug(cpu_name())}-{cores()}c"


def system(root: Path = Path("/")) -> dict[str, str]:
    """OS, kernel, firmware, product name and memory of the machine, as far as known.

    In a container: its OS and memory limit, otherwise the host's. Serial numbers are not read.
    """
    dmi = root / "sys/class/dmi/id"
    os_name = re.search(r"""^PRETTY_NAME=["']?([^"'\n]*)""", _content(root / "etc/os-release"), re.MULTILINE)
    there = re.search(r"^MemTotal: +(\d+) kB", _content(root / "proc/meminfo"), re.MULTILINE)
    allowed = _content(root / "sys/fs/cgroup/memory.max").strip()
    sizes = [*([int(there[1]) * 1024] if there else []), *([int(allowed)] if allowed.isdecimal() else [])]
    found = {
        "OS": os_name[1].strip() if os_name else "",
        "kernel": f"{platform.system()} {platform.release()} {platform.machine()}",
        "firmware": _words(dmi / "bios_vendor", dmi / "bios_version", dmi / "bios_date"),
        "machine": _words(dmi / "sys_vendor", dmi / "product_name"),
        "memory": format_bytes(min(sizes)) if sizes else "",
    }
    return {name: value for name, value in found.items() if value}


def _words(*paths: Path) -> str:
    return " ".join(filter(None, (" ".join(_content(path).split()) for path in paths)))


def _content(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def check_platform_name(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
        raise ConfigurationError(
            f"{name!r} is not a usable name: letters, digits, '.', '_' and '-', not starting with a dot"
        )
    return name


def variables_to_record(variables: Mapping[str, str]) -> dict[str, str]:
    return {
        name: mask_addresses(mask_text(value.encode(errors="backslashreplace").decode()))
        for name, value in sorted(variables.items())
        if _ALLOWED.fullmatch(name) and not _SECRET.search(name) and not is_secret_name(name)
    }


def installed_version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def describe(
    *,
    platform_name: str | None,
    gpus: Gpus,
    software: dict[str, str],
    variables: Mapping[str, str],
    shares_gpu: bool = False,
    shares_host: bool = False,
) -> Environment:
    """Make the environment record of this machine; of a CPU run if no GPU is visible."""
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
