"""A relay that connects to the controller, which somebody has started on its host.

``python -m pytest_distbench.launch.site.dial PORT ADDRESS...`` runs on each host, by one ``srun`` for instance. It
tries the addresses one after the other, says who it is in a line of JSON, and is then the relay of its host
(``relay.py``). The secret in :data:`SECRET_VARIABLE` tells the controller that it is one of those that it asked for.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Sequence

import msgspec

from pytest_distbench.launch.site import relay
from pytest_distbench.records.record import Record

SECRET_VARIABLE = "DISTBENCH_RELAY_SECRET"
NAME_VARIABLES = ("DISTBENCH_HOST", "SLURMD_NODENAME")
"""Which name a host has where it was asked for; else its host name."""
_CONNECT_S = 10.0
_TRIES = 3
_LOST_S = 20
"""A connection whose other end says nothing at all, not even that it is there, is broken after so many seconds."""


class Caller(Record, frozen=True, kw_only=True):
    """Who calls."""

    secret: str
    host: str


class Hello(Caller, frozen=True, kw_only=True):
    """A relay that calls.

    Attributes:
        address: of its host, on the way to the controller: others reach it there.
        port: that was free on that address.
    """

    address: str
    port: int


def main() -> None:
    port, *addresses = sys.argv[1:]
    secret = os.environ.pop(SECRET_VARIABLE)  # ranks have no use for it
    with call(addresses, int(port), secret) as line:
        relay.serve(line)


def call(addresses: Sequence[str], port: int, secret: str) -> socket.socket:
    """A connection to the controller, which has been told that a relay calls.

    Raises:
        SystemExit: it cannot be reached.
    """
    line = connect(addresses, port)
    say(line, _hello(line, secret))
    return line


def say(line: socket.socket, caller: Caller) -> None:
    """Tell the controller who calls, which is the first that it hears."""
    line.sendall(msgspec.json.encode(caller) + b"\n")


def connect(addresses: Sequence[str], port: int) -> socket.socket:
    """A connection to the first of the addresses that answers. Raises :class:`SystemExit` where none does."""
    errors = {}
    for turn in range(_TRIES):
        for address in addresses:
            try:
                line = socket.create_connection((address, port), timeout=_CONNECT_S)
            except OSError as error:
                errors[address] = error
                continue
            line.settimeout(None)
            keep_alive(line)
            return line
        time.sleep(turn)
    tried = "; ".join(f"{address}: {error.strerror or error}" for address, error in errors.items())
    raise SystemExit(f"{host_name()} reaches the host of pytest at none of its addresses, port {port}: {tried}")


def keep_alive(line: socket.socket) -> None:
    """Notice within :data:`_LOST_S` that the other end is gone: a host that died closes nothing."""
    line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    line.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    line.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _LOST_S // 4)
    line.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _LOST_S // 4)
    line.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
    line.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _LOST_S * 1000)


def _hello(line: socket.socket, secret: str) -> Hello:
    address = line.getsockname()[0]
    return Hello(
        secret=secret,
        host=host_name(),
        address=address,
        port=_free_port(line.family, address),
    )


def host_name() -> str:
    return next((os.environ[name] for name in NAME_VARIABLES if name in os.environ), socket.gethostname())


def _free_port(family: int, address: str) -> int:
    with socket.socket(family) as probe:
        probe.bind((address, 0))
        port: int = probe.getsockname()[1]
        return port


if __name__ == "__main__":
    main()
