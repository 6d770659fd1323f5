"""When workers end is seen, of those that are nobody's children too."""

from __future__ import annotations

import subprocess
import sys

from pytest_distbench.jobs.control.running import WorkerEnds
from pytest_distbench.records.timeline import Started, WorkerEnded


def started(slot: int, pid: int) -> Started:
    return Started(t=0.0, slot=slot, pid=pid, process_t=0.0, restarts=0)


def test_a_worker_has_ended_once_and_one_that_was_gone_before_has_too() -> None:
    ends = WorkerEnds(clock=lambda: 5.0)
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    ends.watch(started(0, process.pid))
    ends.watch(started(1, 2**22 + 1))

    assert ends.poll() == [WorkerEnded(t=5.0, slot=1, pid=2**22 + 1)]
    process.communicate(b"\n")
    assert ends.poll() == [WorkerEnded(t=5.0, slot=0, pid=process.pid)]
    assert ends.poll() == []
    ends.close()
