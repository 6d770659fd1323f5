"""A step of a Slurm job: one ``srun`` that starts a process on each of some nodes.

The processes connect to this one (``site/dial.py``): ``srun`` has no stream for each.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_distbench.errors import LauncherError, show
from pytest_distbench.launch.logs import tail
from pytest_distbench.launch.site.dial import SECRET_VARIABLE, Hello
from pytest_distbench.launch.starters.calls import addresses, hear
from pytest_distbench.launch.starters.contract import NO_REVERSE_DNS, SESSION_VARIABLE

_LEAVE_S = 5.0


@dataclass(frozen=True, slots=True)
class Connection:
    """A process on a node that has called: its connection, and what it said of itself."""

    line: socket.socket
    hello: Hello


class Step:
    """One ``srun`` that starts a process on each node.

    Args:
        nodes: where.
        command: what runs there, given the port and the addresses at which it reaches this process.
        log: gets what srun and the processes print.
        variables: of the processes.
        session: value of :data:`SESSION_VARIABLE` in all that they start.
        python_path: where they find this package; None: as here.
    """

    def __init__(
        self,
        nodes: Sequence[str],
        command: Callable[[int, Sequence[str]], Sequence[str]],
        *,
        log: Path,
        variables: Mapping[str, str],
        session: str,
        python_path: Sequence[str] | None = None,
    ) -> None:
        self.nodes = nodes
        self._log = log
        self._secret = secrets.token_hex(16)
        self._listener = socket.create_server(("", 0), backlog=len(nodes))
        started = {**variables, **NO_REVERSE_DNS, SESSION_VARIABLE: session, SECRET_VARIABLE: self._secret}
        with log.open("ab") as out:
            self._process = subprocess.Popen(
                [*srun(nodes), "--label", *command(self._listener.getsockname()[1], addresses())],
                env=inherited(started, python_path),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
        self.pid = self._process.pid

    def take_calls(
        self,
        calls: dict[str, Connection],
        nodes: Sequence[str],
        *,
        who: str,
        limit_s: float,
        among: Mapping[str, socket.socket] | None = None,
    ) -> None:
        """Wait until somebody has called from each of the nodes.

        Args:
            calls: gets them, by node; where this fails, those that came.
            nodes: of this step.
            who: should call, for errors.
            limit_s: how long they may take.
            among: connections from nodes that are to last meanwhile, and silent.

        Raises:
            LauncherError: one has not called in time, or cannot any more.
        """
        deadline = time.monotonic() + limit_s
        ended = os.pidfd_open(self.pid)
        with contextlib.ExitStack() as stack:
            stack.callback(os.close, ended)
            selector = stack.enter_context(selectors.DefaultSelector())
            selector.register(ended, selectors.EVENT_READ)
            selector.register(self._listener, selectors.EVENT_READ)
            for node, line in (among or {}).items():
                selector.register(line, selectors.EVENT_READ, node)
            while missing := [node for node in nodes if node not in calls]:
                ready = [key for key, _ in selector.select(max(0.0, deadline - time.monotonic()))]
                if any(key.fd == ended for key in ready):
                    raise LauncherError(f"the step has ended before its {who} called: {self.said()}")
                if lost := next((key.data for key in ready if key.data is not None), None):
                    raise LauncherError(f"host {lost} was lost before its {who} called: {self.said()}")
                if not ready:
                    more = f" and {len(missing) - 4} more" if len(missing) > 4 else ""
                    raise LauncherError(
                        f"no {who} has called from {', '.join(missing[:4])}{more} within {limit_s:.0f} s: "
                        f"{self.said()}. Is the node up (sinfo), and does it reach this host?"
                    )
                line, _ = self._listener.accept()
                hello = hear(line, Hello, self._secret)
                if hello is None or hello.host not in missing:
                    line.close()  # a stranger
                else:
                    calls[hello.host] = Connection(line, hello)

    def poll(self) -> int | None:
        """The exit code of srun; None: it runs."""
        return self._process.poll()

    @property
    def is_alive(self) -> bool:
        """Whether srun is there."""
        return self.poll() is None

    def wait(self, timeout: float | None = None) -> int:
        """Wait until all its processes have ended."""
        self._listener.close()  # nobody is to call any more
        return self._process.wait(timeout)

    def kill(self) -> None:
        """End the step, however far it is: srun ends its processes when it gets SIGTERM, and then itself."""
        self._listener.close()
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(_LEAVE_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    def said(self) -> str:
        """The last that srun and the processes have printed."""
        return show(tail(self._log, lines=5).strip().replace(self._secret, "***") or "srun said nothing", longest=600)


_OF_THE_BATCH = ("SLURM_CPU_BIND", "SLURM_CPU_BIND_TYPE", "SLURM_CPU_BIND_LIST", "SLURM_MEM_PER_CPU")
"""What the allocation's own step was given, and a step of ours would take over."""


def srun(nodes: Sequence[str]) -> list[str]:
    """Starts one process on each of the nodes, beside whatever runs there; where one ends, the others go on."""
    return [
        "srun", "--overlap", f"--nodes={len(nodes)}", f"--ntasks={len(nodes)}", "--ntasks-per-node=1",
        f"--nodelist={','.join(nodes)}", "--distribution=block", "--cpu-bind=none", "--mpi=none", "--input=none",
        "--unbuffered", "--kill-on-bad-exit=0", "--wait=0", "--no-kill", "--export=ALL",
    ]  # fmt: skip


def inherited(variables: Mapping[str, str], python_path: Sequence[str] | None = None) -> dict[str, str]:
    """The variables of a step's processes: they find this package, at ``python_path`` or where this process does."""
    kept = {name: value for name, value in variables.items() if name not in _OF_THE_BATCH}
    return {**kept, "PYTHONPATH": os.pathsep.join(p for p in (sys.path if python_path is None else python_path) if p)}
