"""The stock engine: each node is the command line tool torchrun, as users start it on each of their hosts.

Its store is the controller's, so that it outlives every node.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import psutil

from pytest_distbench.launch import processes
from pytest_distbench.launch.contract import NO_REVERSE_DNS
from pytest_distbench.launch.elastic.outputs import NodeOutputs
from pytest_distbench.launch.logs import tail
from pytest_distbench.records.elastic import NODE_VARIABLE, SLOT_VARIABLE, ElasticJob
from pytest_distbench.records.launch_files import LaunchFiles
from pytest_distbench.records.timeline import AgentEnded, Rendezvous

HANGS_ON_SCALE_UP = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
"""torch 2.13: agents keep the address of the first round, so that a node that joins later waits for one that nobody
publishes, until its store gives up after 60 s (torch/distributed/elastic/rendezvous/dynamic_rendezvous.py). Can go
when tests/launch/elastic/test_torchrun.py says so."""

_RENDEZVOUS = "RENDEZVOUS"
_VISIBLE = "CUDA_VISIBLE_DEVICES"
_KILL_S = 10.0
_LOGS_S = 5.0


@dataclass
class _Node:
    process: subprocess.Popen[bytes]
    word: str
    log: Path
    offset: int
    is_told: bool = False


class TorchrunEngine:
    """Nodes that are torchrun processes.

    Args:
        job: what they run.
        files: of the launch; the plan is among them.
        port: of the store on this host.
        variables: environment of the nodes.
        worker: module that each worker runs.
        devices: the CUDA device of each slot, where its worker takes the first that it sees, as a script does.
        outputs: what nodes print to; None: to their logs.
        script: what each worker runs in place of the module: a file, or ``-m`` and a name, and its arguments.
        workaround: for what this torch does wrong; a test leaves it out.
        clock: tells the time of the timeline.
    """

    def __init__(
        self,
        job: ElasticJob,
        files: LaunchFiles,
        port: int,
        *,
        variables: dict[str, str],
        worker: str = "pytest_distbench.worker.elastic",
        devices: Sequence[int] = (),
        outputs: NodeOutputs | None = None,
        script: Sequence[str] = (),
        workaround: dict[str, str] = HANGS_ON_SCALE_UP,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._job = job
        self._files = files
        self._port = port
        self._variables = {**variables, **NO_REVERSE_DNS, **workaround}
        self._program = script or ["-m", worker, str(files.plan)]
        self._devices = devices
        self._outputs = outputs
        self._clock = clock
        self._id = uuid.uuid4().hex[:12]
        self._nodes: dict[int, _Node] = {}
        self._gone: list[_Node] = []
        """Those whose slot another one has taken; they may not have ended yet."""

    def join(self, slot: int) -> None:
        if slot in self._nodes:
            self._gone.append(self._nodes[slot])
        word = uuid.uuid4().hex
        log = self._files.agent_log(slot)
        with open(log, "ab") as file, self._printed_to(slot, file) as (stdout, stderr):
            process = subprocess.Popen(
                self._command(slot),
                env={**self._variables, **self._device(slot), SLOT_VARIABLE: str(slot), NODE_VARIABLE: word},
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                start_new_session=True,
            )
            self._nodes[slot] = _Node(process, word, log, offset=file.tell())

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
            told = rendezvous_seconds(whole.decode(errors="replace"))
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

    def _command(self, slot: int) -> list[str]:
        job, timers = self._job, self._job.timers
        settings = {
            "is_host": "0",
            "join_timeout": timers.settle_s,
            "last_call_timeout": timers.last_call_s,
            "keep_alive_interval": timers.keep_alive_s,
            "keep_alive_max_attempt": timers.keep_alive_attempts,
            "close_timeout": 5,
        }
        return [
            sys.executable, "-m", "torch.distributed.run",
            f"--nnodes={job.least}:{job.most}",
            "--nproc-per-node=1",
            "--rdzv-backend=c10d",
            f"--rdzv-endpoint=127.0.0.1:{self._port}",
            f"--rdzv-id={self._id}",
            f"--rdzv-conf={','.join(f'{name}={value}' for name, value in settings.items())}",
            f"--max-restarts={timers.max_restarts}",
            *(["--event-log-handler=console"] if tells_events() else []),
            f"--log-dir={self._files.torchrun_logs / str(slot)}",
            "--local-addr=127.0.0.1",
            *self._program,
        ]  # fmt: skip


@functools.cache
def tells_events() -> bool:
    """Whether this torchrun prints its events when asked (https://github.com/pytorch/pytorch/pull/155268).

    Where it does not, nobody sees when agents meet, and that part of a recovery is unaccounted.
    """
    found = importlib.util.find_spec("torch.distributed.run")
    return found is not None and "--event-log-handler" in Path(str(found.origin)).read_text()


def rendezvous_seconds(log: str) -> list[float]:
    """How long each rendezvous took that an agent's log tells of; events of torchelastic are lines of JSON."""
    found = []
    for line in log.splitlines():
        if _RENDEZVOUS not in line:
            continue
        with contextlib.suppress(ValueError, KeyError, TypeError):
            event = json.loads(line[line.index("{") :])  # behind a script's line that had no end yet
            if str(event["name"]).endswith(_RENDEZVOUS):
                found.append(float(event["metadata"]["duration_ms"]) / 1e3)
    return found


def _end(node: _Node) -> None:
    """SIGKILL all processes of a node, again and again until there is none: one may start others meanwhile."""
    deadline = time.monotonic() + _KILL_S
    while (members := _members(node)) and time.monotonic() < deadline:
        for process in members:
            with contextlib.suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(members, timeout=1.0)
    with contextlib.suppress(subprocess.TimeoutExpired):
        node.process.wait(timeout=1.0)


def _members(node: _Node) -> list[psutil.Process]:
    """All processes of a node: below its agent, and those that got away but for their environment."""
    found = [*processes.find_marked(NODE_VARIABLE, node.word), *processes.family([node.process.pid])]
    return [p for p in {process.pid: process for process in found}.values() if p.pid != os.getpid()]
