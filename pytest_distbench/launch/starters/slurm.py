"""Ranks on the nodes of a Slurm allocation, which relays start that connect to this process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO, Protocol

from pytest_distbench.errors import LauncherError
from pytest_distbench.launch.site import processes
from pytest_distbench.launch.site.hop import Host
from pytest_distbench.launch.site.relayed import RelayedSite
from pytest_distbench.launch.starters import forkserver
from pytest_distbench.launch.starters.allocation import read_allocation
from pytest_distbench.launch.starters.calls import within_s
from pytest_distbench.launch.starters.contract import SESSION_VARIABLE
from pytest_distbench.launch.starters.parents import Parent
from pytest_distbench.launch.starters.step import Connection, Step
from pytest_distbench.records.plan import LaunchPlan

_FORK_S = 20.0
"""How long a parent may take to fork a relay, and that to call."""
_LEAVE_S = 10.0
"""How long parents may take to end when they have been hung up on."""


class Keeper(Protocol):
    """What a relay lives by.

    Attributes:
        pid: of a process of this host.
    """

    pid: int

    def poll(self) -> int | None:
        """The exit code of what leads there; None: it runs."""

    def wait(self, timeout: float | None = None) -> int:
        """Wait until the relay has ended. Raises ``subprocess.TimeoutExpired``."""

    def kill(self) -> None:
        """End it."""


class Call:
    """A relay that has called: its connection, and what it lives by."""

    stderr: IO[bytes] | None = None

    def __init__(self, caller: Connection, keeper: Keeper) -> None:
        self.pid = keeper.pid
        self.stdin: IO[bytes] | None = caller.line.makefile("wb")
        self.stdout: IO[bytes] | None = caller.line.makefile("rb")  # of which only the descriptor is used
        self._keeper = keeper
        caller.line.close()  # once both files are

    def poll(self) -> int | None:
        return self._keeper.poll()

    def wait(self, timeout: float | None = None) -> int:
        return self._keeper.wait(timeout)

    def kill(self) -> None:
        self._keeper.kill()


class ColdSlurmLauncher:
    """Starts a step for each launch: a relay on each node, whose ranks are interpreters of their own."""

    name = "slurm-cold"
    relay = "pytest_distbench.launch.site.dial"

    def __init__(
        self, session: str, *, interpreter: Path | None = None, python_path: Sequence[str] | None = None
    ) -> None:
        self.session = session
        self._interpreter = str(interpreter or sys.executable)
        self._python_path = python_path
        self._allocation = read_allocation(os.environ)

    def prepare(self, variables: dict[str, str]) -> None:
        """Nothing can be prepared."""

    def open(self, plan: LaunchPlan) -> RelayedSite:
        layout = self._allocation.layout(plan.processes, on_gpus=plan.device == "cuda")
        nodes = self._allocation.nodes[: len(layout)]
        step = Step(
            nodes,
            lambda port, addresses: [self._interpreter, "-m", self.relay, str(port), *addresses],
            log=plan.files.launcher_log,
            variables=plan.variables,
            session=self.session,
            python_path=self._python_path,
        )
        callers: dict[str, Connection] = {}
        try:
            step.take_calls(callers, nodes, who="relay", limit_s=within_s(len(nodes)))
        except BaseException:
            for caller in callers.values():
                caller.line.close()
            step.kill()
            raise
        return _site(plan, layout, [(caller, step) for caller in self._in_order([callers[node] for node in nodes])])

    def _in_order(self, callers: list[Connection]) -> list[Connection]:
        """As the ranks are numbered."""
        return callers

    def close(self) -> None:
        """End the steps that are still there."""
        processes.kill(processes.find_marked(SESSION_VARIABLE, self.session))


class SlurmTorchrunLauncher(ColdSlurmLauncher):
    """Starts a step for each launch: on each node a torchrun, which starts the ranks."""

    name = "slurm-torchrun"
    relay = "pytest_distbench.launch.starters.torchrun_relay"

    def _in_order(self, callers: list[Connection]) -> list[Connection]:
        """As the rendezvous of torchrun numbers its nodes: by the texts of their addresses."""
        return sorted(callers, key=lambda caller: caller.hello.address)


class SlurmLauncher:
    """Keeps a parent on each node, a process that has torch loaded, and starts those again that are gone.

    A step starts them, on the nodes that a launch needs and that have none: at the first launch on all of these. A node
    that has lost its parent is taken last from then on.
    """

    name = "slurm"

    def __init__(
        self,
        directory: Path,
        session: str,
        preload: Sequence[str] = (),
        *,
        interpreter: Path | None = None,
        python_path: Sequence[str] | None = None,
    ) -> None:
        self.session = session
        self._log = directory / f"slurm-{session[:8]}.log"
        self._preload = list(preload)
        self._interpreter = str(interpreter or sys.executable)
        self._python_path = python_path
        self._allocation = read_allocation(os.environ)
        self._preferred = list(self._allocation.nodes)
        self._read_at_start: Mapping[str, str] = {}
        self._parents: dict[str, Parent] = {}

    def prepare(self, variables: dict[str, str]) -> None:
        """How many nodes it takes is known at the first launch."""

    def open(self, plan: LaunchPlan) -> RelayedSite:
        layout = self._allocation.layout(plan.processes, on_gpus=plan.device == "cuda")
        self._drop_unusable(plan.variables)
        parents = self._parents_on(len(layout), plan.variables)
        callers: dict[str, Connection] = {}
        try:
            for parent in parents.values():
                parent.fork_relay()
            for step in {parent.step for parent in parents.values()}:
                lines = {node: parent.line for node, parent in parents.items() if parent.step is step}
                step.take_calls(callers, list(lines), who="relay", limit_s=_FORK_S, among=lines)
        except BaseException:
            for node, parent in parents.items():
                if node in callers:
                    callers[node].line.close()
                    parent.kill()
                else:
                    self._drop([node])
            raise
        return _site(plan, layout, [(callers[node], parent) for node, parent in parents.items()])

    def close(self) -> None:
        """End the parents, and their steps."""
        self._drop(list(self._parents))
        processes.kill(processes.find_marked(SESSION_VARIABLE, self.session))

    def _drop_unusable(self, variables: Mapping[str, str]) -> None:
        """Let go of parents that have ended, and of all whose libraries were loaded with other variables."""
        read = forkserver.read_at_start(variables)
        is_other = read != self._read_at_start
        self._read_at_start = read
        self._drop([node for node, parent in self._parents.items() if is_other or not parent.is_idle])

    def _parents_on(self, number: int, variables: Mapping[str, str]) -> dict[str, Parent]:
        """The parents of so many nodes. In place of nodes that start none others are taken, if there are more."""
        for spare in range(len(self._preferred) - number, -1, -1):
            nodes = sorted(self._preferred[:number], key=self._allocation.nodes.index)
            try:
                self._start_parents([node for node in nodes if node not in self._parents], variables)
            except LauncherError:
                if not spare:
                    raise
            else:
                return {node: self._parents[node] for node in nodes}
        raise AssertionError("unreachable")

    def _start_parents(self, nodes: Sequence[str], variables: Mapping[str, str]) -> None:
        """Start a step on nodes, and wait until its processes have loaded torch."""
        if not nodes:
            return
        step = Step(
            nodes,
            self._parent_command,
            log=self._log,
            variables=forkserver.variables_of_parent(variables),
            session=self.session,
            python_path=self._python_path,
        )
        callers: dict[str, Connection] = {}
        try:
            step.take_calls(callers, nodes, who="process that loads torch", limit_s=2 * within_s(len(nodes)))
        except BaseException:
            for caller in callers.values():
                caller.line.close()
            step.kill()
            self._put_last([node for node in nodes if node not in callers])
            raise
        self._parents |= {node: Parent(callers[node], step) for node in nodes}

    def _parent_command(self, port: int, addresses: Sequence[str]) -> list[str]:
        arguments = f"{port}, {list(addresses)!r}, {self._preload!r}"
        code = f"from pytest_distbench.launch.starters.parent import main; main({arguments})"
        return [self._interpreter, "-c", code]

    def _drop(self, nodes: Sequence[str]) -> None:
        """Let go of the parents of nodes, which end, and of steps that have no other."""
        dropped = [self._parents.pop(node) for node in nodes]
        for parent in dropped:
            parent.line.close()
        for step in {parent.step for parent in dropped}.difference(parent.step for parent in self._parents.values()):
            try:
                step.wait(_LEAVE_S)
            except subprocess.TimeoutExpired:
                step.kill()
        self._put_last(nodes)

    def _put_last(self, nodes: Sequence[str]) -> None:
        self._preferred = [*(node for node in self._preferred if node not in nodes), *nodes]


def _site(plan: LaunchPlan, layout: Sequence[range], called: Iterable[tuple[Connection, Keeper]]) -> RelayedSite:
    """The site of ranks on the hosts whose relays have called, in their order."""
    hosts = [
        (caller.hello, Host(name=caller.hello.host, relay=Call(caller, keeper), ranks=ranks))
        for (caller, keeper), ranks in zip(called, layout, strict=True)
    ]
    first = hosts[0][0]
    return RelayedSite(plan, [host for _, host in hosts], meeting_point=(first.address, first.port))
