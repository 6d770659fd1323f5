"""Where a machine is reached: addresses and host names, which are stored only when they are asked for."""

from __future__ import annotations

import ipaddress
import os
import re

from pytest_distbench.machine.secrets import MASK

_ADDRESS = re.compile(
    r"(?<![\w.:-])(?:\d{1,3}(?:\.\d{1,3}){3}(?![\w-]|\.\d)|[0-9A-Fa-f:]{1,40}:[0-9A-Fa-f:.]{0,40}(?<!\.)(?![\w:-]))"
)
"""Of version 4, and whatever may be one of version 6."""
_OF_A_VERSION = re.compile(r"(?i)(?:version|driver|cudnn|cuda|nccl|mpi|torch)[\s=:v]{1,3}$")
"""What stands before a version of four numbers, which looks like an address."""
_HOST_OF_USER = re.compile(r"(?<=[\w.-]@)(?:(?:[\w-]+\.)+[A-Za-z]{2,}\b|[A-Za-z][\w-]*(?=:[/~\w]))")
"""A name without a dot is one where a path follows: ``local@ws1`` is a case."""


def host_name() -> str:
    """Of this machine, without asking a name server."""
    return os.uname().nodename


def mask_addresses(text: str) -> str:
    """A text without IP addresses, this machine's name, and the hosts of ``user@host.domain`` and ``user@host:path``.

    Addresses that mean the same everywhere stay, ``127.0.0.1`` and ``0.0.0.0``; so do hosts in URLs, which lead readers
    to what they point at.
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
