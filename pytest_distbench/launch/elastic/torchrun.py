"""The stock engine: each node is the command line tool torchrun, as users start it on each of their hosts.

Its store is the controller's, so that it outlives every node.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import json
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path

from pytest_distbench.launch.contract import NO_REVERSE_DNS
from pytest_distbench.launch.elastic.engines import EngineSetup
from pytest_distbench.launch.elastic.node import Node
from pytest_distbench.launch.logs import tail
from pytest_distbench.records.elastic import NODE_VARIABLE, SLOT_VARIABLE
from pytest_distbench.records.timeline import AgentEnded, Rendezvous
from pytest_distbench.worker.torch_internals import store_on

MAX_RESTARTS = 1000
"""Those that torchrun counts while nodes only join: who loses its peers a moment before it hears of the change."""

HANGS_ON_SCALE_UP = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
"""torch 2.13: agents keep the address of the first round, so that a node that joins later waits for one that nobody
publishes, until its store gives up after 60 s (torch/distributed/elastic/rendezvous/dynamic_rendezvous.py). Can go
when tests/launch/elastic/test_torchrun.py says so."""

STORE_S = 60.0
"""How long agents and workers wait for the store."""

_LOOPBACK = "127.0.0.1"
_RENDEZVOUS = "RENDEZVOUS"


class TorchrunEngine:
    """Nodes that are torchrun processes.

    Args:
        setup: what they run, and where.
        worker: module that each worker runs.
        workaround: for what this torch does wrong; a test leaves it out.
        clock: tells the time of the timeline.
    """

    def __init__(
        self,
        setup: EngineSetup,
        *,
        worker: str = "pytest_distbench.worker.elastic",
        workaround: dict[str, str] = HANGS_ON_SCALE_UP,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._job = setup.job
        self._files = setup.files
        self._store = store_on(socket.create_server((_LOOPBACK, 0)), timeout_s=STORE_S)
        self._variables = {**setup.variables, **NO_REVERSE_DNS, **workaround}
        self._worker = worker
        self._clock = clock
        self._id = uuid.uuid4().hex[:12]
        self._agents: dict[int, subprocess.Popen[bytes]] = {}
        self._nodes: dict[int, Node] = {}
        self._offsets: dict[int, int] = {}
        """Slot -> how much of its log was read."""
        self._gone: list[Node] = []
        """Those whose slot another one has taken; they may not have ended yet."""

    def join(self, slot: int) -> None:
        if slot in self._nodes:
            self._gone.append(self._nodes[slot])
        word = uuid.uuid4().hex
        log = self._files.agent_log(slot)
        with open(log, "ab") as file:
            process = subprocess.Popen(
                self._command(slot),
                env={**self._variables, SLOT_VARIABLE: str(slot), NODE_VARIABLE: word},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )
            self._offsets[slot] = file.tell()
        self._agents[slot] = process
        self._nodes[slot] = Node(process.pid, word)

    def leave(self, slot: int) -> None:
        self._agents[slot].send_signal(signal.SIGTERM)

    def kill(self, slot: int) -> None:
        self._nodes[slot].end()

    def crash(self, slot: int) -> None:
        self._nodes[slot].kill_workers()

    def stop(self, slot: int) -> None:
        self._nodes[slot].send(signal.SIGSTOP)

    def go_on(self, slot: int) -> None:
        self._nodes[slot].send(signal.SIGCONT)

    def poll(self) -> list[Rendezvous | AgentEnded]:
        found: list[Rendezvous | AgentEnded] = []
        for slot, node in self._nodes.items():
            code = self._agents[slot].poll()
            with open(self._files.agent_log(slot), "rb") as file:
                file.seek(self._offsets[slot])
                data = file.read()
            whole = data[: data.rfind(b"\n") + 1]
            self._offsets[slot] += len(whole)
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
            node.end()

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
        return [
            sys.executable, "-m", "torch.distributed.run",
            f"--nnodes={job.least}:{job.most}",
            "--nproc-per-node=1",
            "--rdzv-backend=c10d",
            f"--rdzv-endpoint={_LOOPBACK}:{self._store.port}",
            f"--rdzv-id={self._id}",
            f"--rdzv-conf={','.join(f'{name}={value}' for name, value in settings.items())}",
            f"--max-restarts={MAX_RESTARTS}",
            *(["--event-log-handler=console"] if tells_events() else []),
            f"--log-dir={self._files.torchrun_logs / str(slot)}",
            f"--local-addr={_LOOPBACK}",
            "-m", self._worker, str(self._files.plan),
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
        if not line.startswith("{") or _RENDEZVOUS not in line:
            continue
        with contextlib.suppress(ValueError, KeyError, TypeError):
            event = json.loads(line)
            if str(event["name"]).endswith(_RENDEZVOUS):
                found.append(float(event["metadata"]["duration_ms"]) / 1e3)
    return found
