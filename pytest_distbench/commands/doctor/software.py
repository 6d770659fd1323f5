"""Checks of the software: versions, torch in a process of its own, never in this one, and tools beside it."""

from __future__ import annotations

import importlib.util
import platform
import subprocess
import sys
from collections.abc import Iterator

from pytest_distbench.commands.doctor.finding import Finding
from pytest_distbench.errors import ConfigurationError
from pytest_distbench.installation import __version__
from pytest_distbench.launch.site.evidence import py_spy
from pytest_distbench.machine import hardware
from pytest_distbench.releases import TESTED, check_torch, lacking, nearest, release_of, text, untested

_IMPORT_TIMEOUT_S = 300.0


def versions() -> Iterator[Finding]:
    """What decides a result besides the hardware."""
    names = ("torch", "numpy", "pytest", "pytest-benchmark", "msgspec", "psutil", "filelock", "nvidia-ml-py")
    found = ", ".join(f"{name} {hardware.installed_version(name)}" for name in names)
    yield Finding("ok", "versions", f"distbench {__version__}, python {platform.python_version()}, {found}")


def torch_import() -> Iterator[Finding]:
    """Whether torch can be imported, in a process of its own, and which backends it has."""
    code = (
        "import torch, torch.distributed as d\n"
        "names = ('gloo', 'nccl', 'mpi', 'ucc', 'xccl')\n"
        "have = [n for n in names if getattr(d, f'is_{n}_available', lambda: False)()]\n"
        "nccl = '.'.join(map(str, torch.cuda.nccl.version())) if 'nccl' in have else '-'\n"
        'print(f\'{torch.__version__}, CUDA {torch.version.cuda or "-"}, NCCL {nccl}, backends {", ".join(have)}\')\n'
    )
    try:
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, timeout=_IMPORT_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        text = f"import torch did not end within {_IMPORT_TIMEOUT_S:.0f} s"
        yield Finding(
            "fail", "torch", text, "a slow or hanging file system? try python -X importtime -c 'import torch'"
        )
        return
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        yield Finding("fail", "torch", f"cannot be imported: {last}", "pip install torch, in this environment")
    else:
        yield Finding("ok", "torch", done.stdout.strip())


def release(torch: str, python: str) -> Iterator[Finding]:
    """Whether this release of torch, with this Python, is one we have results of, and what it lacks."""
    subject = "torch release"
    try:
        check_torch(torch)
    except ConfigurationError as error:
        yield Finding("fail", subject, *str(error).split(": ", 1))
        return
    have = release_of(torch)
    pythons = f"with Python {', '.join(TESTED[nearest(have)])}"
    if unknown := untested(torch):
        advice = f"pip install 'torch=={text(nearest(have))}.*', or see in a clone: python benchmarks/versions.py"
        yield Finding("note", subject, f"{unknown}, {pythons}", advice)
    elif text(release_of(python)) not in TESTED[have]:
        yield Finding("note", subject, f"{text(have)} is tested {pythons}, not {text(release_of(python))}")
    else:
        yield Finding("ok", subject, f"{text(have)} is tested {pythons}")
    for part in lacking(torch):
        yield Finding(
            "note", subject, f"lacks {part.name}: {part.without}", f"torch {text(part.since)} or later has it"
        )


def debugging() -> Iterator[Finding]:
    """py-spy, which shows the stacks of ranks that cannot show them themselves."""
    if py_spy() is not None:
        yield Finding("ok", "py-spy", "installed: a second source for the stacks of hung ranks")
    else:
        advice = "optional: pip install py-spy shows ranks that hang before they can answer a signal"
        yield Finding("note", "py-spy", "not installed", advice)
    if importlib.util.find_spec("xdist") is not None:
        yield Finding("note", "pytest-xdist", "installed: measurements still run one at a time on this host")
