"""The site on this host: ranks are children of this process, known by their process ids.

Ranks connect to a Unix socket, where the kernel names the peer. A connection counts as an open file, so the limit of
open files is checked first. Stuck or failed ranks write evidence while they live. Processes that survive SIGKILL are
held by the kernel, for a driver or a file system that does not answer.
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
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import msgspec
import psutil

from pytest_distbench.errors import LauncherError
from pytest_distbench.launch.evidence import is_whole
from pytest_distbench.launch.reduce import report_host
from pytest_distbench.launch.site import LOOK_S, Clocks, Exit, Heard, processes
from pytest_distbench.launch.site.processes import Standstill
from pytest_distbench.machine.gpus import connect
from pytest_distbench.records.launch import HostReport
from pytest_distbench.records.launch_files import LaunchFiles, open_left
from pytest_distbench.records.plan import LaunchPlan, Ranks
from pytest_distbench.records.record import replace
from pytest_distbench.records.wire import FLIGHT_REQUEST, STACKS_SIGNAL, Event, short_address, variables_to_wire
from pytest_distbench.units import format_bytes


class RankProcess(Protocol):
    """A process of this host, with the interface of ``Popen``."""

    pid: int

    def poll(self) -> int | None:
        """Exit code, or minus the signal's number, or None while it runs."""


StartRank = Callable[[LaunchPlan, int, Mapping[str, str]], RankProcess]
"""Function (plan, rank, environment variables) that starts a rank of a plan stored on disk; returns its process."""


_HANDLING = "TORCH_NCCL_ASYNC_ERROR_HANDLING"


def places(
    ranks: Sequence[Sequence[int]],
    meeting_point: tuple[str, int],
    variables: Mapping[str, str],
    *,
    errors: Path | None = None,
) -> list[dict[int, dict[str, str]]]:
    """torchrun's variables for each rank, host by host (``records/launch_files.py``).

    Ranks meet at a store of rank 0, or at one of the process that starts them if there is a folder for the errors that
    functions under torch's ``record`` write.
    """
    world_size = sum(map(len, ranks))
    run_id = uuid.uuid4().hex
    hosts = [
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
        attempt = errors / run_id / "attempt_0"
        attempt.mkdir(parents=True)
        for rank, place in hosts[0].items():
            folder = attempt / str(rank)
            folder.mkdir()
            place["TORCHELASTIC_ERROR_FILE"] = str(folder / "error.json")
    return hosts


class ChildRanks:
    """Starts the ranks that have a place on this host, and waits for them."""

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
        """Ids of processes between this one and the ranks: empty, as this process is their parent."""
        return []

    def abandon(self) -> None:
        processes.kill_descendants()

    def leftovers(self) -> list[psutil.Process]:
        return psutil.Process().children(recursive=True)


def start_interpreter(plan: LaunchPlan, rank: int, place: Mapping[str, str]) -> RankProcess:
    words = [sys.executable, "-m", "pytest_distbench.worker", "rank", str(plan.files.plan)]
    variables = {**plan.variables, "PYTHONPATH": os.pathsep.join(filter(None, plan.python_path)), **place}
    return processes.start_session(words, variables=variables, log=plan.files.log(rank))


_BESIDES = 64  # libraries, logs, the sockets of its own line
_OF_A_RANK = 2  # sockets per other rank: gloo's, and in rank 0, which keeps the store, the client's


def check_ranks(ranks: int) -> None:
    """Raise LauncherError if a rank's limit of open files on this host is too low: it would wait in vain."""
    needed = _OF_A_RANK * ranks + _BESIDES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= soft < needed:
        most = "any number" if hard == resource.RLIM_INFINITY else f"{hard:,}"
        raise LauncherError(
            f"a rank of {ranks:,} has up to {needed:,} files and connections open, and may have {soft:,} on this "
            f"host: run ulimit -n {needed} before pytest (without root up to {most})"
        )


_STATES = {"D": "the kernel waits for a device or a file system", "R": "the kernel is working for it"}


def stuck_ranks(pids: Mapping[int, int], *, after_s: float, on_gpu: bool) -> dict[int, str]:
    left = {rank: pid for rank, pid in pids.items() if processes.is_alive(pid)}
    held = gpu_memory(left.values()) if left and on_gpu else {}
    found = {}
    for rank, pid in left.items():
        state, _ = processes.state(pid)
        what = f", and holds {format_bytes(held[pid])} of GPU memory" if pid in held else ""
        found[rank] = (
            f"rank {rank} (pid {pid}) is still there {after_s:.0f} s after it was killed: state {state}, "
            f"{_STATES.get(state, 'it is on its way out')}{what}; ps -o pid,stat,wchan {pid} shows when it has gone"
        )
    return found


def gpu_memory(pids: Collection[int]) -> dict[int, int]:
    """Process id -> bytes of GPU memory held according to the driver; in a container it may use other process ids."""
    held: Counter[int] = Counter()
    with contextlib.suppress(Exception), connect() as driver:  # one that answers nothing any more: that is why we ask
        for index in range(driver.demand("GetCount")):
            with contextlib.suppress(driver.binding.NVMLError):
                handle = driver.demand("GetHandleByIndex", index)
                for process in driver.demand("GetComputeRunningProcesses", handle):
                    if process.pid in pids and process.usedGpuMemory:  # None: the driver does not count it
                        held[process.pid] += process.usedGpuMemory
    return dict(held)


_WAIT_S = 5.0  # for an answer: a busy machine is slow, and a rank that cannot answer costs this much
_LOOK_AGAIN_S = 0.02
_PY_SPY_S = 10.0


def collect(
    files: LaunchFiles,
    pids: Mapping[int, int],
    ask: Callable[[Iterable[int], bytes], None],
    *,
    undecided: Collection[int],
    held: Collection[int],
) -> None:
    """Make ranks write stacks and last collectives into the launch's files; returns when they have, or cannot.

    Undecided ranks are at work; held ones have failed and wait, so that only their collectives matter. A rank answers a
    signal, also in a collective. If it masks the signal, or has no handler yet, py-spy is used, if installed and
    allowed.
    """
    at_work = {rank: pids[rank] for rank in undecided if rank in pids}
    # One without the handler would die of the signal: it has not come that far, or the body took the handler away.
    able = {rank: pid for rank, pid in at_work.items() if not processes.is_stopped(pid)}
    answering = {rank: pid for rank, pid in able.items() if processes.catches(pid, STACKS_SIGNAL)}
    before = {rank: len(_written(files.stacks(rank))) for rank in answering}
    processes.send(answering.values(), STACKS_SIGNAL)
    _wait_until(
        lambda: all(is_whole(_written(files.stacks(rank))[n:].decode(errors="replace")) for rank, n in before.items())
    )
    asked = (*answering, *held)  # only now: a thread that works while its frames are read may show nonsense
    ask(asked, FLIGHT_REQUEST)
    _wait_until(lambda: all(files.flight(rank).exists() for rank in asked))
    silent = {rank: pid for rank, pid in at_work.items() if len(_written(files.stacks(rank))) == before.get(rank, 0)}
    spy = py_spy() if silent else None
    for rank, pid in silent.items() if spy is not None else ():
        # One that is stopped cannot be stopped once more, and will not move.
        options = ["--nonblocking"] if processes.is_stopped(pid) else []
        command = [str(spy), "dump", "--json", "--pid", str(pid), *options]
        with contextlib.suppress(OSError, subprocess.SubprocessError, msgspec.DecodeError):
            done = subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL, timeout=_PY_SPY_S, check=True)
            files.stacks(rank).write_text(as_faulthandler(done.stdout))


def py_spy() -> str | None:
    """Path of py-spy, on the PATH or next to this Python, or None."""
    return shutil.which("py-spy") or shutil.which("py-spy", path=str(Path(sys.executable).parent))


def _wait_until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _WAIT_S
    while not is_so() and time.monotonic() < deadline:
        time.sleep(_LOOK_AGAIN_S)


def _written(path: Path) -> bytes:
    with contextlib.suppress(OSError), open_left(path) as file:
        return file.read()
    return b""


def as_faulthandler(dump: bytes) -> str:
    """py-spy's JSON in the format of Python's faulthandler."""
    blocks = []
    for thread in msgspec.json.decode(dump):
        frames = [f'  File "{f["filename"]}", line {f["line"]} in {f["name"]}' for f in thread["frames"]]
        blocks.append("\n".join([f"Thread {thread['thread_name']} (py-spy, most recent call first):", *frames]))
    return "\n\n".join(blocks)


_READ_BYTES = 65536
LONGEST_LINE_BYTES = 2**20  # longer events are dropped: a body got hold of the socket
_LAUNCHER = "launcher"
REAP_S = 20.0  # for whoever started the ranks to notice their end
UNKNOWN_REAP_S = 0.3  # the same if some ranks have not even started: only ending who starts them ends those


class RunningLaunch(Protocol):
    """Ranks of this host, in flight."""

    def fileno(self) -> int:
        """A descriptor that is readable when :meth:`poll` has something to do."""

    def poll(self) -> Exit | None:
        """Receive what has arrived; returns the exit once all ranks have ended. Never blocks."""

    def pids(self) -> dict[int, int]:
        """Rank -> process id, as far as known."""

    def drivers(self) -> list[int]:
        """Process ids of the processes that wait for ranks to start and end."""

    def abandon(self) -> None:
        """End whatever the launcher still runs for this launch, by force, within a few seconds."""


class LocalLauncher(Protocol):
    """Starts ranks as processes of this host."""

    def start(self, plan: LaunchPlan) -> RunningLaunch:
        """Start the ranks of a plan that is stored in its directory. Raises LauncherError if they cannot be started."""

    def leftovers(self) -> list[psutil.Process]:
        """Processes of ended launches, found by the variables that they were started with."""


class LocalSite:
    """A launch whose ranks, or those that live here, are processes of this host.

    Closing it ends every connected rank. Events of unknown ranks are ignored. The attached rank receives stdin, stdout
    and stderr when it says hello.
    """

    def __init__(self, launcher: LocalLauncher, plan: LaunchPlan, *, ranks: Collection[int] | None = None) -> None:
        check_ranks(plan.processes)
        self.heard = Heard()
        self.clocks = Clocks()
        self.ended: Exit | None = None
        self.pids: dict[int, int] = {}
        """Rank -> process id, of the ranks that have said hello and that are seen from here."""
        self._launcher = launcher
        self._plan = plan
        self._ranks = range(plan.processes) if ranks is None else ranks
        self._attached = plan.expect(Ranks).attached
        self._selector = selectors.EpollSelector()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.settimeout(0)
        with short_address(plan.files.control) as address:
            self._listener.bind(address)
        self._listener.listen(1024)
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._lines: dict[socket.socket, bytes] = {}
        self._ranks_by_line: dict[socket.socket, int] = {}
        self._handles: dict[int, socket.socket] = {}
        """pidfd of a rank -> its connection, which a child it forked may hold open after its end."""
        self._standstill = Standstill()
        self._looked_at = float("-inf")
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
        self._selector.register(self._running.fileno(), selectors.EVENT_READ, _LAUNCHER)

    def listen(self, timeout_s: float) -> list[Event]:
        fresh: list[Event] = []
        for key, _ in self._selector.select(timeout_s):
            source = key.fileobj
            if source is self._listener:
                with contextlib.suppress(BlockingIOError):
                    connection, _ = self._listener.accept()
                    connection.settimeout(0)
                    self._lines[connection] = b""
                    self._selector.register(connection, selectors.EVENT_READ)
            elif isinstance(source, socket.socket):
                with contextlib.suppress(BlockingIOError):
                    fresh += self._read(source)
            elif isinstance(source, int) and source in self._handles:  # a rank has ended: its last words
                connection = self._forget(source)
                with contextlib.suppress(BlockingIOError):
                    while connection in self._lines:
                        fresh += self._read(connection)
                self._close(connection)
            elif self._running is not None and self.ended is None and (ended := self._running.poll()) is not None:
                self._selector.unregister(source)
                self.ended = ended
        return fresh

    def ask(self, ranks: Iterable[int], request: bytes) -> None:
        asked = set(ranks)
        for connection in self._lines:
            if self._ranks_by_line.get(connection) in asked:
                with contextlib.suppress(OSError):
                    connection.send(request)

    def signal(self, rank: int, number: signal.Signals) -> None:
        processes.send([pid for known, pid in self._pids().items() if known == rank], number)

    def running(self) -> frozenset[int]:
        # Not one that ends already, however long its driver takes: its parent reports how, once it is gone.
        pids = self._pids().items()
        return frozenset(rank for rank, pid in pids if processes.is_alive(pid) and not processes.is_ending(pid))

    def look(self) -> None:
        if (now := time.monotonic()) - self._looked_at < LOOK_S / 2:
            return  # each event asks
        self._looked_at = now
        if self._running is not None and (complaint := self._standstill.look(self._running.drivers())):
            self._running.abandon()
            self.ended = Exit(trouble=complaint, died=True)

    def collect(self, *, undecided: Iterable[int], held: Iterable[int]) -> None:
        collect(self._plan.files, self.pids, self.ask, undecided=list(undecided), held=list(held))

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
            late = self._running.poll()  # on a busy host it may have said all, and not have come to its end
            trouble = "the launcher did not notice the end of its ranks and was ended"
            self.ended = Exit(codes=late.codes if late is not None else {}, trouble=trouble)
        return self.ended

    def clear(self) -> Exit:
        while any(key.data != _LAUNCHER for key, _ in self._selector.select(0)):
            self.listen(0.0)
        processes.kill(self._launcher.leftovers())  # lets resource trackers clean up, which killing a group does not
        processes.kill_groups(self.pids.values())
        after_s = max(0.0, time.monotonic() - self._killed_at)
        oom_kills = processes.oom_kills() - self._oom_kills_before
        self.ended = replace(
            self.ended or Exit(),
            stuck=stuck_ranks(self.pids, after_s=after_s, on_gpu=self._plan.device == "cuda"),
            oom_kills=dict.fromkeys(self._ranks, oom_kills) if oom_kills else {},
            remarks=[self._standstill.complaint] if self._standstill.complaint else [],
        )
        return self.ended

    def fetch_output(self) -> None:
        """Does nothing: the logs are among the launch's files."""

    def reports(self) -> list[HostReport]:
        return [report_host(self._plan, self._ranks)]

    def close(self) -> None:
        for handle in list(self._handles):
            self._forget(handle)
        for connection in [*self._lines, self._listener]:
            connection.close()
        self._lines.clear()
        self._selector.close()
        for path in (self._plan.files.control, self._plan.files.plan):
            path.unlink(missing_ok=True)
        shutil.rmtree(self._plan.files.sockets, ignore_errors=True)

    def _read(self, connection: socket.socket) -> list[Event]:
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
                if 0 <= event.slot < self._plan.processes:
                    fresh.append(event)
        for event in fresh:
            self._ranks_by_line[connection] = event.slot
            if event.what == "hello":
                # It is the process that made the connection (SO_PEERCRED, socket(7)): that one, and no other.
                peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
                if pid := struct.unpack("3i", peer)[0]:  # else of a namespace that is not seen from here
                    self.pids[event.slot] = pid
                    with contextlib.suppress(OSError):  # gone already: its connection's end says so, or nobody can
                        handle = os.pidfd_open(pid)
                        self._handles[handle] = connection
                        self._selector.register(handle, selectors.EVENT_READ)
                if event.slot == self._attached:
                    socket.send_fds(connection, [b"t"], [0, 1, 2])
        self.heard.take(fresh)
        return fresh

    def _forget(self, handle: int) -> socket.socket:
        self._selector.unregister(handle)
        os.close(handle)
        return self._handles.pop(handle)

    def _close(self, connection: socket.socket) -> None:
        if connection not in self._lines:
            return
        self._selector.unregister(connection)
        connection.close()
        del self._lines[connection]
        if connection in self._ranks_by_line:
            self.heard.close(self._ranks_by_line[connection], time.monotonic())

    def _pids(self) -> dict[int, int]:
        return self.pids | (self._running.pids() if self._running is not None else {})
