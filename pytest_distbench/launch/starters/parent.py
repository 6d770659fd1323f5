"""A node's process that has torch loaded, and the controller's end of the connection to it.

For each launch it forks a relay, which forks the ranks of its node. It lives as long as the controller wants ranks on
its node. When the controller asks on its connection it forks a relay, which makes a connection of its own
(``site/dial.py``), and it says when nothing of that launch is left here. However the connection ends, all that was
started here does, too.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import selectors
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NoReturn

from pytest_distbench.launch.site import dial, processes, relay
from pytest_distbench.launch.site.dial import SECRET_VARIABLE, Hello
from pytest_distbench.launch.site.guardian import adopt_orphans, end_with
from pytest_distbench.launch.site.local import ChildRanks
from pytest_distbench.launch.starters import forkserver
from pytest_distbench.launch.starters.calls import Callers, Connection
from pytest_distbench.records.plan import LaunchPlan
from pytest_distbench.worker import preloaded
from pytest_distbench.worker.python_internals import open_descriptors

FORK, END, GONE = b"f", b"e", b"g"
"""From the controller: fork a relay; end it if it does not end by itself. To it, once for each: nothing of it is
left."""
_LEAVE_S = 2.0
"""How long a relay may take to end by itself, which removes its files."""


def main(port: int, addresses: Sequence[str], projects: Sequence[str]) -> None:
    """Load torch and what the project adds, connect, and serve one launch after the other."""
    adopt_orphans()
    secret = os.environ.pop(SECRET_VARIABLE)  # ranks have no use for it
    forkserver.preload()
    preloaded.load(projects)
    kept = open_descriptors()
    with dial.call(addresses, port, secret) as line:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
        while order := _hear(line):
            if order == FORK:  # else it had ended by itself
                _serve_launch(line, lambda: dial.call(addresses, port, secret), kept)
                with contextlib.suppress(OSError):
                    line.sendall(GONE)


def _hear(line: socket.socket) -> bytes:
    """An order; nothing where there will be no more, however that came about: a network that has parted, too."""
    try:
        return line.recv(1)
    except OSError:
        return b""


def _serve_launch(line: socket.socket, call: Callable[[], socket.socket], kept: Collection[int]) -> None:
    """Fork a relay, and see that nothing is left of it once it ends, or the controller says so or is gone."""
    this = os.getpid()
    child = os.fork()
    if child == 0:
        line.close()
        _be_relay(this, call, kept)
    ended = os.pidfd_open(child)
    with selectors.DefaultSelector() as selector:
        selector.register(line, selectors.EVENT_READ)
        selector.register(ended, selectors.EVENT_READ)
        try:
            if any(key.fileobj is line for key, _ in selector.select()):
                _hear(line)
        finally:
            selector.unregister(line)
            selector.select(_LEAVE_S)
            processes.kill_descendants()
            processes.reap_orphans(kept=())
            os.close(ended)


def _be_relay(parent: int, call: Callable[[], socket.socket], kept: Collection[int]) -> NoReturn:
    """Serve one launch in this process, which ends with its parent."""
    try:
        end_with(parent)
        with call() as line:
            relay.serve(
                line,
                lambda order: ChildRanks(order.places, lambda plan, _, place: ForkedRank(plan, place, kept)),
            )
    except Exception:  # noqa: BLE001 it must not come back into the code of the process it was forked from
        traceback.print_exc()
    finally:
        os._exit(0)


class ForkedRank:
    """A rank that was forked from this process, with torch loaded; it has none of its descriptors but ``kept``."""

    def __init__(self, plan: LaunchPlan, place: Mapping[str, str], kept: Collection[int]) -> None:
        self._code: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            _be_rank(plan, place, kept)

    def poll(self) -> int | None:
        if self._code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self._code = os.waitstatus_to_exitcode(status) if pid else None
        return self._code


def _be_rank(plan: LaunchPlan, place: Mapping[str, str], kept: Collection[int]) -> NoReturn:
    """Run a stored plan in this process. The worker is named, not imported, as in ``group.py``."""
    try:
        os.setsid()
        for descriptor in open_descriptors().difference(kept):
            os.close(descriptor)
        os.environ.update(place)
        importlib.import_module("pytest_distbench.worker.forked").begin_anew()
        importlib.import_module("pytest_distbench.worker.main").run_rank(str(plan.files.plan))()
    except BaseException:  # noqa: BLE001 it must not come back into the code of the process it was forked from
        traceback.print_exc()
    finally:
        os._exit(1)


_END_S = 5.0
"""How long a parent may take to end a relay."""


class Parent:
    """A node's process that has torch loaded (``parent.py``), and keeps the relay of one launch after the other."""

    def __init__(self, caller: Connection[Hello], step: Callers) -> None:
        self.line = caller.line
        self.step = step
        self.pid = step.pid
        self._has_relay = False

    @property
    def is_idle(self) -> bool:
        """Whether it can fork a relay: it is there, and the one before has gone."""
        if self.line.fileno() < 0 or self._has_relay or not self.step.is_alive:
            return False
        self.line.settimeout(0)
        try:
            self.line.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False

    def fork_relay(self) -> None:
        """Ask for a relay, which calls. A parent that cannot hear any more is noticed by its connection."""
        self._has_relay = True
        self._tell(FORK)

    def poll(self) -> int | None:
        """The exit code of the step; None: it runs."""
        return self.step.poll()

    def wait(self, timeout: float | None = None) -> int:
        """Wait until nothing is left of the relay, or the parent is lost."""
        if self._has_relay:
            self.line.settimeout(timeout)
            try:
                said = self.line.recv(1)
            except OSError as error:
                if isinstance(error, TimeoutError) and error.errno is None:
                    raise subprocess.TimeoutExpired("srun", timeout or 0.0) from None
                said = b""
            self._has_relay = False
            if said != GONE:
                self.line.close()
        return 0

    def kill(self) -> None:
        """End the relay; a parent that does not is hung up on, upon which it ends, with all that it has started."""
        self._tell(END)
        try:
            self.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._has_relay = False
            self.line.close()

    def _tell(self, order: bytes) -> None:
        with contextlib.suppress(OSError):
            self.line.settimeout(None)
            self.line.sendall(order)
