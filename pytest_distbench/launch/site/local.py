"""The site on this host: ranks are children of this process, and what ends or looks at one goes by its process id.

Their lines end here at a Unix socket. Who has connected is the kernel's word, not the rank's. A connection counts as an
open file, so that it is asked first whether processes may have as many as a launch needs.
"""

from __future__ import annotations

import contextlib
import os
import resource
import selectors
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import msgspec
import psutil

from pytest_distbench.errors import LauncherError
from pytest_distbench.launch.outcome import report_host
from pytest_distbench.launch.site import LOOK_S, Clocks, Exit, Heard, evidence, processes
from pytest_distbench.launch.site.evidence import tell_stuck
from pytest_distbench.launch.site.processes import Standstill
from pytest_distbench.records.launch import HostReport
from pytest_distbench.records.plan import LaunchPlan, Ranks
from pytest_distbench.records.record import replace
from pytest_distbench.records.wire import Event, short_address, variables_to_wire


class RankProcess(Protocol):
    """A child of this process, as ``Popen`` has it."""

    pid: int

    def poll(self) -> int | None:
        """Its exit code, or minus the signal's number; None: it runs."""


StartRank = Callable[[LaunchPlan, int, Mapping[str, str]], RankProcess]
"""Starts a rank of a stored plan, with the variables that tell it its place."""


_HANDLING = "TORCH_NCCL_ASYNC_ERROR_HANDLING"


def places(
    ranks: Sequence[Sequence[int]],
    meeting_point: tuple[str, int],
    variables: Mapping[str, str],
    *,
    errors: Path | None = None,
) -> list[dict[int, dict[str, str]]]:
    """Host by host, the variables by which torchrun would tell its ranks their places (``records/launch_files.py``).

    The ranks of each host meet at a store, which rank 0 keeps, or who starts the ranks where there is a folder for what
    functions under torch's ``record`` write of an error.
    """
    world_size = sum(map(len, ranks))
    run_id = uuid.uuid4().hex
    told = [
        {
            rank: {
                "RANK": str(rank),
                "LOCAL_RANK": str(index),
                "GROUP_RANK": str(node),
                "ROLE_RANK": str(rank),
                "ROLE_NAME": "default",
                "WORLD_SIZE": str(world_size),
                "LOCAL_WORLD_SIZE": str(len(here)),
                "GROUP_WORLD_SIZE": str(len(ranks)),
                "ROLE_WORLD_SIZE": str(world_size),
                "MASTER_ADDR": meeting_point[0],
                "MASTER_PORT": str(meeting_point[1]),
                "TORCHELASTIC_RESTART_COUNT": "0",
                "TORCHELASTIC_MAX_RESTARTS": "0",
                "TORCHELASTIC_RUN_ID": run_id,
                "TORCHELASTIC_USE_AGENT_STORE": str(errors is not None),
                _HANDLING: variables.get(_HANDLING, "1"),
            }
            for index, rank in enumerate(here)
        }
        for node, here in enumerate(ranks)
    ]
    if errors is not None:
        for rank, place in told[0].items():
            folder = errors / run_id / "attempt_0" / str(rank)
            folder.mkdir(parents=True)
            place["TORCHELASTIC_ERROR_FILE"] = str(folder / "error.json")
    return told


class ChildRanks:
    """Starts the ranks that have a place here, and waits for them."""

    def __init__(self, places: Mapping[int, Mapping[str, str]], start_rank: StartRank) -> None:
        self._places = places
        self._start_rank = start_rank
        self._started: dict[int, RankProcess] = {}
        self._selector = selectors.EpollSelector()

    def start(self, plan: LaunchPlan) -> ChildRanks:
        for rank, place in self._places.items():
            self._started[rank] = process = self._start_rank(plan, rank, place)
            self._selector.register(os.pidfd_open(process.pid), selectors.EVENT_READ)
        return self

    def fileno(self) -> int:
        return self._selector.fileno()

    def poll(self) -> Exit | None:
        for key, _ in self._selector.select(0):
            self._selector.unregister(key.fd)
            os.close(key.fd)
        codes = {rank: process.poll() for rank, process in self._started.items()}
        known = {rank: code for rank, code in codes.items() if code is not None}
        return Exit(codes=known) if len(known) == len(codes) else None

    def pids(self) -> dict[int, int]:
        return {rank: process.pid for rank, process in self._started.items() if process.poll() is None}

    def drivers(self) -> list[int]:
        """This process is their parent."""
        return []

    def abandon(self) -> None:
        processes.kill_descendants()

    def leftovers(self) -> list[psutil.Process]:
        return psutil.Process().children(recursive=True)


def start_interpreter(plan: LaunchPlan, rank: int, place: Mapping[str, str]) -> RankProcess:
    path = os.pathsep.join(p for p in plan.python_path if p)
    with open(plan.files.log(rank), "ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "pytest_distbench.worker", "rank", str(plan.files.plan)],
            env={**plan.variables, "PYTHONPATH": path, **place},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


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
        self, path: Path, selector: selectors.BaseSelector, heard: Heard, *, processes: int, attached: int | None = None
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

    def read(self, source: object) -> list[Event]:
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

    def drain(self) -> list[Event]:
        fresh: list[Event] = []
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

    def _read_rank(self, connection: socket.socket) -> list[Event]:
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
                event = msgspec.json.decode(line, type=Event)
                if 0 <= event.slot < self._processes:
                    fresh.append(event)
        for event in fresh:
            self._ranks[connection] = event.slot
            if event.what == "hello":
                self._watch(event.slot, connection)
                if event.slot == self._attached:
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

    def _rank_ended(self, handle: int) -> list[Event]:
        """Take in a rank's last words and close its connection, whoever else holds the other end."""
        connection = self._handles[handle]
        self._forget(handle)
        fresh: list[Event] = []
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


REAP_S = 20.0
"""How long whoever started the ranks may take to notice that they are gone."""
UNKNOWN_REAP_S = 0.3
"""The same where some ranks have not even started: nobody can end those but by ending who starts them."""


class RunningLaunch(Protocol):
    """Ranks of this host, in flight."""

    def fileno(self) -> int:
        """A descriptor that turns readable when :meth:`poll` has something to do."""

    def poll(self) -> Exit | None:
        """Take in what has arrived; the exit when all ranks have ended, else None. Never blocks."""

    def pids(self) -> dict[int, int]:
        """Rank -> process id, as far as known."""

    def drivers(self) -> list[int]:
        """Process ids of what has to notice that ranks start and end. Where one stands still, nobody does."""

    def abandon(self) -> None:
        """End whatever of the launcher still belongs to this launch, by force, within a few seconds."""


class LocalLauncher(Protocol):
    """Starts ranks as processes of this host: its only job."""

    def start(self, plan: LaunchPlan) -> RunningLaunch:
        """Start the ranks of a plan that is stored in its directory; :class:`LauncherError`: they cannot be."""

    def leftovers(self) -> list[psutil.Process]:
        """Processes of launches that have ended, found by what they were started with, however they got away."""


class LocalSite:
    """A launch whose ranks, or those of them that live here, are processes of this host."""

    def __init__(self, launcher: LocalLauncher, plan: LaunchPlan, *, ranks: Collection[int] | None = None) -> None:
        check_ranks(plan.processes)
        self.heard = Heard()
        self.clocks = Clocks()
        self.ended: Exit | None = None
        self._launcher = launcher
        self._plan = plan
        self._ranks = range(plan.processes) if ranks is None else ranks
        self._selector = selectors.EpollSelector()
        self._channel = ControlChannel(
            plan.files.control,
            self._selector,
            self.heard,
            processes=plan.processes,
            attached=plan.expect(Ranks).attached,
        )
        self._standstill = Standstill()
        self._killed_at = float("inf")
        self._oom_kills_before = processes.oom_kills()
        self._running: RunningLaunch | None = None

    def fileno(self) -> int:
        return self._selector.fileno()

    def start(self) -> None:
        plan = self._plan
        plan.files.plan.touch(mode=0o600)
        stored = replace(plan, address=str(plan.files.control), variables=variables_to_wire(plan.variables))
        plan.files.plan.write_bytes(msgspec.json.encode(stored))
        self._running = self._launcher.start(plan)
        self._selector.register(self._running.fileno(), selectors.EVENT_READ, self._running)

    def listen(self, timeout_s: float) -> list[Event]:
        fresh: list[Event] = []
        for key, _ in self._selector.select(timeout_s):
            if key.data is self._channel:
                fresh += self._channel.read(key.fileobj)
            elif self._running is not None and self.ended is None and (ended := self._running.poll()) is not None:
                self._selector.unregister(key.fileobj)
                self.ended = ended
        return fresh

    def ask(self, ranks: Iterable[int], request: bytes) -> None:
        for rank in ranks:
            self._channel.ask(rank, request)

    def signal(self, rank: int, number: signal.Signals) -> None:
        processes.send([pid for known, pid in self._pids().items() if known == rank], number)

    def running(self) -> frozenset[int]:
        # Not one that ends already, however long its driver takes: its parent tells how, once it has gone.
        pids = self._pids().items()
        return frozenset(rank for rank, pid in pids if processes.is_alive(pid) and not processes.is_ending(pid))

    def look(self) -> None:
        if self._running is not None and (told := self._standstill.look(self._running.drivers())):
            self._running.abandon()
            self.ended = Exit(trouble=told, died=True)

    def collect(self, *, undecided: Iterable[int], held: Iterable[int]) -> None:
        evidence.collect(
            self._plan.files, self._channel.pids(), self._channel.ask, undecided=list(undecided), held=list(held)
        )

    def end(self, ranks: Iterable[int]) -> Exit:
        assert self._running is not None
        self._killed_at = time.monotonic()
        pids = self._pids()
        processes.kill(processes.family(pids[rank] for rank in ranks if rank in pids))
        deadline = time.monotonic() + (REAP_S if len(pids) == len(self._ranks) else UNKNOWN_REAP_S)
        while self.ended is None and (remaining := deadline - time.monotonic()) > 0:
            if self._standstill.look(self._running.drivers()):
                break
            self.listen(min(remaining, LOOK_S))
        if self.ended is None:
            self._running.abandon()
            told = self._running.poll()  # on a busy host it may have said all, and not have come to its end
            trouble = "the launcher did not notice the end of its ranks and was ended"
            self.ended = Exit(codes=told.codes if told is not None else {}, trouble=trouble)
        return self.ended

    def clear(self) -> Exit:
        self._channel.drain()
        processes.kill(self._launcher.leftovers())  # lets resource trackers clean up, which killing a group does not
        pids = self._channel.pids()
        processes.kill_groups(pids.values())
        after_s = max(0.0, time.monotonic() - self._killed_at)
        oom_kills = processes.oom_kills() - self._oom_kills_before
        self.ended = replace(
            self.ended or Exit(),
            stuck=tell_stuck(pids, after_s=after_s, on_gpu=self._plan.device == "cuda"),
            oom_kills=dict.fromkeys(self._ranks, oom_kills) if oom_kills else {},
            remarks=[self._standstill.told] if self._standstill.told else [],
        )
        return self.ended

    def fetch_output(self) -> None:
        """Their logs are among the launch's files."""

    def reports(self) -> list[HostReport]:
        return [report_host(self._plan, self._ranks)]

    def close(self) -> None:
        self._channel.close()
        self._selector.close()
        self._plan.files.plan.unlink(missing_ok=True)
        shutil.rmtree(self._plan.files.sockets, ignore_errors=True)

    def _pids(self) -> dict[int, int]:
        """Rank -> process id, of those that have said hello and of those that the launcher knows."""
        return self._channel.pids() | (self._running.pids() if self._running is not None else {})
