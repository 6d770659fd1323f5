"""The engine torchft: each node is a torchrun of one worker, as its users start it, and they meet at a lighthouse.

The lighthouse is the controller's, so that it outlives every node; the manager of a node lives in its worker's process.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from pytest_distbench.jobs.engines.agents import AgentEngine
from pytest_distbench.jobs.engines.contract import LOOPBACK, MAX_RESTARTS, EngineSetup
from pytest_distbench.launch.starters.torchrun import torchrun_on_loopback

_QUIET = {"RUST_LOG": "warn"}
"""Unless the user wants more: torchft tells of every step in half a dozen lines."""


class TorchftEngine(AgentEngine):
    """Nodes that are replica groups of torchft."""

    def __init__(self, setup: EngineSetup, *, clock: Callable[[], float] = time.monotonic) -> None:
        quiet = {name: value for name, value in _QUIET.items() if name not in setup.variables}
        os.environ.update(quiet)
        from torchft.coordination import LighthouseServer  # reads that when it is imported

        timers = setup.job.timers
        self._lighthouse = LighthouseServer(
            bind=f"{LOOPBACK}:0",
            min_replicas=setup.job.least,
            join_timeout_ms=_milliseconds(timers["join_timeout_s"]),
            quorum_tick_ms=_milliseconds(timers["quorum_tick_s"]),
            heartbeat_timeout_ms=_milliseconds(timers["heartbeat_timeout_s"]),
        )
        port = self._lighthouse.address().rpartition(":")[2]  # it names the host as others would, who may not know it
        super().__init__(setup, {**quiet, "TORCHFT_LIGHTHOUSE": f"http://{LOOPBACK}:{port}"}, clock)

    def close(self) -> None:
        super().close()
        self._lighthouse.shutdown()

    def _command(self, slot: int) -> list[str]:
        return [
            *torchrun_on_loopback(1, logs=self._files.torchrun_logs / str(slot)),
            f"--max-restarts={MAX_RESTARTS}",
            "-m", "pytest_distbench.worker", "torchft", str(self._files.plan),
        ]  # fmt: skip


def _milliseconds(seconds: float) -> int:
    return max(1, round(seconds * 1e3))
