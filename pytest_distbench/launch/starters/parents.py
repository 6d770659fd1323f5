"""The controller's end of the connection to a parent on a node (``parent.py``)."""

from __future__ import annotations

import contextlib
import socket
import subprocess

from pytest_distbench.launch.site.dial import Hello
from pytest_distbench.launch.starters.calls import Callers, Connection
from pytest_distbench.launch.starters.parent import END, FORK, GONE

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
