"""Every check, in the order of the report."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import psutil

from pytest_distbench.commands.doctor import gpus, host, software
from pytest_distbench.commands.doctor.finding import Finding
from pytest_distbench.machine import hardware
from pytest_distbench.machine.gpus import read_gpus


def examine(root: Path = Path("/"), variables: Mapping[str, str] = os.environ) -> Iterator[Finding]:
    """Run every check, in the order of the report."""
    checks: tuple[Callable[[], Iterator[Finding]], ...] = (
        host.processor,
        lambda: host.other_work(psutil.cpu_times, host.foreign_shares),
        lambda: host.governor(root),
        lambda: host.heat(root),
        lambda: host.clock_source(root),
        lambda: host.container_limits(root),
        host.memory,
        host.open_files,
        lambda: host.shared_memory(root / "dev/shm", gpus=len(read_gpus(variables).visible)),
        host.run_directory,
        host.loopback,
        host.reverse_look_up,
        lambda: gpus.gpus(variables),
        software.versions,
        lambda: software.release(hardware.installed_version("torch"), platform.python_version()),
        software.torch_import,
        software.debugging,
        lambda: host.user_namespaces(root),
        host.leftovers,
    )
    for check in checks:
        yield from check()
