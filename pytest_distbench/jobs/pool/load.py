"""Sends the requests of a pool's demand: ``python -m pytest_distbench.jobs.pool.load PLAN``.

It is an open loop: a request is due when it is due, whether or not those before it have been answered, and what it
waits before a replica is free counts. Each replica gets one request at a time; all that wait stand in one queue.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import queue
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from pytest_distbench.jobs.pool.arrivals import arrivals
from pytest_distbench.records.plan import LaunchPlan
from pytest_distbench.records.pool import SERVING
from pytest_distbench.records.pool_timeline import POOL_LINES, Answered, Asked, ClockBegan, PoolLine, ReplicaReady
from pytest_distbench.records.timeline import LineReader, append
from pytest_distbench.records.work import Pool

_LOOK_S = 0.01
_ANSWER_S = 30.0
"""Within which a replica answers."""


class Load:
    """Requests on their way. The pool's timeline says which replicas there are, and is told of answers."""

    def __init__(self, timeline: Path) -> None:
        self._path = timeline
        self._reader = LineReader(timeline, POOL_LINES)
        self._waiting: queue.PriorityQueue[tuple[float, int]] = queue.PriorityQueue()
        self._leaving: dict[int, threading.Event] = {}

    def put(self, due_t: float, number: int) -> None:
        """A request is due."""
        self._waiting.put((due_t, number))

    def follow(self) -> Iterator[PoolLine]:
        """Take in the timeline for ever: replicas that come get a sender, those that are asked to go lose it."""
        while True:
            for line in self._reader.read():
                if isinstance(line, ReplicaReady):
                    self._leaving[line.slot] = threading.Event()
                    arguments = (line.slot, line.port, self._leaving[line.slot])
                    threading.Thread(target=self._send, args=arguments, daemon=True).start()
                elif isinstance(line, Asked) and line.owner == SERVING and line.slot in self._leaving:
                    self._leaving[line.slot].set()
                yield line
            time.sleep(_LOOK_S)

    def _send(self, slot: int, port: int, leaving: threading.Event) -> None:
        """Send what waits to one replica, one after the other, until it leaves."""
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_ANSWER_S)
        with contextlib.closing(connection):
            while not leaving.is_set():
                try:
                    due_t, number = self._waiting.get(timeout=_LOOK_S)
                except queue.Empty:
                    continue
                try:
                    connection.request("POST", "/", body=str(number))
                    told = json.loads(connection.getresponse().read())
                except (OSError, http.client.HTTPException, ValueError):
                    self.put(due_t, number)  # it has gone, or failed, which it says itself: another one answers
                    return
                answered = Answered(
                    t=time.monotonic(), number=number, intended_t=due_t, slot=slot, busy_s=told["seconds"]
                )
                append(self._path, answered)


def main(path: str) -> None:
    """Send all requests of a plan; it ends when it is ended."""
    plan = LaunchPlan.read_from(path)
    serving = plan.expect(Pool).sharing.serving
    assert serving is not None
    load = Load(plan.files.pool_timeline)
    lines = load.follow()
    began = next(line.t for line in lines if isinstance(line, ClockBegan))
    threading.Thread(target=lambda: [None for _ in lines], daemon=True).start()
    for number, at_s in enumerate(arrivals(serving)):
        time.sleep(max(0.0, began + at_s - time.monotonic()))
        load.put(began + at_s, number)
    threading.Event().wait()


if __name__ == "__main__":
    main(sys.argv[1])
