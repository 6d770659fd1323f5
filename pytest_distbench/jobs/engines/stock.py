"""The stock engine: each node is the command line tool torchrun, as users start it on each of their hosts.

Its store is the controller's, so that it outlives every node.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import json
import socket
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path

from pytest_distbench.jobs.engines.agents import AgentEngine
from pytest_distbench.jobs.engines.contract import LOOPBACK, EngineSetup
from pytest_distbench.worker.torch_internals import store_on

HANGS_ON_SCALE_UP = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
"""torch 2.13: agents keep the address of the first round, so that a node that joins later waits for one that nobody
publishes, until its store gives up after 60 s (torch/distributed/elastic/rendezvous/dynamic_rendezvous.py). Can go
when tests/jobs/engines/test_stock.py says so."""

STORE_S = 60.0
"""How long agents and workers wait for the store."""

_RENDEZVOUS = "RENDEZVOUS"


class TorchrunEngine(AgentEngine):
    """Nodes that are torchrun processes. The workaround is for what this torch does wrong; a test leaves it out."""

    def __init__(
        self,
        setup: EngineSetup,
        *,
        workaround: dict[str, str] = HANGS_ON_SCALE_UP,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(setup, workaround, clock)
        self._store = store_on(socket.create_server((LOOPBACK, 0)), timeout_s=STORE_S)
        self._id = uuid.uuid4().hex[:12]

    def _rendezvous_seconds(self, log: str) -> list[float]:
        return rendezvous_seconds(log)

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
            *(["--event-log-handler=console"] if tells_events() else []),
            f"--log-dir={self._files.torchrun_logs / str(slot)}",
            f"--local-addr={LOOPBACK}",
            *(script or ["-m", "pytest_distbench.worker", "elastic", str(self._files.plan)]),
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
