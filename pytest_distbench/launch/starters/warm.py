"""The default launcher: the ranks of this host are forked from a process that has torch loaded."""

from __future__ import annotations

import contextlib
import importlib
import math
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
import psutil

from pytest_distbench.errors import BackendUnavailable, LauncherError
from pytest_distbench.launch.site import LOOK_S, Exit, processes
from pytest_distbench.launch.site.local import LocalSite, RunningLaunch, places
from pytest_distbench.launch.site.processes import Standstill, remove_traces
from pytest_distbench.launch.starters import LOOPBACK_ADDRESS, NO_REVERSE_DNS, LauncherSetup, parent
from pytest_distbench.launch.starters.parent import RANK, Order, Parent, Word, read_at_start, variables_of_parent
from pytest_distbench.launch.workplace import tail
from pytest_distbench.records.launch_files import LaunchFiles
from pytest_distbench.records.plan import LaunchPlan
from pytest_distbench.records.wire import SESSION_VARIABLE
from pytest_distbench.worker.bodies import may_train
from pytest_distbench.worker.forked import open_descriptors

_START_S = 120.0
_END_S = 2.0


def main(descriptor: int, stores: int, directory: str, projects: Sequence[str]) -> None:
    """Run the parent of this host's ranks while its owner keeps the connection, and fork the keeper of their stores.

    When pytest dies, no socket stays behind, and no plan with its secrets.
    """

    def clean() -> None:
        for launch in Path(directory).glob("launch*/"):
            remove_traces(LaunchFiles(launch))

    parent.load(Path(directory).name, projects)
    parent.kept.update(open_descriptors() - {descriptor, stores})
    keeper = parent.fork("pytest_distbench.launch.starters.loopback:keep_stores", [stores], {}, stores)
    os.close(stores)
    line = socket.socket(fileno=descriptor)
    membership = importlib.import_module("pytest_distbench.worker.membership")
    ready = Word(what="ready", backends=membership.backends(), pids=[keeper])
    with contextlib.suppress(OSError):  # the owner died meanwhile: the connection closes
        line.sendall(msgspec.json.encode(ready) + b"\n")
    parent.serve(line, keeper=keeper, on_death=clean)


class WarmLauncher:
    """Keeps one parent, replaced when it has died or its start-up environment does not fit."""

    name = "warm"

    def __init__(self, setup: LauncherSetup) -> None:
        self.session = setup.session
        self._setup = setup
        self._parent: _HostParent | None = None

    def prepare(self, variables: dict[str, str]) -> None:
        read = read_at_start(variables)
        if self._parent is not None and self._parent.is_usable(read):
            return
        self.close()
        path = sys.path if self._setup.python_path is None else self._setup.python_path
        inherited = {**variables, SESSION_VARIABLE: self.session, "PYTHONPATH": os.pathsep.join(p for p in path if p)}
        self._parent = _HostParent(self._setup, inherited, read)

    def open(self, plan: LaunchPlan) -> LocalSite:
        return LocalSite(self, plan)

    def start(self, plan: LaunchPlan) -> RunningLaunch:
        for attempt in (1, 2):
            self.prepare(plan.variables)
            assert self._parent is not None
            try:
                backends = self._parent.wait_until_ready()
                have = [name for name, is_there in backends.items() if is_there]
                if plan.backend not in have:
                    raise BackendUnavailable(plan.backend, f"this build of torch has {', '.join(have)}", have)
                if plan.backend == "nccl" and plan.device == "cpu":
                    why = "it connects GPUs, and these ranks run on the CPU: give --gpu"
                    raise BackendUnavailable("nccl", why, [name for name in have if name != "nccl"])
                return _WarmLaunch(self._parent, plan)
            except LauncherError:
                self.close()
                if attempt == 2:
                    raise
        raise AssertionError("unreachable")

    def leftovers(self) -> list[psutil.Process]:
        """Processes that launches left running, without the store keeper: below the parent, or with the session's mark.

        While the parent lives, it inherits all that ranks leave behind.
        """
        if self._parent is None or not processes.is_alive(self._parent.pid):
            return processes.find_marked(SESSION_VARIABLE, self.session)
        return processes.family([self._parent.pid], but=self._parent.kept())

    def close(self) -> None:
        if self._parent is not None:
            self._parent.end()
            self._parent = None
            processes.kill(self.leftovers())


class _HostParent(Parent):
    def __init__(self, setup: LauncherSetup, variables: dict[str, str], read_at_start: dict[str, str]) -> None:
        self._read_at_start = read_at_start
        self._setup = setup
        self._log = setup.directory / f"parent-{variables[SESSION_VARIABLE][:8]}.log"
        self._ready: Word | None = None
        self._is_lost = False
        ours, theirs = socket.socketpair()
        stores, its = socket.socketpair()
        python = str(setup.interpreter or sys.executable)
        start = f"main({theirs.fileno()}, {its.fileno()}, {str(setup.directory)!r}, {[*setup.preload]!r})"
        words = [python, "-c", f"from pytest_distbench.launch.starters.warm import main; {start}"]
        own = {**variables_of_parent(variables), **NO_REVERSE_DNS}
        with theirs, its:
            keeps = [theirs.fileno(), its.fileno()]
            self._process = processes.start_session(words, variables=own, log=self._log, keeps=keeps)
        super().__init__(ours, self._process.pid)
        self._stores = Parent(stores, self._process.pid, gone="the process with the ranks' TCPStore has ended")

    def is_usable(self, read_at_start: dict[str, str]) -> bool:
        is_whole = not self._is_lost and not self.kept() & self.ended.keys()
        return is_whole and self._process.poll() is None and self._read_at_start == read_at_start

    def kept(self) -> set[int]:
        return {self.pid} if self._ready is None else {self.pid, *self._ready.pids}

    def wait_until_ready(self) -> dict[str, bool]:
        """Wait until the parent has loaded torch; returns backend name -> whether available."""
        if self._ready is None:
            began = time.monotonic()
            self._ready = self._wait_for("ready", self, began + _START_S)
            self._setup.on_loaded(time.monotonic() - began)
        return self._ready.backends

    def _wait_for(self, what: str, line: Parent, deadline: float = math.inf) -> Word:
        standstill = Standstill()
        while time.monotonic() < deadline:
            for word in line.take(min(LOOK_S, max(0.0, deadline - time.monotonic()))):
                if word.what == what:
                    return word
            if complaint := standstill.look(self.kept()):
                raise LauncherError(complaint)
            if line is self:
                self._setup.on_progress("loading torch")
        raise LauncherError(
            f"the process that starts the ranks did not start within {_START_S:.0f} s; its log: {self._log_tail()}"
        )

    def take(self, timeout_s: float | None = 0.0) -> list[Word]:
        try:
            return super().take(timeout_s)
        except LauncherError:
            if self.line.fileno() < 0:
                raise LauncherError("the process that starts the ranks was ended") from None
            self._is_lost = True
            how = processes.ending(self._process.wait(timeout=10))
            raise LauncherError(f"the process that starts the ranks {how}; its log:\n{self._log_tail()}") from None

    def make_store(self) -> int:
        self._stores.send(Order(what="make"))
        made = self._wait_for("made", self._stores)
        if made.trouble:
            raise LauncherError(
                f"{made.trouble}; the ranks of a host connect at {LOOPBACK_ADDRESS}: is its loopback interface up? "
                "(ip link set lo up)"
            )
        return made.port

    def drop_store(self) -> None:
        with contextlib.suppress(LauncherError):
            self._stores.send(Order(what="drop"))

    def end(self) -> None:
        tree = processes.family([self.pid])
        with contextlib.suppress(LauncherError):  # it may have died
            self.send(Order(what="end"))
        self.line.close()
        self._stores.line.close()
        if self._ready is not None:  # else it hears nothing yet
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=_END_S)
        processes.kill(tree)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=_END_S)

    def _log_tail(self) -> str:
        return tail(self._log).strip()[-2000:] or "(empty)"


class _WarmLaunch:
    """The ranks of one launch, forked by a parent. When one fails, the others get SIGTERM, as under torchrun."""

    def __init__(self, parent: _HostParent, plan: LaunchPlan) -> None:
        self._parent = parent
        self._pids: list[int] = []
        self._exit: Exit | None = None
        self._has_signalled = False
        port = parent.make_store()
        self._agreed = time.monotonic()
        [variables] = places(
            [range(plan.processes)], (LOOPBACK_ADDRESS, port), plan.variables, errors=plan.files.torchrun_logs
        )
        parent.begin_fork(RANK, str(plan.files.plan), each=list(variables.values()), trains=may_train(plan))

    def fileno(self) -> int:
        return self._parent.fileno()

    def poll(self) -> Exit | None:
        if self._exit is None:
            try:
                words = self._parent.take()
            except LauncherError as error:
                self._exit = Exit(trouble=str(error), died=True)
                return self._exit
            for word in words:
                if word.what == "forked":
                    self._pids = word.pids
                    if word.trouble:
                        self._end(Exit(trouble=word.trouble))
            ended = self._parent.ended
            codes = {rank: ended[pid] for rank, pid in enumerate(self._pids) if pid in ended}
            if lost := self._parent.kept() & ended.keys():
                how = processes.ending(ended[lost.pop()])
                self._end(Exit(codes=codes, trouble=f"the process with the ranks' TCPStore {how}", died=True))
            elif self._pids and len(codes) == len(self._pids):
                self._end(Exit(codes=codes, stamps={"rendezvous": self._agreed}))
            elif any(codes.values()) and not self._has_signalled:
                self._has_signalled = True
                processes.send(set(self._pids) - ended.keys(), signal.SIGTERM)
        return self._exit

    def _end(self, how: Exit) -> None:
        self._exit = self._exit or how
        self._parent.drop_store()

    def pids(self) -> dict[int, int]:
        return {rank: pid for rank, pid in enumerate(self._pids) if pid not in self._parent.ended}

    def drivers(self) -> list[int]:
        return sorted(self._parent.kept())

    def abandon(self) -> None:
        self._parent.end()
