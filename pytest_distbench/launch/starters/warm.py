"""The default launcher: ranks from a forkserver that has torch loaded, under a real elastic agent."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
import psutil

from pytest_distbench.errors import BackendUnavailable, LauncherError
from pytest_distbench.launch.site import processes
from pytest_distbench.launch.site.contract import Exit
from pytest_distbench.launch.site.local import LocalSite, RunningLaunch
from pytest_distbench.launch.site.standstill import LOOK_S, Standstill
from pytest_distbench.launch.starters import forkserver
from pytest_distbench.launch.starters.agent import Reply, Request
from pytest_distbench.launch.starters.contract import NO_REVERSE_DNS, SESSION_VARIABLE
from pytest_distbench.records.launch_files import sockets_folder
from pytest_distbench.records.plan import LaunchPlan

_START_TIMEOUT_S = 120.0
_READ_BYTES = 65536


class WarmLauncher:
    """Keeps one agent process; starts it again when it has died or its start-up environment no longer fits."""

    name = "warm"

    def __init__(
        self,
        directory: Path,
        session: str,
        preload: tuple[str, ...] = (),
        *,
        interpreter: Path | None = None,
        python_path: Sequence[str] | None = None,
    ) -> None:
        self._directory = directory
        self.session = session
        self._preload = preload
        self._interpreter = str(interpreter or sys.executable)
        self._python_path = python_path
        self._agent: _Agent | None = None

    def prepare(self, variables: dict[str, str]) -> None:
        read = forkserver.read_at_start(variables)
        if self._agent is not None and self._agent.is_usable(read):
            return
        self.close()
        path = sys.path if self._python_path is None else self._python_path
        inherited = {**variables, SESSION_VARIABLE: self.session, "PYTHONPATH": os.pathsep.join(p for p in path if p)}
        self._agent = _Agent(self._interpreter, self._directory, inherited, read, list(self._preload))

    def open(self, plan: LaunchPlan) -> LocalSite:
        return LocalSite(self, plan)

    def start(self, plan: LaunchPlan) -> RunningLaunch:
        for attempt in (1, 2):
            self.prepare(plan.variables)
            assert self._agent is not None
            try:
                backends = self._agent.wait_until_ready()
                if not backends.get(plan.backend, False):
                    have = [name for name, is_there in backends.items() if is_there]
                    raise BackendUnavailable(plan.backend, f"this build of torch has {', '.join(have)}", have)
                if plan.backend == "nccl" and plan.device == "cpu":
                    have = [name for name, is_there in backends.items() if is_there and name != "nccl"]
                    raise BackendUnavailable("nccl", "it joins GPUs, and the ranks are on the CPU: give --gpu", have)
                return self._agent.launch(plan)
            except LauncherError:
                self.close()
                if attempt == 2:
                    raise
        raise AssertionError("unreachable")

    def leftovers(self) -> list[psutil.Process]:
        """All that carries the session's mark or descends from the agent, and is not one of its own helpers."""
        found = {p.pid: p for p in processes.find_marked(SESSION_VARIABLE, self.session)}
        if self._agent is None:
            return list(found.values())
        found |= {p.pid: p for p in processes.family([self._agent.pid])}
        return [p for pid, p in found.items() if pid not in self._agent.kept]

    def close(self) -> None:
        if self._agent is not None:
            self._agent.end()
            self._agent = None
            processes.kill(self.leftovers())
            shutil.rmtree(sockets_folder(self._directory, self.session), ignore_errors=True)


class _Agent:
    """The agent process and its end of the socket pair."""

    def __init__(
        self,
        interpreter: str,
        directory: Path,
        variables: dict[str, str],
        read_at_start: dict[str, str],
        preload: list[str],
    ) -> None:
        self._read_at_start = read_at_start
        self.is_broken = False
        self._log = directory / f"agent-{variables[SESSION_VARIABLE][:8]}.log"
        self._link, theirs = socket.socketpair()
        start = f"main({theirs.fileno()}, {str(directory)!r}, {preload!r})"
        code = f"from pytest_distbench.launch.starters.agent import main; {start}"
        with open(self._log, "ab") as log:
            self._process = subprocess.Popen(
                [interpreter, "-c", code],
                env={**forkserver.variables_of_parent(variables), **NO_REVERSE_DNS},
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        theirs.close()
        self._buffer = b""
        self._backends: dict[str, bool] | None = None
        self.pid = self._process.pid
        self.kept: set[int] = {self.pid}

    def is_usable(self, read_at_start: dict[str, str]) -> bool:
        return not self.is_broken and self._process.poll() is None and self._read_at_start == read_at_start

    def wait_until_ready(self) -> dict[str, bool]:
        """Wait until the agent has torch loaded; returns which backends that torch has."""
        deadline = time.monotonic() + _START_TIMEOUT_S
        standstill = Standstill()
        while self._backends is None:
            for reply in self.read(timeout_s=min(LOOK_S, max(0.0, deadline - time.monotonic()))):
                self._backends, self.kept = reply.backends, set(reply.kept)
            if told := standstill.look([self.pid]):
                raise LauncherError(told)
            if time.monotonic() > deadline:
                raise LauncherError(
                    f"the agent did not start within {_START_TIMEOUT_S:.0f} s; its log: {self._log_tail()}"
                )
        return self._backends

    def launch(self, plan: LaunchPlan) -> RunningLaunch:
        request = Request(plan=str(plan.files.plan), processes=plan.processes)
        try:
            self._link.sendall(msgspec.json.encode(request) + b"\n")
        except OSError as error:
            raise LauncherError(f"the agent has ended; its log:\n{self._log_tail()}") from error
        return _WarmLaunch(self)

    def read(self, *, timeout_s: float | None) -> list[Reply]:
        """Replies that have arrived; waits for the first at most ``timeout_s`` (0: do not wait)."""
        if self._link.fileno() < 0:
            raise LauncherError("the agent was ended")
        self._link.settimeout(timeout_s)
        try:
            data = self._link.recv(_READ_BYTES)
        except (BlockingIOError, TimeoutError):
            return []
        except OSError as error:
            raise LauncherError(f"lost the agent: {error}") from error
        finally:
            self._link.settimeout(None)
        if not data:
            self.is_broken = True
            how = processes.ending(self._process.wait(timeout=10))
            raise LauncherError(f"the agent {how}; its log:\n{self._log_tail()}")
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        return [msgspec.json.decode(line, type=Reply) for line in lines]

    def fileno(self) -> int:
        return self._link.fileno()

    def end(self) -> None:
        """Ask the agent to end, and make sure of it and of all it started."""
        tree = processes.family([self._process.pid])
        with contextlib.suppress(OSError):  # it may have died
            self._link.sendall(msgspec.json.encode(Request()) + b"\n")
        self._link.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=2)
        processes.kill(tree)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=2)

    def _log_tail(self) -> str:
        try:
            return self._log.read_text(errors="replace")[-2000:].strip() or "(empty)"
        except OSError:
            return "(not readable)"


class _WarmLaunch:
    """A launch the agent is busy with."""

    def __init__(self, agent: _Agent) -> None:
        self._agent = agent
        self._pids: dict[int, int] = {}
        self._exit: Exit | None = None

    def fileno(self) -> int:
        return self._agent.fileno()

    def poll(self) -> Exit | None:
        try:
            for reply in self._agent.read(timeout_s=0.0):
                self._take(reply)
        except LauncherError as error:
            self._exit = Exit(trouble=str(error), died=True)
        return self._exit

    def pids(self) -> dict[int, int]:
        return dict(self._pids)

    def drivers(self) -> list[int]:
        return [self._agent.pid]

    def abandon(self) -> None:
        self._agent.end()

    def _take(self, reply: Reply) -> None:
        if reply.kind == "started":
            self._pids = dict(enumerate(reply.pids))
        elif reply.kind == "finished":
            codes = {int(rank): code for rank, code in reply.codes.items()}
            self._exit = Exit(codes=codes, stamps=reply.stamps, trouble=reply.trouble, died=reply.died)
            self._agent.is_broken = reply.died or (bool(reply.trouble) and not self._pids)  # it cannot start ranks
