"""The control lines: what pytest tells ranks, and when."""

from __future__ import annotations

import contextlib
import selectors
import socket
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from pytest_distbench.launch.channel import ControlChannel
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


@pytest.fixture
def channel(tmp_path: Path) -> Iterator[ControlChannel]:
    with selectors.DefaultSelector() as selector:
        made = ControlChannel(LaunchFiles(tmp_path), selector, world_size=2)
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
