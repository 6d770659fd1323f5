"""The control lines: what pytest tells ranks, and when; whatever ranks say is survived."""

from __future__ import annotations

import contextlib
import selectors
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_distbench.launch.channel import LONGEST_LINE_BYTES, ControlChannel
from pytest_distbench.records.launch_files import LaunchFiles
from pytest_distbench.records.wire import ALL_JOINED, ALL_UP, EventKind, RankEvent, short_address


class Line:
    """A rank's end."""

    def __init__(self, folder: Path, rank: int) -> None:
        self.rank = rank
        self.socket = socket.socket(socket.AF_UNIX)
        with short_address(LaunchFiles(folder).control) as address:
            self.socket.connect(address)
        self.socket.setblocking(False)

    def say(self, kind: EventKind, text: str = "") -> None:
        event = RankEvent(kind=kind, rank=self.rank, pid=2**30 + self.rank, at=0.0, text=text)
        self.socket.sendall(msgspec.json.encode(event) + b"\n")

    def heard(self) -> bytes:
        with contextlib.suppress(BlockingIOError):
            return self.socket.recv(100)
        return b""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("channel")


@pytest.fixture
def channel(tmp_path: Path) -> Iterator[ControlChannel]:
    with selectors.DefaultSelector() as selector:
        made = ControlChannel(LaunchFiles(tmp_path), selector, processes=2)
        yield made
        made.close()


def test_ranks_are_told_when_the_last_one_is_up_and_when_the_last_one_has_joined(
    channel: ControlChannel, tmp_path: Path
) -> None:
    first, second = Line(tmp_path, 0), Line(tmp_path, 1)
    first.say("hello")
    channel.drain()
    assert first.heard() == b""
    second.say("hello")
    channel.drain()
    assert (first.heard(), second.heard()) == (ALL_UP, ALL_UP)

    first.say("phase", "rendezvous")
    first.say("phase", "body")
    first.say("done")
    second.say("phase", "rendezvous")
    channel.drain()
    assert (first.heard(), second.heard()) == (b"", b"")
    second.say("phase", "body")
    channel.drain()
    assert (first.heard(), second.heard()) == (ALL_JOINED, ALL_JOINED)
    first.socket.close()
    second.socket.close()


@contextlib.contextmanager
def connected(folder: Path) -> Iterator[tuple[ControlChannel, socket.socket]]:
    """A channel for two ranks, and a socket of one that says what it likes."""
    with selectors.DefaultSelector() as selector, socket.socket(socket.AF_UNIX) as rank:
        channel = ControlChannel(LaunchFiles(folder), selector, processes=2)
        try:
            with short_address(LaunchFiles(folder).control) as address:
                rank.connect(address)
            yield channel, rank
        finally:
            channel.close()


def hello(rank: int, pid: int) -> bytes:
    return msgspec.json.encode(RankEvent(kind="hello", rank=rank, pid=pid, at=0.0)) + b"\n"


def pids_heard(channel: ControlChannel) -> dict[int, int]:
    """What ranks have said of themselves, once the first has."""
    end = time.monotonic() + 60
    while not channel.pids() and time.monotonic() < end:
        channel.drain()
    return channel.pids()


@given(st.lists(st.binary(max_size=200), max_size=5))
def test_any_bytes_from_a_rank_are_survived(folder: Path, chunks: list[bytes]) -> None:
    with connected(folder) as (channel, rank):
        for chunk in chunks:
            rank.sendall(chunk + b"\n")
        rank.sendall(b"\n" + hello(1, 42))

        assert pids_heard(channel) == {1: 42}


def test_events_of_ranks_there_are_not_are_ignored(tmp_path: Path) -> None:
    with connected(tmp_path) as (channel, rank):
        for number in (-1, 2, 10**9, 0):
            rank.sendall(hello(number, 1))

        assert pids_heard(channel) == {0: 1}


def test_an_endless_line_is_dropped_and_the_next_one_understood(tmp_path: Path) -> None:
    with connected(tmp_path) as (channel, rank):
        rank.setblocking(False)
        waiting = b"x" * 4 * LONGEST_LINE_BYTES + b"\n" + hello(1, 1)
        end = time.monotonic() + 60
        while waiting and time.monotonic() < end:
            with contextlib.suppress(BlockingIOError):
                waiting = waiting[rank.send(waiting[:65536]) :]
            channel.drain()

        assert pids_heard(channel) == {1: 1}


def test_what_a_rank_could_not_end_is_kept(channel: ControlChannel, tmp_path: Path) -> None:
    line = Line(tmp_path, 1)
    line.say("hello")
    line.say("done")
    line.say("remark", "threads it had started still ran")
    channel.drain()

    assert channel.remarks() == {1: "threads it had started still ran"}
    line.socket.close()
