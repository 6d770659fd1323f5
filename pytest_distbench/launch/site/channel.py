"""This host's end of its ranks' lines: a Unix socket. Who has connected is the kernel's word, not the rank's.

A connection counts as an open file, so that it is asked first whether processes may have as many as a launch needs.
"""

from __future__ import annotations

import contextlib
import os
import resource
import selectors
import socket
import struct
import time
from pathlib import Path

import msgspec

from pytest_distbench.errors import LauncherError
from pytest_distbench.launch.site import Heard
from pytest_distbench.records.wire import RankEvent, short_address

_BESIDES = 64
"""What a process has open besides: libraries, logs, the sockets of its own line."""
_OF_A_RANK = 2
"""Of each other rank a rank may hold: one of gloo's group, and in rank 0, which keeps the store, that of its client."""


def check_ranks(ranks: int) -> None:
    """Refuse a launch whose ranks, on this host, may not hold what they need of each other: they would wait in vain."""
    needed = _OF_A_RANK * ranks + _BESIDES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= soft < needed:
        most = "any number" if hard == resource.RLIM_INFINITY else f"{hard:,}"
        raise LauncherError(
            f"a rank of {ranks:,} has up to {needed:,} files and connections open, and may have {soft:,} on this "
            f"host: run ulimit -n {needed} before pytest (without root up to {most})"
        )


_READ_BYTES = 65536
LONGEST_LINE_BYTES = 2**20
"""A longer event is dropped: a body got hold of the socket."""


class ControlChannel:
    """Listens for the ranks of one launch, and for their ends. Closing it ends every rank that is still connected.

    Events of ranks beyond its processes are ignored. The attached rank is given this process's stdin, stdout and stderr
    when it says hello.
    """

    def __init__(
        self,
        path: Path,
        selector: selectors.BaseSelector,
        heard: Heard,
        *,
        processes: int,
        attached: int | None = None,
    ) -> None:
        self._processes = processes
        self._attached = attached
        self._heard = heard
        self._selector = selector
        self._path = path
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.settimeout(0)
        with short_address(self._path) as address:
            self._listener.bind(address)
        self._listener.listen(1024)
        self._lines: dict[socket.socket, bytes] = {}
        self._ranks: dict[socket.socket, int] = {}
        self._pids: dict[int, int] = {}
        self._handles: dict[int, socket.socket] = {}
        """pidfd of a rank -> its connection, which a child it forked may hold open after its end."""
        selector.register(self._listener, selectors.EVENT_READ, self)

    def read(self, source: object) -> list[RankEvent]:
        """Take in what made ``source``, a file object of this channel, readable."""
        if source is self._listener:
            with contextlib.suppress(BlockingIOError):
                connection, _ = self._listener.accept()
                connection.settimeout(0)
                self._lines[connection] = b""
                self._selector.register(connection, selectors.EVENT_READ, self)
            return []
        if isinstance(source, int):
            return self._rank_ended(source)
        assert isinstance(source, socket.socket)
        with contextlib.suppress(BlockingIOError):
            return self._read_rank(source)
        return []

    def drain(self) -> list[RankEvent]:
        fresh: list[RankEvent] = []
        while ready := [key for key, _ in self._selector.select(0) if key.data is self]:
            for key in ready:
                fresh += self.read(key.fileobj)
        return fresh

    def ask(self, rank: int, request: bytes) -> None:
        for connection, its_rank in self._ranks.items():
            if its_rank == rank and connection in self._lines:
                with contextlib.suppress(OSError):
                    connection.send(request)

    def pids(self) -> dict[int, int]:
        """Rank -> process id, of the ranks that have said hello and that are seen from here."""
        return dict(self._pids)

    def close(self) -> None:
        for connection in [*self._lines, self._listener]:
            with contextlib.suppress(KeyError, ValueError):
                self._selector.unregister(connection)
            connection.close()
        for handle in list(self._handles):
            self._forget(handle)
        self._lines.clear()
        self._path.unlink(missing_ok=True)

    def _read_rank(self, connection: socket.socket) -> list[RankEvent]:
        try:
            data = connection.recv(_READ_BYTES)
        except BlockingIOError:
            raise
        except OSError:
            data = b""
        if not data:
            self._close(connection)
            return []
        *lines, rest = (self._lines[connection] + data).split(b"\n")
        self._lines[connection] = rest if len(rest) <= LONGEST_LINE_BYTES else b""  # no rank of ours writes such a line
        fresh = []
        for line in lines:
            with contextlib.suppress(msgspec.DecodeError):  # a killed rank may leave half a line
                event = msgspec.json.decode(line, type=RankEvent)
                if 0 <= event.rank < self._processes:
                    fresh.append(event)
        for event in fresh:
            self._ranks[connection] = event.rank
            if event.kind == "hello":
                self._watch(event.rank, connection)
                if event.rank == self._attached:
                    socket.send_fds(connection, [b"t"], [0, 1, 2])
        self._heard.take(fresh)
        return fresh

    def _watch(self, rank: int, connection: socket.socket) -> None:
        """Notice the end of the process that made a connection (SO_PEERCRED, socket(7)): of that one, and no other."""
        format_ = "3i"
        told = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize(format_))
        pid, _, _ = struct.unpack(format_, told)
        if not pid:  # of a namespace that is not seen from here
            return
        self._pids[rank] = pid
        with contextlib.suppress(OSError):  # gone already: the end of its connection says so, or nobody can
            handle = os.pidfd_open(pid)
            self._handles[handle] = connection
            self._selector.register(handle, selectors.EVENT_READ, self)

    def _rank_ended(self, handle: int) -> list[RankEvent]:
        """Take in a rank's last words and close its connection, whoever else holds the other end."""
        connection = self._handles[handle]
        self._forget(handle)
        fresh: list[RankEvent] = []
        with contextlib.suppress(BlockingIOError):
            while connection in self._lines:
                fresh += self._read_rank(connection)
        self._close(connection)
        return fresh

    def _forget(self, handle: int) -> None:
        self._selector.unregister(handle)
        os.close(handle)
        del self._handles[handle]

    def _close(self, connection: socket.socket) -> None:
        if connection not in self._lines:
            return
        self._selector.unregister(connection)
        connection.close()
        del self._lines[connection]
        if connection in self._ranks:
            self._heard.close(self._ranks[connection], time.monotonic())
