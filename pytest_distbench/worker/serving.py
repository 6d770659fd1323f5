"""A server of a pool's serving: a process that loads what the plan names, and says when it is ready.

``python -m pytest_distbench.worker.serving PLAN SLOT`` stays in its slot until it is asked to go (SIGTERM).
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Callable

import torch

from pytest_distbench.records.elastic import SERVING
from pytest_distbench.records.plan import LaunchPlan, Pool
from pytest_distbench.records.timeline import ServerFailed, ServerReady, append
from pytest_distbench.worker import bodies
from pytest_distbench.worker.clock.host import HostClock

FAILED = 13
"""Exit code of a server whose function raised."""


def main(path: str, slot: int) -> None:
    """Load, say so, and stay."""
    plan = LaunchPlan.read_from(path)
    task, timeline = plan.expect(Pool).tasks[SERVING], plan.files.pool_timeline
    sys.path[:] = plan.python_path
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1").partition(",")[0] or 1))
    try:
        load: Callable[..., object] = bodies.load(task.body)
        _loaded = load(**task.params)  # it keeps what it returns for as long as it lives
    except Exception as error:  # noqa: BLE001 whatever it raises is told
        told = f"{type(error).__name__}: {error}\n{traceback.format_exc(limit=-5)}"
        append(timeline, ServerFailed(t=HostClock.monotonic(), slot=slot, error=told))
        os._exit(FAILED)
    append(timeline, ServerReady(t=HostClock.monotonic(), slot=slot))
    while True:
        signal.pause()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
