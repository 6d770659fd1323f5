"""Ranks on the nodes of a Slurm allocation, which relays start that connect to this process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from pytest_distbench.errors import LauncherError
from pytest_distbench.launch.site import processes
from pytest_distbench.launch.site.dial import Hello
from pytest_distbench.launch.site.relayed import RelayedSite
from pytest_distbench.launch.starters import forkserver
from pytest_distbench.launch.starters.allocation import read_allocation
from pytest_distbench.launch.starters.calls import Connection, NotCalled, make_site, take_relays, within_s
from pytest_distbench.launch.starters.contract import SESSION_VARIABLE
from pytest_distbench.launch.starters.parents import Parent
from pytest_distbench.launch.starters.step import start_step
from pytest_distbench.records.plan import LaunchPlan

_FORK_S = 20.0
"""How long a parent may take to fork a relay, and that to call."""
_LEAVE_S = 10.0
"""How long parents may take to end when they have been hung up on."""


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
        step = start_step(
            self._allocation.nodes[: len(layout)],
            lambda where: [self._interpreter, "-m", self.relay, *where],
            gpus=self._allocation.gpus_per_node,
            variables=plan.variables,
            log=plan.files.launcher_log,
            session=self.session,
            python_path=self._python_path,
        )
        return make_site(plan, layout, [(relay, step) for relay in self._in_order(take_relays(step))])

    def _in_order(self, relays: list[Connection[Hello]]) -> list[Connection[Hello]]:
        """As the ranks are numbered."""
        return relays

    def close(self) -> None:
        """End the steps that are still there."""
        processes.kill(processes.find_marked(SESSION_VARIABLE, self.session))


class SlurmTorchrunLauncher(ColdSlurmLauncher):
    """Starts a step for each launch: on each node a torchrun, which starts the ranks."""

    name = "slurm-torchrun"
    relay = "pytest_distbench.launch.starters.torchrun_relay"

    def _in_order(self, relays: list[Connection[Hello]]) -> list[Connection[Hello]]:
        """As the rendezvous of torchrun numbers its nodes: by the texts of their addresses."""
        return sorted(relays, key=lambda relay: relay.said.address)


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
        relays: dict[str, Connection[Hello]] = {}
        try:
            for parent in parents.values():
                parent.fork_relay()
            for step in {parent.step for parent in parents.values()}:
                lines = {node: parent.line for node, parent in parents.items() if parent.step is step}
                taken = step.take(Hello, names=list(lines), limit_s=_FORK_S, among=lines)
                relays |= {relay.said.host: relay for relay in taken}
        except BaseException as error:
            for relay in relays.values():
                relay.line.close()
            missing = error.missing if isinstance(error, NotCalled) else ()
            self._drop(missing)
            for node in set(parents).difference(missing):
                parents[node].kill()
            raise
        return make_site(plan, layout, [(relays[node], parent) for node, parent in parents.items()])

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
        step = start_step(
            nodes,
            self._parent_command,
            gpus=self._allocation.gpus_per_node,
            variables=forkserver.variables_of_parent(variables),
            log=self._log,
            session=self.session,
            python_path=self._python_path,
        )
        try:
            callers = step.take(Hello, limit_s=2 * within_s(len(nodes)))
        except BaseException as error:
            step.kill()
            self._put_last(error.missing if isinstance(error, NotCalled) else nodes)
            raise
        self._parents |= {caller.said.host: Parent(caller, step) for caller in callers}

    def _parent_command(self, where: Sequence[str]) -> list[str]:
        port, *addresses = where
        arguments = f"{port}, {addresses!r}, {self._preload!r}"
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
