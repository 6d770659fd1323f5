"""Nodes that are processes of a command line: each an agent, which starts the worker below it."""

from __future__ import annotations

import abc
import contextlib
import os
import signal
import subprocess
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import BinaryIO

from pytest_distbench.jobs.engines.contract import EngineSetup
from pytest_distbench.jobs.engines.node import Node, NodeEngine
from pytest_distbench.launch.starters.contract import NO_REVERSE_DNS
from pytest_distbench.records.elastic import NODE_VARIABLE, SLOT_VARIABLE
from pytest_distbench.records.timeline import AgentEnded, Rendezvous

_VISIBLE = "CUDA_VISIBLE_DEVICES"

_REAP_S = 1.0


class AgentEngine(NodeEngine, abc.ABC):
    """An engine whose nodes are agents, each a process of its own."""

    def __init__(self, setup: EngineSetup, variables: Mapping[str, str], clock: Callable[[], float]) -> None:
        super().__init__(setup, clock)
        self._variables = {**setup.variables, **NO_REVERSE_DNS, **variables}
        self._script = setup.script
        self._outputs = setup.outputs
        self._devices = setup.devices
        self._agents: dict[int, subprocess.Popen[bytes]] = {}
        self._offsets: dict[int, int] = {}
        """Slot -> how much of its log was read."""
        self._gone: list[tuple[subprocess.Popen[bytes], Node]] = []
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
            self._gone.append((self._agents[slot], self._nodes[slot]))
        word = uuid.uuid4().hex
        log = self._files.agent_log(slot)
        with open(log, "ab") as file, self._printed_to(slot, file) as (stdout, stderr):
            self._offsets[slot] = file.tell()  # before the agent moves it: they share the file
            process = subprocess.Popen(
                self._command(slot),
                env={**self._variables, **self._device(slot), SLOT_VARIABLE: str(slot), NODE_VARIABLE: word},
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                start_new_session=True,
            )
        self._agents[slot] = process
        self._nodes[slot] = Node(process.pid, word)

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
        self._agents[slot].send_signal(signal.SIGTERM)

    def kill(self, slot: int) -> None:
        _end(self._agents[slot], self._nodes[slot])

    def poll(self) -> list[Rendezvous | AgentEnded]:
        found: list[Rendezvous | AgentEnded] = []
        for slot in self._nodes:
            code = self._agents[slot].poll()
            with open(self._files.agent_log(slot), "rb") as file:
                file.seek(self._offsets[slot])
                data = file.read()
            whole = data[: data.rfind(b"\n") + 1]
            self._offsets[slot] += len(whole)
            now = self._clock()
            told = self._rendezvous_seconds(whole.decode(errors="replace"))
            found += [Rendezvous(t=now, slot=slot, seconds=seconds) for seconds in told]
            found += self._told_end(slot, code)
        return found

    def close(self) -> None:
        for agent, node in [*self._gone, *((self._agents[slot], node) for slot, node in self._nodes.items())]:
            _end(agent, node)


def _end(agent: subprocess.Popen[bytes], node: Node) -> None:
    node.end()
    with contextlib.suppress(subprocess.TimeoutExpired):
        agent.wait(timeout=_REAP_S)
