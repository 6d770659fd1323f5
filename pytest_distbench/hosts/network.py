"""A network between hosts that are namespaces of this one, as pytest's process sees it, and what it carries.

That is measured by TCP alone: no torch, no gloo, so that it tells the network from what runs on it.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import msgspec

from pytest_distbench.errors import AroundUnavailable
from pytest_distbench.records.network import USER_NAMESPACE, Network, NetworkAnswer, Passage, host_address, host_place

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


_ANSWERS_S = 60.0
_ENDS_S = 5.0


class Lab:
    """The hosts of a network, while a process of their own holds them; they go with it.

    Args:
        folder: where ranks find the namespaces: a link for each, see :func:`host_place`. Made, and removed.
    """

    def __init__(self, network: Network, hosts: int, folder: Path) -> None:
        self.network = network
        self._folder = folder
        package = Path(__file__).parents[2]
        path = os.pathsep.join(filter(None, [str(package), os.environ.get("PYTHONPATH", "")]))
        self._process = subprocess.Popen(
            [sys.executable, "-m", f"{__name__}_hosts", str(hosts), network.text],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": path},
            cwd="/",
            start_new_session=True,  # Ctrl-C is not its to act on
        )
        try:
            answer = self._answer()
            self.made_by = answer.made_by
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            for host, place in enumerate(answer.places):
                Path(host_place(str(folder), host)).symlink_to(place)
            if answer.is_user:
                (folder / USER_NAMESPACE).symlink_to(f"/proc/{self._process.pid}/ns/user")
        except BaseException:
            self.close()
            raise

    @property
    def is_there(self) -> bool:
        return self._process.poll() is None

    def probe(self) -> Sequence[Passage]:
        """What it carries, from each host to the next, by TCP alone."""
        assert self._process.stdin is not None
        try:
            with contextlib.suppress(OSError):  # it has ended, and said why
                self._process.stdin.write(b"probe\n")
                self._process.stdin.flush()
            return self._answer().passages
        except BaseException:
            self.close()  # an answer that comes late would be taken for that of the next probe
            raise

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(_ENDS_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _answer(self) -> NetworkAnswer:
        assert self._process.stdout is not None
        descriptor, text, until = self._process.stdout.fileno(), b"", time.monotonic() + _ANSWERS_S
        while not text.endswith(b"\n"):
            ready, _, _ = select.select([descriptor], [], [], max(0.0, until - time.monotonic()))
            if not ready:
                raise AroundUnavailable(f"network {self.network.text}: no answer of its hosts for {_ANSWERS_S:g} s")
            piece = os.read(descriptor, 65536)
            if not piece:
                code = self._process.wait()
                raise AroundUnavailable(
                    f"network {self.network.text}: the process of its hosts has ended (exit status {code}); did "
                    "somebody end it? The next launch makes them again"
                )
            text += piece
        answer = msgspec.json.decode(text, type=NetworkAnswer)
        if answer.trouble:
            raise AroundUnavailable(f"network {self.network.text}: {answer.trouble}")
        return answer
