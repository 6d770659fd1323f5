"""Nodes that are processes of a command line: each an agent, which starts the worker below it."""

from __future__ import annotations

import abc
import contextlib
import os
import signal
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import psutil

from pytest_distbench.launch import processes
from pytest_distbench.launch.contract import NO_REVERSE_DNS
from pytest_distbench.launch.elastic.engines import EngineSetup
from pytest_distbench.launch.logs import tail
from pytest_distbench.records.elastic import NODE_VARIABLE, SLOT_VARIABLE
from pytest_distbench.records.timeline import AgentEnded, Rendezvous

LOOPBACK = "127.0.0.1"
MAX_RESTARTS = 1000
"""Those that torchrun counts while nodes only join: who loses its peers a moment before it hears of the change."""

_VISIBLE = "CUDA_VISIBLE_DEVICES"

_KILL_S = 10.0


@dataclass
class _Node:
    process: subprocess.Popen[bytes]
    word: str
    log: Path
    offset: int
    is_told: bool = False


class AgentEngine(abc.ABC):
    """An engine whose nodes are agents, each a process of its own.

    Args:
        setup: what they run, and where.
        variables: environment of the nodes beside that of the setup.
        clock: tells the time of the timeline.
    """

    def __init__(self, setup: EngineSetup, variables: Mapping[str, str], clock: Callable[[], float]) -> None:
        self._job = setup.job
        self._files = setup.files
        self._variables = {**setup.variables, **NO_REVERSE_DNS, **variables}
        self._clock = clock
        self._script = setup.script
        self._outputs = setup.outputs
        self._devices = setup.devices
        self._nodes: dict[int, _Node] = {}
        self._gone: list[_Node] = []
        """Those whose slot another one has taken; they may not have ended yet."""

    @abc.abstractmethod
    def _command(self, slot: int) -> list[str]:
        """The command line of a node's agent."""

    def _rendezvous_seconds(self, log: str) -> list[float]:
        """How long each rendezvous took that lines of an agent's log tell of."""
        del log
        return []

    def join(self, slot: int) -> None:
        if slot in self._nodes:
            self._gone.append(self._nodes[slot])
        word = uuid.uuid4().hex
        log = self._files.agent_log(slot)
        with open(log, "ab") as file, self._printed_to(slot, file) as (stdout, stderr):
            offset = file.tell()  # before the agent moves it: they share the file
            process = subprocess.Popen(
                self._command(slot),
                env={**self._variables, **self._device(slot), SLOT_VARIABLE: str(slot), NODE_VARIABLE: word},
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                start_new_session=True,
            )
            self._nodes[slot] = _Node(process, word, log, offset)

    def _device(self, slot: int) -> dict[str, str]:
        """So that a node sees its own device alone, as a node of one worker does."""
        if not self._devices:
            return {}
        visible = [name for name in self._variables.get(_VISIBLE, "").split(",") if name]
        index = self._devices[slot]
        return {_VISIBLE: visible[index] if index < len(visible) else str(index)}

    @contextlib.contextmanager
    def _printed_to(self, slot: int, log: BinaryIO) -> Iterator[tuple[int, int]]:
        """What a node's stdout and stderr are."""
        if self._outputs is None:
            yield log.fileno(), log.fileno()
            return
        pair = self._outputs.open(slot)
        try:
            yield pair
        finally:
            for descriptor in pair:
                os.close(descriptor)

    def leave(self, slot: int) -> None:
        self._nodes[slot].process.send_signal(signal.SIGTERM)

    def kill(self, slot: int) -> None:
        _end(self._nodes[slot])

    def crash(self, slot: int) -> None:
        agent = self._nodes[slot].process.pid
        processes.send([p.pid for p in _members(self._nodes[slot]) if p.pid != agent], signal.SIGKILL)

    def stop(self, slot: int) -> None:
        self._signal(slot, signal.SIGSTOP)

    def go_on(self, slot: int) -> None:
        self._signal(slot, signal.SIGCONT)

    def poll(self) -> list[Rendezvous | AgentEnded]:
        found: list[Rendezvous | AgentEnded] = []
        for slot, node in self._nodes.items():
            code = node.process.poll()
            with open(node.log, "rb") as file:
                file.seek(node.offset)
                data = file.read()
            whole = data[: data.rfind(b"\n") + 1]
            node.offset += len(whole)
            now = self._clock()
            told = self._rendezvous_seconds(whole.decode(errors="replace"))
            found += [Rendezvous(t=now, slot=slot, seconds=seconds) for seconds in told]
            if code is not None and not node.is_told:
                node.is_told = True
                found.append(AgentEnded(t=self._clock(), slot=slot, code=code))
        return found

    def log(self, slot: int) -> str:
        return tail(self._files.agent_log(slot))

    def close(self) -> None:
        for node in [*self._nodes.values(), *self._gone]:
            _end(node)

    def _signal(self, slot: int, number: signal.Signals) -> None:
        processes.send([process.pid for process in _members(self._nodes[slot])], number)


def _end(node: _Node) -> None:
    """SIGKILL all processes of a node, again and again until there is none: one may start others meanwhile.

    The agent first: it would see the end of a worker, and do something about it.
    """
    deadline = time.monotonic() + _KILL_S
    members = _members(node)  # while they are known as its family
    node.process.kill()
    with contextlib.suppress(subprocess.TimeoutExpired):
        node.process.wait(timeout=1.0)  # before psutil would: then nobody knew how it ended
    while members and time.monotonic() < deadline:
        for process in members:
            with contextlib.suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(members, timeout=1.0)
        members = [process for process in _members(node) if process.is_running()]


def _members(node: _Node) -> list[psutil.Process]:
    """All processes of a node: below its agent, and those that got away but for their environment."""
    found = [*processes.find_marked(NODE_VARIABLE, node.word), *processes.family([node.process.pid])]
    return [p for p in {process.pid: process for process in found}.values() if p.pid != os.getpid()]
