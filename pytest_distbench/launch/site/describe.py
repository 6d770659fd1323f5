"""What a host is, told by itself: ``python -m pytest_distbench.launch.site.describe [--gpu]`` prints a line of JSON.

For whoever starts a process on each host of a cluster, before the first launch.
"""

from __future__ import annotations

import os
import platform
import sys

import msgspec

from pytest_distbench.launch.site.dial import host_name
from pytest_distbench.machine import gpus, hardware
from pytest_distbench.records.environment import Environment
from pytest_distbench.records.record import Record


class HostDescription(Record, frozen=True, kw_only=True):
    """A host, by its name, and what is measured there is measured on."""

    host: str
    environment: Environment


def main() -> None:
    """Describe this host."""
    found = gpus.read_gpus(os.environ) if "--gpu" in sys.argv[1:] else gpus.Gpus()
    software = {"python": platform.python_version(), "torch": hardware.installed_version("torch")}
    environment = hardware.describe(platform_name=None, gpus=found, software=software, variables=os.environ)
    print(msgspec.json.encode(HostDescription(host=host_name(), environment=environment)).decode())


if __name__ == "__main__":
    main()
