"""Whether this machine lets us make networks, and ways to make one that is not as wanted."""

from __future__ import annotations

import contextlib
import functools
import subprocess
import tempfile
from pathlib import Path

from pytest_distbench.errors import AroundUnavailable
from pytest_distbench.hosts.network import Lab, parse_network

WITHOUT_PRIVILEGES = [
    "setpriv", "--bounding-set=-sys_admin,-net_admin,-sys_ptrace", "--inh-caps=-sys_admin,-net_admin,-sys_ptrace", "--",
]  # fmt: skip
"""What makes a command one of an ordinary user who has the rights to files of this one."""


@functools.cache
def why_no_networks(text: str = "unlimited") -> str:
    """Why this machine does not let us make such networks, or ""."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            Lab(parse_network(text), 2, Path(folder, "hosts")).close()
        except AroundUnavailable as error:
            return str(error)
    return ""


def inside(place: str, *command: str) -> str:
    """Run a command in a network namespace; what it printed."""
    return subprocess.run(["nsenter", f"--net={place}", *command], check=True, capture_output=True, text=True).stdout


def slow_down(place: str, rate: str) -> None:
    """Let a host send no more than this from now on."""
    _send_through(place, f"qdisc add dev eth0 root tbf rate {rate} burst 20000 latency 100ms")


def slow_link(place: str, target: str, rate: str, full: str) -> None:
    """Let a host send no more than this to one address, and as before to all others."""
    _send_through(
        place,
        "qdisc add dev eth0 root handle 1: htb default 1",
        f"class add dev eth0 parent 1: classid 1:1 htb rate {full} quantum 20000",
        f"class add dev eth0 parent 1: classid 1:2 htb rate {rate} quantum 20000",
        f"filter add dev eth0 parent 1: protocol ip u32 match ip dst {target}/32 flowid 1:2",
    )


def _send_through(place: str, *lines: str) -> None:
    with contextlib.suppress(subprocess.CalledProcessError):  # an overlay has none
        inside(f"{place}/net", "tc", "qdisc", "del", "dev", "eth0", "root")
    for line in lines:
        inside(f"{place}/net", "tc", *line.split())
