"""A rank's connection to its site: sends phases and progress, receives requests, and ends the rank with the site."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
import threading
from pathlib import Path

import msgspec

from pytest_distbench.errors import LauncherError
from pytest_distbench.records import wire
from pytest_distbench.records.launch import Phase
from pytest_distbench.records.plan import LaunchPlan
from pytest_distbench.records.wire import RankWord, start_s
from pytest_distbench.worker.clock import HostClock

PROGRESS_INTERVAL_S = 0.2


class RankLine:
    """What a body uses of a rank's connection to pytest, as methods that do nothing: for a process without one."""

    def progress(self, text: str) -> None:
        """Show one line of progress; does nothing here."""

    def take_turn(self) -> None:
        """Wait until it is this group's turn to measure; returns at once here."""


class ControlLine(RankLine):
    """Connection of one rank to its launch's socket on this host, held by pytest or its relay.

    When that process ends, however it ends, the kernel closes the socket, and the thread blocked in a read here kills
    the rank's process group. The thread also answers requests while the main thread is blocked in a collective.
    """

    def __init__(self, plan: LaunchPlan, rank: int, *, is_attached: bool) -> None:
        self._rank = rank
        # for one that does not come up: pytest's own limit is the launch's time longer
        self._start_s = start_s(plan.processes)
        self._flight = plan.files.flight(rank)
        self._groups = plan.files.groups(rank)
        self._awaited = plan.files.awaited(rank)
        self._reports_progress = plan.reports_progress
        self._last_progress = 0.0
        self._lock = threading.Lock()
        self._turn = threading.Semaphore(0)
        self._all_up = threading.Event()
        self._all_joined = threading.Event()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            with wire.short_address(Path(plan.address)) as name:
                self._socket.connect(name)
        except OSError as error:
            raise LauncherError(
                f"rank {rank} on {socket.gethostname()} cannot reach pytest: {error.strerror or error} "
                f"({plan.address}), a socket of the host that holds the other end. Has that ended, or is it another "
                "host? Ranks of other hosts need a relay there, as --distbench-launcher=slurm starts it"
            ) from error
        self.send("hello")
        if is_attached:
            _, terminal, _, _ = socket.recv_fds(self._socket, 1, 3)
            for number, theirs in enumerate(terminal):
                os.dup2(theirs, number)
                os.close(theirs)
        threading.Thread(target=self._die_with_pytest, name="distbench-lifeline", daemon=True).start()

    def send(self, what: RankWord, text: str = "") -> None:
        """Send one event. A pytest that is gone is no error here, as the thread that reads ends the rank."""
        event = wire.rank_event(what, self._rank, HostClock.monotonic(), text)
        with self._lock, contextlib.suppress(OSError):
            self._socket.sendall(msgspec.json.encode(event) + b"\n")

    def phase(self, phase: Phase) -> None:
        self.send("phase", phase)

    def progress(self, text: str) -> None:
        """Show one line of progress, at most five per second; costs nothing if nobody looks."""
        now = HostClock.monotonic()
        if self._reports_progress and now - self._last_progress >= PROGRESS_INTERVAL_S:
            self._last_progress = now
            self.send("progress", text[:500])

    def wait_for_the_others(self) -> None:
        """Wait until every rank is up, so that a time-out counted from here excludes the start of the slowest rank."""
        self._all_up.wait(self._start_s)

    def wait_until_all_joined(self) -> None:
        """Wait until every rank has joined the group: gloo lets a rank leave while another still connects to it."""
        self._all_joined.wait(self._start_s)

    def take_turn(self) -> None:
        """Wait for this group's turn, without a limit: pytest limits the other group, and its end ends this rank."""
        self.send("turn")
        self._turn.acquire()

    def _die_with_pytest(self) -> None:
        with contextlib.suppress(OSError):
            while request := self._socket.recv(1):
                if request == wire.FLIGHT_REQUEST:
                    _dump(self._flight, self._groups, self._awaited)
                elif request == wire.ALL_UP:
                    self._all_up.set()
                elif request == wire.ALL_JOINED:
                    self._all_joined.set()
                elif request == wire.TURN_REQUEST:
                    self._turn.release()
        own = os.getpid()
        # its group goes too, where it leads one: all but what cleans up after it
        with contextlib.suppress(OSError):
            members = [int(name) for name in os.listdir("/proc") if name.isdecimal()] if os.getpgid(0) == own else []
            for pid in members:
                with contextlib.suppress(OSError):
                    if (
                        pid != own
                        and os.getpgid(pid) == own
                        and not wire.cleans_up(Path(f"/proc/{pid}/cmdline").read_bytes())
                    ):
                        os.kill(pid, signal.SIGKILL)
        os.kill(own, signal.SIGKILL)


def _dump(path: Path, groups: Path, awaited: Path) -> None:
    """Write the flight recorders' contents by name, as JSON, completely or not at all; {} if torch records nothing.

    Written first are the ranks of every group, and the file that the main thread waits for, if any. Errors are ignored,
    as this runs while the process is in trouble.
    """
    content = b""
    members: dict[str, list[int]] = {}
    with contextlib.suppress(Exception):
        from pytest_distbench.worker import torch_internals

        members = torch_internals.group_members()
        found = torch_internals.recordings(whole=True)
        telling = {name: text for name, text in found.items() if b'"entries":[{' in text}
        # All that have seen something: under NCCL our own barriers are in one, and the workload's collectives in the
        # other.
        content = b"{%s}" % b",".join(b'"%s":%s' % (name.encode(), text) for name, text in telling.items())
    with contextlib.suppress(Exception):
        if lock := _awaited_lock():
            _write(awaited, json.dumps(lock).encode())
    _write(groups, json.dumps(members).encode())
    _write(path, content)


def _awaited_lock() -> str:
    """Path of the lock file of an extension's build whose end the main thread awaits in torch, or ""."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    while frame is not None:
        if frame.f_code.co_filename.endswith("torch/utils/file_baton.py") and frame.f_code.co_name == "wait":
            return os.path.abspath(frame.f_locals["self"].lock_file_path)
        frame = frame.f_back
    return ""


def _write(path: Path, content: bytes) -> None:
    with contextlib.suppress(OSError):
        draft = path.with_suffix(".tmp")
        draft.write_bytes(content)
        draft.rename(path)
