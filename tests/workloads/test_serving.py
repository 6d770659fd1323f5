"""Requests and replicas, without processes: one queue, answers over HTTP, clocks that begin when a request is due."""

from __future__ import annotations

import contextlib
import http.client
import json
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.processes import LIMIT_S

from pytest_distbench.errors import BodyError
from pytest_distbench.jobs.pool.load import Load
from pytest_distbench.records.pool import SERVING
from pytest_distbench.records.pool_timeline import POOL_LINES, Answered, Asked, ReplicaReady
from pytest_distbench.records.timeline import LineReader, append
from pytest_distbench.workloads import serving


@pytest.fixture
def start() -> Iterator[Callable[..., serving._Server]]:
    """Starts replicas in threads of this process."""
    before = signal.getsignal(signal.SIGTERM)
    servers: list[serving._Server] = []

    def start(answer: Callable[[int], object]) -> serving._Server:
        server = serving._Server(answer)
        servers.append(server)
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        return server

    yield start
    signal.signal(signal.SIGTERM, before)
    for server in servers:
        threading.Thread(target=server.shutdown, daemon=True).start()  # it waits for an open connection
        server.socket.close()


def answers(path: Path, count: int) -> list[Answered]:
    """So many answers; they come within seconds."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        found = [line for line in LineReader(path, POOL_LINES).read() if isinstance(line, Answered)]
        if len(found) >= count:
            return found
        time.sleep(0.01)
    raise AssertionError(f"not {count} answers: {found}")


def follow(load: Load) -> None:
    threading.Thread(target=lambda: [None for _ in load.follow()], daemon=True).start()


def ready(slot: int, server: serving._Server) -> ReplicaReady:
    return ReplicaReady(t=time.monotonic(), slot=slot, pid=1, port=server.server_port)


def test_a_request_waits_for_a_replica_and_its_wait_counts(
    tmp_path: Path, start: Callable[..., serving._Server]
) -> None:
    timeline = tmp_path / "pool.jsonl"
    load = Load(timeline)
    follow(load)
    began = time.monotonic()
    due = began - 5.0
    load.put(due, 0)
    append(timeline, ready(1, start(lambda number: number * 2)))
    [answered] = answers(timeline, 1)

    assert (answered.number, answered.slot, answered.intended_t) == (0, 1, due)
    assert answered.t - answered.intended_t > 5.0
    assert answered.busy_s <= answered.t - began  # the replica was not busy while there was none


def test_a_replica_that_is_asked_to_go_gets_no_more_requests(
    tmp_path: Path, start: Callable[..., serving._Server]
) -> None:
    timeline = tmp_path / "pool.jsonl"
    load = Load(timeline)
    follow(load)
    append(timeline, ready(1, start(lambda number: number)))
    load.put(time.monotonic(), 0)
    answers(timeline, 1)
    append(timeline, Asked(t=time.monotonic(), owner=SERVING, slot=1))
    append(timeline, ready(2, start(lambda number: number)))
    time.sleep(0.2)  # for the first to see it; were it slower, the test would still be right to fail only if it answers
    for number in range(1, 6):
        load.put(time.monotonic(), number)

    assert {line.slot for line in answers(timeline, 6) if line.number > 0} == {2}


def test_a_request_that_a_replica_did_not_answer_goes_to_another(
    tmp_path: Path, start: Callable[..., serving._Server]
) -> None:
    timeline = tmp_path / "pool.jsonl"
    load = Load(timeline)
    follow(load)
    gone = start(lambda number: number)
    gone.shutdown()
    gone.socket.close()
    append(timeline, ready(1, gone))
    load.put(time.monotonic(), 0)
    time.sleep(0.1)
    append(timeline, ready(2, start(lambda number: number)))
    [answered] = answers(timeline, 1)

    assert (answered.number, answered.slot) == (0, 2)


def test_an_answer_comes_in_one_packet_on_a_connection_that_stays(start: Callable[..., serving._Server]) -> None:
    """Two packets would wait for each other's acknowledgement: 40 ms a request."""
    server = start(lambda number: [number])
    with socket.create_connection(("127.0.0.1", server.server_port), timeout=LIMIT_S) as connection:
        for number in range(3):
            connection.sendall(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\n" + str(number).encode())
            head, _, body = connection.recv(65536).partition(b"\r\n\r\n")

            assert head.startswith(b"HTTP/1.1 200")
            assert json.loads(body)["answer"] == [number]


def test_what_answers_and_raises_ends_the_replica() -> None:
    def answer(number: int) -> int:
        raise ValueError(f"no answer to {number}")

    with serving._Server(answer) as server:
        address = ("127.0.0.1", server.server_port)
        with contextlib.closing(http.client.HTTPConnection(*address)) as connection:
            connection.request("POST", "/", body="7")

            with pytest.raises(ValueError, match="no answer to 7"):
                server.handle_request()


def test_what_returns_nothing_to_call_is_an_error() -> None:
    with pytest.raises(BodyError, match="load returned a NoneType; wanted a function that takes a request's number"):
        serving._load(load, {})


def load() -> None: ...
