"""Every check, in the order of the report."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from pytest_distbench.commands.doctor import gpus, host, software
from pytest_distbench.commands.doctor.finding import Finding
from pytest_distbench.machine import hardware
from pytest_distbench.machine.gpus import read_gpus


def examine(root: Path = Path("/"), variables: Mapping[str, str] = os.environ) -> Iterator[Finding]:
    """Run every check, in the order of the report."""
    checks: tuple[Callable[[], Iterator[Finding]], ...] = (
        host.processor,
        lambda: host.other_work(host.foreign_shares()),
        lambda: host.container_limits(root),
        host.memory,
        host.open_files,
        lambda: host.shared_memory(root / "dev/shm", gpus=len(read_gpus(variables).visible)),
        host.run_directory,
        host.loopback,
        lambda: gpus.gpus(variables),
        software.versions,
        lambda: software.release(hardware.installed_version("torch"), platform.python_version()),
        software.torch_import,
        software.debugging,
        host.leftovers,
    )
    for check in checks:
        yield from check()
