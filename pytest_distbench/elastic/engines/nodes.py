"""The engines stock and fast, whose nodes are processes of this host.

A node of stock is the command-line tool torchrun, as users start it on each of their hosts. Agents and workers of fast
are forked from one process that has torch loaded, with timers below a second. The controller hosts the store, so that
it outlives every node. The processes of a node are its agent and its workers, with all their descendants, wherever in
the process tree; both engines signal all of them.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from pytest_distbench.elastic.engines import LOOPBACK, STORE_S, CannotGoOn, NodeOutputs
from pytest_distbench.elastic.records import NODE_VARIABLE, SLOT_VARIABLE, Job, event
from pytest_distbench.errors import LauncherError
from pytest_distbench.launch.site import processes
from pytest_distbench.launch.starters import NO_REVERSE_DNS
from pytest_distbench.launch.starters.parent import PRELOAD, TRAINING, Parent, fork_parent
from pytest_distbench.launch.workplace import tail
from pytest_distbench.records.plan import LaunchPlan
from pytest_distbench.records.wire import Event
from pytest_distbench.worker.torch_internals import store_on

_KILL_S = 10.0
_GONE_S = 1.0
_LOOK_S = 0.002


@dataclass
class Node:
    """A node of an elastic job.

    ``agent``: process id of its agent. Its processes have ``word`` in their environment. Those of engine fast show
    their parent's environment: ``forked`` takes the agent's id, and returns ids of the processes forked for it.
    """

    agent: int
    word: str
    forked: Callable[[int], Sequence[int]] = lambda agent: [agent]
    is_reported: bool = False

    def members(self) -> list[psutil.Process]:
        """All processes of the node: agent, descendants, and other processes with ``word`` in their environment."""
        found = [*processes.find_marked(NODE_VARIABLE, self.word), *self._family()]
        return [p for p in {p.pid: p for p in found}.values() if p.pid != os.getpid()]

    def send(self, number: signal.Signals) -> None:
        processes.send([process.pid for process in self.members()], number)

    def kill_workers(self) -> None:
        for find in (self._family, self.members):
            processes.send([process.pid for process in find() if process.pid != self.agent], signal.SIGKILL)

    def end(self) -> None:
        """SIGKILL the processes of the node until none is left: one may start others meanwhile."""
        _kill(self._family())  # at once: to look through the environment of all processes takes a while
        deadline = time.monotonic() + _KILL_S
        while (members := self.members()) and time.monotonic() < deadline:
            _kill(members)

    def _family(self) -> list[psutil.Process]:
        return processes.family(self.forked(self.agent))


class NodeEngine:
    def __init__(self, plan: LaunchPlan) -> None:
        self._job = plan.expect(Job).job
        self._files = plan.files
        self._nodes: dict[int, Node] = {}
        self._store = store_on(socket.create_server((LOOPBACK, 0)), timeout_s=STORE_S)
        self._id = uuid.uuid4().hex[:12]

    def crash(self, slot: int) -> None:
        self._nodes[slot].kill_workers()

    def stop(self, slot: int) -> None:
        self._nodes[slot].send(signal.SIGSTOP)

    def go_on(self, slot: int) -> None:
        self._nodes[slot].send(signal.SIGCONT)

    def log(self, slot: int) -> str:
        return tail(self._files.agent_log(slot))

    def _end_event(self, slot: int, code: int | None) -> list[Event]:
        node = self._nodes[slot]
        if code is None or node.is_reported:
            return []
        node.is_reported = True
        return [event("agent_ended", t=time.monotonic(), slot=slot, code=code)]


def _kill(members: Sequence[psutil.Process]) -> None:
    for process in members:
        with contextlib.suppress(psutil.Error):
            process.kill()
    deadline = time.monotonic() + _GONE_S
    while any(processes.is_alive(process.pid) for process in members) and time.monotonic() < deadline:
        time.sleep(_LOOK_S)


HANGS_ON_SCALE_UP = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
"""Workaround for torch 2.13: agents keep the address of the first round, so a node that joins later waits for one that
nobody publishes, until its store gives up after 60 s (torch/distributed/elastic/rendezvous/dynamic_rendezvous.py).
Remove it when tests/elastic/engines/test_stock.py says so."""

_RENDEZVOUS = "RENDEZVOUS"

_VISIBLE = "CUDA_VISIBLE_DEVICES"

_REAP_S = 1.0


class TorchrunEngine(NodeEngine):
    """Nodes that are torchrun processes. ``workaround`` sets variables for a fault of this torch."""

    def __init__(
        self,
        plan: LaunchPlan,
        outputs: NodeOutputs | None = None,
        *,
        workaround: dict[str, str] = HANGS_ON_SCALE_UP,
    ) -> None:
        super().__init__(plan)
        self._variables = {**os.environ, **NO_REVERSE_DNS, **workaround}
        self._outputs = outputs
        body = plan.expect(Job).body
        named = ["-m", body.module] if body.module else [body.file]
        self._script = [*named, *body.arguments] if body.is_script else []
        self._devices = plan.devices if body.is_script else []
        """Device of each slot, of which its worker uses the first visible one, as a script does."""
        self._agents: dict[int, subprocess.Popen[bytes]] = {}
        self._offsets: dict[int, int] = {}
        """Slot -> bytes of its log that were read."""
        self._gone: list[tuple[subprocess.Popen[bytes], Node]] = []
        """Former nodes of slots that are used again; they may not have ended yet."""

    def _command(self, slot: int) -> list[str]:
        job, timers = self._job, self._job.timers
        settings = {
            "is_host": "0",
            "join_timeout": timers["settle_s"],
            "last_call_timeout": timers["last_call_s"],
            "keep_alive_interval": timers["keep_alive_s"],
            "keep_alive_max_attempt": timers["keep_alive_attempts"],
            "close_timeout": 5,
        }
        script = [text.replace("{slot}", str(slot)) for text in self._script]
        return [
            sys.executable, "-m", "torch.distributed.run",
            f"--nnodes={job.least}:{job.most}",
            "--nproc-per-node=1",
            "--rdzv-backend=c10d",
            f"--rdzv-endpoint={LOOPBACK}:{self._store.port}",
            f"--rdzv-id={self._id}",
            f"--rdzv-conf={','.join(f'{name}={value}' for name, value in settings.items())}",
            f"--max-restarts={timers['max_restarts']}",
            *(["--event-log-handler=console"] if prints_events() else []),
            f"--log-dir={self._files.torchrun_logs / str(slot)}",
            f"--local-addr={LOOPBACK}",
            *(script or ["-m", "pytest_distbench.worker", "elastic", str(self._files.plan)]),
        ]  # fmt: skip

    def join(self, slot: int) -> None:
        if slot in self._nodes:
            self._gone.append((self._agents[slot], self._nodes[slot]))
        word = uuid.uuid4().hex
        variables = {**self._variables, SLOT_VARIABLE: str(slot), NODE_VARIABLE: word}
        if self._devices:  # a node sees its own device alone, as a node of one worker does
            visible = [name for name in self._variables.get(_VISIBLE, "").split(",") if name]
            index = self._devices[slot]
            variables[_VISIBLE] = visible[index] if index < len(visible) else str(index)
        pipes = () if self._outputs is None else self._outputs.open(slot)
        with open(self._files.agent_log(slot), "ab") as log:
            self._offsets[slot] = log.tell()  # before the agent moves it: they share the file
            stdout, stderr = pipes or (log.fileno(), log.fileno())
            try:
                process = subprocess.Popen(
                    self._command(slot),
                    env=variables,
                    stdin=subprocess.DEVNULL,
                    stdout=stdout,
                    stderr=stderr,
                    start_new_session=True,
                )
            finally:
                for descriptor in pipes:
                    os.close(descriptor)
        self._agents[slot] = process
        self._nodes[slot] = Node(process.pid, word)

    def leave(self, slot: int) -> None:
        self._agents[slot].send_signal(signal.SIGTERM)

    def kill(self, slot: int) -> None:
        _end(self._agents[slot], self._nodes[slot])

    def poll(self) -> list[Event]:
        found: list[Event] = []
        for slot in self._nodes:
            code = self._agents[slot].poll()
            with open(self._files.agent_log(slot), "rb") as file:
                file.seek(self._offsets[slot])
                data = file.read()
            whole = data[: data.rfind(b"\n") + 1]
            self._offsets[slot] += len(whole)
            now = time.monotonic()
            durations = rendezvous_seconds(whole.decode(errors="replace"))
            found += [event("rendezvous", t=now, slot=slot, seconds=seconds) for seconds in durations]
            found += self._end_event(slot, code)
        return found

    def close(self) -> None:
        for agent, node in [*self._gone, *((self._agents[slot], node) for slot, node in self._nodes.items())]:
            _end(agent, node)


def _end(agent: subprocess.Popen[bytes], node: Node) -> None:
    node.end()
    with contextlib.suppress(subprocess.TimeoutExpired):
        agent.wait(timeout=_REAP_S)


@functools.cache
def prints_events() -> bool:
    """Whether this torchrun prints its events when asked (https://github.com/pytorch/pytorch/pull/155268).

    If it does not, nobody sees when agents meet, and that part of a recovery is unaccounted.
    """
    found = importlib.util.find_spec("torch.distributed.run")
    return found is not None and "--event-log-handler" in Path(str(found.origin)).read_text()


def rendezvous_seconds(log: str) -> list[float]:
    """Seconds of each rendezvous in an agent's log, in which events of torchelastic are lines of JSON."""
    found = []
    for line in log.splitlines():
        if _RENDEZVOUS not in line:
            continue
        with contextlib.suppress(ValueError, KeyError, TypeError):
            event = json.loads(line[line.index("{") :])  # behind a script's line that had no end yet
            if str(event["name"]).endswith(_RENDEZVOUS):
                found.append(float(event["metadata"]["duration_ms"]) / 1e3)
    return found


_AGENT = "pytest_distbench.elastic.engines.fast_agent"
_THREADS = "OMP_NUM_THREADS"
_LOST = "the process that all agents and workers are forked from has ended, and nobody asked it to"

_parents: list[Parent] = []  # the one of this process, which jobs of a pool share; empty: it has made none


def let_parent_end() -> None:
    """End the process that agents are forked from, if any; it runs the exit handlers of its imported modules."""
    while _parents:
        _parents.pop().end()


class FastEngine(NodeEngine):
    """Nodes that are forked. Make the first engine before this process has a second thread."""

    def __init__(self, plan: LaunchPlan, outputs: NodeOutputs | None = None) -> None:
        assert outputs is None, "it runs functions only"
        if not _parents:  # before the store, which has threads
            os.environ |= {**NO_REVERSE_DNS, **HANGS_ON_SCALE_UP, _THREADS: "1"}
            run = plan.files.directory.parent.name
            _parents.append(fork_parent(run, plan.preload, [*PRELOAD, *TRAINING, _AGENT]))
        super().__init__(plan)
        self._parent = _parents[0]
        self._gone: list[Node] = []
        """Former nodes of slots that are used again; they may not have ended yet."""

    def join(self, slot: int) -> None:
        if slot in self._nodes:
            self._gone.append(self._nodes[slot])
        word = uuid.uuid4().hex
        where = str(self._files.plan), str(self._store.port), self._id
        variables = {SLOT_VARIABLE: str(slot), NODE_VARIABLE: word}
        try:
            [agent] = self._parent.fork(f"{_AGENT}:run", *where, each=[variables], has_line=True)
        except LauncherError as error:
            raise CannotGoOn(f"{_LOST}: {error}") from None
        self._nodes[slot] = Node(agent, word, self._count)

    def leave(self, slot: int) -> None:
        if (agent := self._nodes[slot].agent) not in self._parent.ended:
            processes.send([agent], signal.SIGTERM)

    def kill(self, slot: int) -> None:
        self._nodes[slot].end()

    def poll(self) -> list[Event]:
        try:
            self._parent.take()
        except LauncherError:
            raise CannotGoOn(_LOST) from None
        found: list[Event] = []
        for slot, node in self._nodes.items():
            found += self._end_event(slot, self._parent.ended.get(node.agent))
        return found

    def close(self) -> None:
        for node in [*self._nodes.values(), *self._gone]:
            node.end()

    def _count(self, agent: int) -> list[int]:
        try:
            return self._parent.count(agent)
        except LauncherError:
            return [agent]
