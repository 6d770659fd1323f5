"""Ranks on the nodes of the Slurm allocation that pytest runs in, started by relays that connect to this process.

A job step is one ``srun`` with a process on each of some nodes, which first report what they are. ``salloc`` and
``sbatch`` set the variables of the allocation (sbatch(1), *OUTPUT ENVIRONMENT VARIABLES*).
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_distbench.errors import ConfigurationError, LauncherError, show
from pytest_distbench.hosts import relay
from pytest_distbench.hosts.calls import Call, Callers, NotCalled, describe_hosts, fill_hosts, make_site, within_s
from pytest_distbench.hosts.relay import SECRET_VARIABLE, Caller
from pytest_distbench.hosts.relayed import RelayedSite
from pytest_distbench.launch.site import processes
from pytest_distbench.launch.site.local import ChildRanks
from pytest_distbench.launch.site.processes import end_with
from pytest_distbench.launch.starters import NO_REVERSE_DNS, Launcher, LauncherSetup
from pytest_distbench.launch.starters.parent import (
    PRELOAD,
    RANK,
    TRAINING,
    Order,
    Parent,
    SilentParent,
    fork,
    load,
    read_at_start,
    serve,
    variables_of_parent,
)
from pytest_distbench.records.environment import Environment
from pytest_distbench.records.plan import LaunchPlan
from pytest_distbench.records.wire import SESSION_VARIABLE

_JOB, _NODES = "SLURM_JOB_ID", "SLURM_JOB_NODELIST"
_ANSWER_S = 30.0

OF_TASKS = (
    "SLURM_GPUS", "SLURM_GPUS_PER_NODE", "SLURM_GPUS_PER_SOCKET", "SLURM_GPUS_PER_TASK", "SLURM_GPU_BIND",
    "SLURM_NTASKS_PER_GPU", "SLURM_NTASKS_PER_TRES", "SLURM_TRES_BIND", "SLURM_TRES_PER_TASK",
    "SLURM_CPUS_PER_GPU", "SLURM_CPUS_PER_TASK", "SLURM_CPU_BIND", "SLURM_CPU_BIND_LIST", "SLURM_CPU_BIND_TYPE",
    "SLURM_CPU_BIND_VERBOSE", "SLURM_EXACT", "SLURM_HINT", "SLURM_NTASKS_PER_CORE", "SLURM_THREADS_PER_CORE",
    "SRUN_CPUS_PER_TASK",
    "SLURM_MEM_BIND", "SLURM_MEM_PER_CPU", "SLURM_MEM_PER_GPU",
)  # fmt: skip
"""Variables with the GPUs, CPUs and memory of one task of the job. The job step of a launch does not get them: its one
process on each node starts all ranks there, which would share a single task's part."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """The Slurm allocation that pytest runs in.

    Attributes:
        job: id of the job.
        nodes: names of the nodes, in Slurm's order.
        tasks_per_node: number that the user requested, or None if unknown.
        gpus_per_node: number that Slurm allocated, or 0 if unknown.
    """

    job: str
    nodes: Sequence[str]
    tasks_per_node: int | None = None
    gpus_per_node: int = 0

    def layout(self, ranks: int, *, on_gpus: bool) -> list[range]:
        """The ranks of each node: as many as the tasks requested per node, else one per GPU, else equal parts."""
        per_node = self.tasks_per_node or (self.gpus_per_node if on_gpus else 0) or -(-ranks // len(self.nodes))
        if ranks > per_node * len(self.nodes):
            raise ConfigurationError(
                f"{ranks} ranks: job {self.job} has room for {per_node * len(self.nodes)}, {per_node} on each of "
                f"{len(self.nodes)} nodes: salloc --nodes={-(-ranks // per_node)}, or a smaller --world-size"
            )
        return fill_hosts(ranks, per_node)


def read_allocation(variables: Mapping[str, str]) -> Allocation:
    if not variables.get(_JOB) or not variables.get(_NODES):
        raise ConfigurationError(
            f"--distbench-launcher slurm starts job steps in an allocation, and {_JOB} is not set: run it inside one, "
            "as salloc --nodes=2 pytest ..., or in an sbatch script"
        )
    nodes = _run(["scontrol", "show", "hostnames", variables[_NODES]], variables).split()
    gpus = _number(variables.get("SLURM_GPUS_PER_NODE") or variables.get("SLURM_GPUS_ON_NODE") or "")
    if gpus is None:  # else the job says it, of all nodes together: ``TRES=...,gres/gpu=8``, where GPUs are accounted
        job = _run(["scontrol", "show", "job", "-d", variables[_JOB]], variables)
        accounted, allocated = re.search(r"TRES=\S*gres/gpu=(\d+)", job), re.search(r"JOB_GRES=(\S+)", job)
        kinds = allocated[1].split(",") if allocated else []  # gpu:a100:8
        count = accounted[1] if accounted else _number(",".join(k for k in kinds if k.startswith("gpu:"))) or 0
        gpus = int(count) // len(nodes)
    tasks = _number(variables.get("SLURM_NTASKS_PER_NODE", ""))
    return Allocation(job=variables[_JOB], nodes=nodes, tasks_per_node=tasks, gpus_per_node=gpus)


def _run(command: list[str], variables: Mapping[str, str]) -> str:
    try:
        done = subprocess.run(
            command, env=dict(variables), capture_output=True, text=True, timeout=_ANSWER_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigurationError(f"{' '.join(command)} does not answer: {error}") from error
    if done.returncode:
        said = show(done.stderr.strip() or done.stdout.strip())
        raise ConfigurationError(f"{' '.join(command)} ended with exit code {done.returncode}: {said}")
    return done.stdout


def _number(text: str) -> int | None:
    """Return the number of ``4`` or ``a100:4``, the sum of ``a100:2,h100:2``, or None."""
    found = [int(part.rpartition(":")[2]) for part in text.split(",") if part.rpartition(":")[2].isdecimal()]
    return sum(found) or None


def start_step(
    nodes: Sequence[str],
    command: Callable[[Sequence[str]], Sequence[str]],
    *,
    gpus: int,
    variables: Mapping[str, str],
    log: Path,
    session: str,
    python_path: Sequence[str] | None = None,
) -> Callers:
    """Start, by srun, a process on each node that connects to this one; it gets no variables of the job's tasks.

    ``command`` makes its words from this process's port and addresses. ``python_path``: by default ``sys.path``.
    """
    path = sys.path if python_path is None else python_path
    kept = {name: value for name, value in variables.items() if name not in OF_TASKS}
    # One process on each, besides whatever runs there; where one ends, the others go on. Each has all GPUs of the job
    # there: where srun gets no option, the job's own share of a task counts.
    srun = [
        "srun", "--overlap", f"--nodes={len(nodes)}", f"--ntasks={len(nodes)}", "--ntasks-per-node=1",
        f"--nodelist={','.join(nodes)}", "--distribution=block", "--cpu-bind=none", "--mpi=none", "--input=none",
        "--unbuffered", "--kill-on-bad-exit=0", "--wait=0", "--no-kill", "--export=ALL", "--label",
        *([f"--gpus-per-node={gpus}", "--gpu-bind=none"] if gpus else []),
    ]  # fmt: skip
    return Callers(
        lambda where, _: [*srun, *command(where)],
        environment={**kept, **NO_REVERSE_DNS, "PYTHONPATH": os.pathsep.join(filter(None, path))},
        count=len(nodes),
        names=nodes,
        log=log,
        session=session,
        advice="Are the nodes up (sinfo; salloc --exclude leaves one out), can they reach this host, and do they have "
        "Python and pytest-distbench at the same paths?",
    )


def ranks_of_nodes(ranks: int, *, on_gpus: bool, engine: str) -> list[int]:
    del engine
    return [len(node) for node in read_allocation(os.environ).layout(ranks, on_gpus=on_gpus)]


def describe(*, ranks: int, engine: str, gpu: bool, platform: str) -> tuple[Environment, bool]:
    del ranks, engine
    allocation = read_allocation(os.environ)

    def start(module: str, *words: str, **callers: Any) -> Callers:
        return start_step(
            allocation.nodes,
            lambda where: [sys.executable, "-m", module, *where, *words],
            gpus=allocation.gpus_per_node,
            variables=os.environ,
            **callers,
        )

    return describe_hosts(
        f"the nodes of job {allocation.job}",
        start,
        gpu=gpu,
        platform=platform,
        gpu_advice="allocate some, as salloc --gpus-per-node=4; if no partition has any (sinfo), leave --gpu out",
    )


def serve_node(port: int, addresses: Sequence[str], projects: Sequence[str]) -> None:
    """Run the parent process of a node: call the controller, and fork one launch's relay after the other."""
    load("distbench", projects, [*PRELOAD, *TRAINING])  # relays fork the ranks: what these import ends with them
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    line = relay.connect(addresses, port)
    relay.say(line, Caller(secret=os.environ[SECRET_VARIABLE], host=relay.host_name()))
    serve(line)


RELAY = "pytest_distbench.hosts.slurm:be_relay"


def be_relay(port: str, *addresses: str) -> None:
    end_with(os.getppid())
    with relay.call(addresses, int(port), os.environ.pop(SECRET_VARIABLE)) as line:  # ranks have no use for it
        relay.serve(line, lambda order: ChildRanks(order.places, lambda plan, _, place: _ForkedRank(plan, place)))
    os._exit(0)


class _ForkedRank:
    def __init__(self, plan: LaunchPlan, place: Mapping[str, str]) -> None:
        self._code: int | None = None
        self.pid = fork(RANK, [str(plan.files.plan)], place)

    def poll(self) -> int | None:
        if self._code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self._code = os.waitstatus_to_exitcode(status) if pid else None
        return self._code


_FORK_S = 20.0  # how long a parent may take to fork a relay, and that to call
_END_S = 5.0  # how long a parent may take to end a relay
_LEAVE_S = 10.0  # how long parents may take to end when they have been hung up on


class NodeParent(Parent):
    """A node's process with torch loaded, which forks one launch's relay after the other."""

    def __init__(self, line: socket.socket, step: Callers) -> None:
        super().__init__(line, step.pid)
        self.step = step
        self._relay = 0

    @property
    def is_idle(self) -> bool:
        """Whether it can fork a relay: it is alive, and its last relay has ended."""
        try:
            self.take()
        except LauncherError:
            return False
        return self.step.poll() is None and not self._goes_on()

    def take_relay(self) -> bool:
        """Wait until the relay is forked; False if the parent does not answer."""
        try:
            self._relay = self.forked(_FORK_S)[0]
        except SilentParent:
            return False
        return True

    def poll(self) -> int | None:
        return self.step.poll()

    def wait(self, timeout: float | None = None) -> int:
        with contextlib.suppress(LauncherError):
            if self._goes_on() and self.code_of(self._relay, timeout) is None:
                raise subprocess.TimeoutExpired("srun", timeout or 0.0)
        return 0

    def kill(self) -> None:
        """End the relay. If that fails, close the connection: the parent ends with all that it has started."""
        try:
            self.send(Order(what="kill", pid=self._relay))
            self.wait(_END_S)
        except (LauncherError, subprocess.TimeoutExpired):
            self.line.close()

    def _goes_on(self) -> bool:
        return bool(self._relay) and self._relay not in self.ended and self.line.fileno() >= 0


class SlurmLauncher(Launcher):
    """Starts ranks on the nodes of a Slurm allocation, from a process with torch loaded that it keeps on each node.

    Missing ones are started by a job step before a launch. A node that has lost its process is used last from then on.
    """

    name = "slurm"

    def __init__(self, setup: LauncherSetup) -> None:
        self.session = setup.session
        self._setup = setup
        self._log = setup.directory / f"slurm-{setup.session[:8]}.log"
        self._allocation = read_allocation(os.environ)
        self._preferred = list(self._allocation.nodes)
        self._read_at_start: Mapping[str, str] = {}
        self._parents: dict[str, NodeParent] = {}

    def open(self, plan: LaunchPlan) -> RelayedSite:
        layout = self._allocation.layout(plan.processes, on_gpus=plan.device == "cuda")
        read = read_at_start(plan.variables)
        is_other = read != self._read_at_start  # libraries were loaded with other variables
        self._read_at_start = read
        self._drop([node for node, parent in self._parents.items() if is_other or not parent.is_idle])
        parents = self._parents_on(len(layout), plan.variables)
        relays: dict[str, Call] = {}
        try:
            for parent in parents.values():
                parent.begin_fork(RELAY, *parent.step.where)
            forked = {node: parent.line for node, parent in parents.items() if parent.take_relay()}
            for step in {parent.step for parent in parents.values()}:
                nodes = [node for node, parent in parents.items() if parent.step is step]
                lines = {node: forked[node] for node in nodes if node in forked}
                taken = step.take(names=nodes, limit_s=_FORK_S, among=lines)
                relays |= {said.host: (line, said) for line, said in taken}
            for node in parents.keys() - forked.keys():
                parents[node].take_relay()  # its relay has called, so it goes on after all
        except BaseException as error:
            for line, _ in relays.values():
                line.close()
            missing = error.missing if isinstance(error, NotCalled) else ()
            self._drop(missing)
            for node in set(parents).difference(missing):
                parents[node].kill()
            raise
        return make_site(plan, layout, [(relays[node], parent) for node, parent in parents.items()])

    def close(self) -> None:
        self._drop(list(self._parents))
        processes.kill(processes.find_marked(SESSION_VARIABLE, self.session))

    def _parents_on(self, number: int, variables: Mapping[str, str]) -> dict[str, NodeParent]:
        for spare in range(len(self._preferred) - number, -1, -1):  # others replace nodes that start none
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
        if not nodes:
            return

        def command(where: Sequence[str]) -> list[str]:
            port, *addresses = where
            arguments = f"{port}, {addresses!r}, {[*self._setup.preload]!r}"
            code = f"from pytest_distbench.hosts.slurm import serve_node; serve_node({arguments})"
            return [str(self._setup.interpreter or sys.executable), "-c", code]

        step = start_step(
            nodes,
            command,
            gpus=self._allocation.gpus_per_node,
            variables=variables_of_parent(variables),
            log=self._log,
            session=self.session,
            python_path=self._setup.python_path,
        )
        try:
            callers = step.take(limit_s=2 * within_s(len(nodes)))
        except BaseException as error:
            step.kill()
            self._put_last(error.missing if isinstance(error, NotCalled) else nodes)
            raise
        self._parents |= {said.host: NodeParent(line, step) for line, said in callers}

    def _drop(self, nodes: Sequence[str]) -> None:
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
