"""The agent process: holds torch, and a forkserver forked from it, and runs one real elastic agent per launch.

Started once per session by the warm launcher and spoken to in JSON lines over a socket pair, so that torch's signal
handlers, threads and CUDA state never enter pytest's process. When pytest closes its end, for whatever reason,
everything here ends.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import gc
import logging
import os
import queue
import select
import shutil
import signal
import socket
import threading
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Literal

import msgspec

from pytest_distbench.launch.site import processes
from pytest_distbench.launch.site.guardian import adopt_orphans, remove_traces
from pytest_distbench.launch.starters import forkserver
from pytest_distbench.launch.starters.contract import SESSION_VARIABLE
from pytest_distbench.records.launch_files import LaunchFiles, sockets_folder
from pytest_distbench.records.record import Record
from pytest_distbench.releases import untested


class Request(Record, frozen=True, kw_only=True):
    """pytest -> agent: start the ranks of a stored plan; without a plan: end."""

    plan: str = ""
    processes: int = 0


class Reply(Record, frozen=True, kw_only=True):
    """agent -> pytest."""

    kind: Literal["ready", "started", "finished"]
    backends: dict[str, bool] = {}
    kept: list[int] = []
    """Process ids that outlive a launch: the agent, its forkserver and resource tracker."""
    pids: list[int] = []
    codes: dict[str, int] = {}
    stamps: dict[str, float] = {}
    trouble: str = ""
    died: bool = False
    """The forkserver did: this agent is of no more use."""


def main(descriptor: int, directory: str, preload: list[str]) -> None:
    """Serve launches until the other end of the socket closes."""
    adopt_orphans()
    link = socket.socket(fileno=descriptor)
    link.set_inheritable(False)
    agent = _Agent(link, Path(directory))
    with agent.ended_by_signal():
        forkserver.preload()
    sockets = sockets_folder(Path(directory), os.environ[SESSION_VARIABLE])
    forkserver.start(sockets, semaphores=Path(directory).name, projects=preload, close=[descriptor])
    agent.listen()
    agent.kept = [os.getpid(), *processes.children(os.getpid())]
    logging.disable(logging.CRITICAL)  # torch's first log record imports 800 modules
    from pytest_distbench.launch.starters.group import backends  # and with it torch

    agent.send(Reply(kind="ready", backends=backends(), kept=agent.kept))
    agent.serve()


class _Agent:
    """Serves one request after the other; a thread ends everything when pytest has closed its end of the link."""

    def __init__(self, link: socket.socket, directory: Path) -> None:
        self._link = link
        self._directory = directory
        self.kept: list[int] = []
        self._requests: queue.SimpleQueue[Request] = queue.SimpleQueue()

    @contextlib.contextmanager
    def ended_by_signal(self) -> Iterator[None]:
        """Meanwhile a signal ends everything when pytest closes its end or asks for it: it does nothing else so early.

        Afterwards there is one thread still, as is right for a fork.
        """

        def end(*_: object) -> None:
            if select.select([self._link], [], [], 0)[0]:
                self._end_everything(pytest_died=not self._link.recv(1, socket.MSG_PEEK))

        signal.signal(signal.SIGIO, end)
        fcntl.fcntl(self._link, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(self._link, fcntl.F_SETFL, os.O_ASYNC)
        end()  # it may have happened before
        yield
        fcntl.fcntl(self._link, fcntl.F_SETFL, 0)
        signal.signal(signal.SIGIO, signal.SIG_DFL)

    def listen(self) -> None:
        """Take requests from now on, and notice when pytest's end closes."""
        threading.Thread(target=self._read_until_closed, name="distbench-requests", daemon=True).start()

    def send(self, reply: Reply) -> None:
        with contextlib.suppress(OSError):
            self._link.sendall(msgspec.json.encode(reply) + b"\n")

    def serve(self) -> None:
        gc.freeze()  # torch: looking through it takes longer than a launch
        while True:
            self.send(self._run(self._requests.get()))
            gc.collect()  # a launch's locks are in cycles, and semaphores: files in a container's small /dev/shm

    def _run(self, request: Request) -> Reply:
        from pytest_distbench.launch.starters.group import Group

        def on_start(pids: list[int]) -> None:
            self.send(Reply(kind="started", pids=pids))

        group, trouble = None, ""
        try:
            group = Group(request.plan, request.processes, on_start=on_start)
            group.run()
        except Exception as error:  # noqa: BLE001 reported to pytest, which decides; the next launch may well work
            what = str(error).partition("\nException raised from")[0]  # then follow torch's frames of C++
            trouble = f"{type(error).__name__}: {what}{_advice(error, metadata.version('torch'))}"
        processes.reap_orphans(kept=self.kept)
        codes = {str(r): c for r, c in group.exit_codes().items()} if group is not None else {}
        died = forkserver.LOST in codes.values() and forkserver.has_died()
        if died:
            codes, trouble = {}, "the forkserver has died"
        stamps = group.stamps if group is not None else {}
        return Reply(kind="finished", codes=codes, stamps=stamps, trouble=trouble, died=died)

    def _read_until_closed(self) -> None:
        with contextlib.suppress(OSError), self._link.makefile("rb") as stream:
            for line in stream:
                request = msgspec.json.decode(line, type=Request)
                if not request.plan:
                    self._end_everything(pytest_died=False)
                self._requests.put(request)
        self._end_everything(pytest_died=True)

    def _end_everything(self, *, pytest_died: bool) -> None:
        """End all that this session started, and this process; no socket, semaphore or secret stays behind."""
        others = processes.find_marked(SESSION_VARIABLE, os.environ[SESSION_VARIABLE])
        processes.kill(p for p in others if p.pid not in self.kept)
        forkserver.let_helpers_end()
        processes.kill_descendants()
        shutil.rmtree(sockets_folder(self._directory, os.environ[SESSION_VARIABLE]), ignore_errors=True)
        for launch in self._directory.glob("launch*/") if pytest_died else ():
            remove_traces(LaunchFiles(launch))
        os._exit(0)


def _advice(error: Exception, torch: str) -> str:
    """What stands behind an error that starting ranks met: of the system, or of a torch that we do not know."""
    if isinstance(error, (AttributeError, TypeError)) and (unknown := untested(torch)):
        return f"; {unknown}: --distbench-launcher=torchrun may work with it"
    number = error.errno if isinstance(error, OSError) else None
    if number in (errno.ENOSPC, errno.EROFS, errno.ENOENT) and not getattr(error, "filename", None):
        return (
            "; the locks of a launch are semaphores in /dev/shm: is it full, read-only or missing? "
            "(docker run --shm-size; --distbench-launcher=torchrun needs none)"
        )
    if type(error).__name__ == "DistNetworkError":
        return "; the ranks of a host meet at 127.0.0.1: is its loopback interface up? (ip link set lo up)"
    if number == errno.EAGAIN:
        return (
            "; no process or thread could be started: see ulimit -u and the container's limit of processes (pids.max)"
        )
    return ""
