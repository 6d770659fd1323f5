"""What a network carries, by TCP alone: no torch, no gloo, so that it tells the network from what runs on it."""

from __future__ import annotations

import contextlib
import socket
import statistics
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager

from pytest_distbench.records.network import Network, Passage, host_address

_ROUND_TRIPS = 20
_FEWEST = 5
_ROUND_TRIPS_S = 0.1
_SENDS_S = 0.15
_STARTS_S = 0.05
_IN_ROUND_TRIPS = 12
"""TCP doubles what it has under way in each: so it has filled what a gigabit carries in 100 ms."""
_PIECE = 1 << 20
_GIVES_UP_S = 15.0

Enter = Callable[[int], AbstractContextManager[None]]
"""Makes sockets those of a host."""


def probe(enter: Enter, hosts: int, network: Network) -> list[Passage]:
    """Send from each host to the next, one pair after the other; of two hosts both ways, and of one nowhere."""
    if hosts == 1:
        return []
    return [_pass(enter, host, (host + 1) % hosts, network) for host in range(hosts)]


def _pass(enter: Enter, source: int, target: int, network: Network) -> Passage:
    with enter(target):
        listener = socket.create_server((host_address(target), 0))
    with listener:
        listener.settimeout(_GIVES_UP_S)
        with enter(source):
            sender = socket.create_connection(listener.getsockname(), timeout=_GIVES_UP_S)
        receiver, _ = listener.accept()
    with sender, receiver:
        for end in (sender, receiver):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            end.settimeout(_GIVES_UP_S)
        round_trip_s = _ping(sender, receiver)
        starts_s = _STARTS_S + _IN_ROUND_TRIPS * 2 * network.delay_s
        return Passage(
            source=source, target=target, round_trip_s=round_trip_s, rate=_pour(sender, receiver, starts_s=starts_s)
        )


def _ping(sender: socket.socket, receiver: socket.socket) -> float:
    """Seconds of a byte there and back, the median of some."""
    found: list[float] = []
    began = time.monotonic()
    while len(found) < _ROUND_TRIPS and (len(found) < _FEWEST or time.monotonic() < began + _ROUND_TRIPS_S):
        start = time.monotonic()
        sender.sendall(b".")
        receiver.recv(1)
        receiver.sendall(b".")
        sender.recv(1)
        found.append(time.monotonic() - start)
    return statistics.median(found)


def _pour(sender: socket.socket, receiver: socket.socket, *, starts_s: float) -> float:
    """Bits per second that arrive, once the sender has found its rate."""
    until = time.monotonic() + starts_s + _SENDS_S
    piece = bytes(_PIECE)

    def send() -> None:
        with contextlib.suppress(OSError):  # the receiver has seen enough
            while time.monotonic() < until:
                sender.send(piece)
            sender.shutdown(socket.SHUT_WR)

    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    room = bytearray(_PIECE)
    counted, since, last = 0, 0.0, 0.0
    while num_bytes := receiver.recv_into(room):
        last = time.monotonic()
        if since:
            counted += num_bytes
        elif last > until - _SENDS_S:
            since = last
        if last > until:
            break
    with contextlib.suppress(OSError):
        receiver.shutdown(socket.SHUT_RDWR)
    receiver.close()
    thread.join()
    return 8 * counted / (last - since) if last > since > 0 else 0.0
