"""A replica of a pool's serving: a process that answers requests over HTTP, one after the other.

``python -m pytest_distbench.workloads.serving PLAN SLOT`` loads what the plan names, and answers until it is asked to
go; a request that is under way has its answer then.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import torch

from pytest_distbench.errors import BodyError
from pytest_distbench.records.plan import LaunchPlan
from pytest_distbench.records.pool import SERVING
from pytest_distbench.records.pool_timeline import ReplicaFailed, ReplicaReady
from pytest_distbench.records.timeline import append
from pytest_distbench.records.work import Pool
from pytest_distbench.worker import bodies
from pytest_distbench.worker.clock.host import HostClock

Answer = Callable[[int], object]
"""What a serving's function returns: it answers the request of a number."""

FAILED = 13
"""Exit code of a replica whose function raised."""


def main(path: str, slot: int) -> None:
    """Answer until SIGTERM comes."""
    plan = LaunchPlan.read_from(path)
    task, timeline = plan.expect(Pool).tasks[SERVING], plan.files.pool_timeline
    sys.path[:] = plan.python_path
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1").partition(",")[0] or 1))
    try:
        with torch.inference_mode():
            answer = _load(bodies.load(task.body), task.params)
            answer(0)  # what a first call costs is part of its start
            with _Server(answer) as server:
                append(
                    timeline, ReplicaReady(t=HostClock.monotonic(), slot=slot, pid=os.getpid(), port=server.server_port)
                )
                server.serve_forever(poll_interval=0.1)
    except Exception as error:  # noqa: BLE001 whatever it raises is told
        told = f"{type(error).__name__}: {error}\n{traceback.format_exc(limit=-5)}"
        append(timeline, ReplicaFailed(t=HostClock.monotonic(), slot=slot, error=told))
        os._exit(FAILED)


def _load(function: Callable[..., Any], params: dict[str, Any]) -> Answer:
    answer: Answer = function(**params)
    if not callable(answer):
        raise BodyError(
            f"{function.__name__} returned a {type(answer).__name__}; wanted a function that takes a request's number "
            "and answers it"
        )
    return answer


class _Server(HTTPServer):
    """Answers one connection, and on it one request after the other."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answer = answer
        self.is_busy = self.is_leaving = False
        signal.signal(signal.SIGTERM, lambda number, frame: self._leave())

    def handle_error(self, request: Any, client_address: object) -> None:  # noqa: ARG002 the library's arguments
        """A function that raises ends the replica: what went wrong is told."""
        self.shutdown_request(request)
        raise

    def _leave(self) -> None:
        self.is_leaving = True
        if not self.is_busy:
            os._exit(0)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # an answer in one packet: a second one would wait for the first one's acknowledgement
    disable_nagle_algorithm = True
    server: _Server

    def do_POST(self) -> None:
        """Answer the request whose number is sent."""
        self.server.is_busy = True
        number = int(self.rfile.read(int(self.headers["Content-Length"])))
        start = HostClock.perf_counter()
        answer = self.server.answer(number)
        told = json.dumps({"answer": answer, "seconds": HostClock.perf_counter() - start}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(told)))
        self.end_headers()
        self.wfile.write(told)
        self.wfile.flush()
        self.server.is_busy = False
        if self.server.is_leaving:
            os._exit(0)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 the library's name
        """Nothing: the timeline has each answer."""


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
