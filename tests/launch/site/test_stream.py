"""What a controller and a relay say to each other over one stream, and the stream itself."""

from __future__ import annotations

import math
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.plans import make_plan

from pytest_distbench.launch.site import Aftermath, stream
from pytest_distbench.launch.site.stream import Hop, Host, Order, Ping, Pong
from pytest_distbench.records.launch_files import LaunchFiles
from pytest_distbench.records.wire import RankEvent


@given(st.lists(st.binary(max_size=20).filter(lambda line: b"\n" not in line)), st.integers(1, 7))
def test_lines_come_out_whole_however_they_are_cut(lines: list[bytes], size: int) -> None:
    data = b"".join(line + b"\n" for line in lines) + b"half a li"
    taken = stream.Lines()

    assert [line for i in range(0, len(data), size) for line in taken.take(data[i : i + size])] == lines


@pytest.mark.parametrize(
    "word",
    [
        stream.Said(event=RankEvent(kind="progress", rank=1, at=2.5, text="\u00e9")),
        stream.Wrote(rank=0, kind="log", offset=3, data=bytes(range(256))),
        stream.Ended(codes={0: -9, 11: 1}, trouble="", died=False),
        stream.Done(ranks=[1], aftermath=Aftermath(stuck={1: "there"}, oom_kills={0: 2})),
    ],
)
def test_a_word_arrives_as_it_was_said(word: stream.Word) -> None:
    assert msgspec.json.decode(msgspec.json.encode(word), type=stream.Word) == word


def test_an_order_arrives_as_it_was_given(tmp_path: Path) -> None:
    order = stream.Open(plan=make_plan(tmp_path), places={3: {"RANK": "3"}}, began_ns=2**62)

    assert msgspec.json.decode(msgspec.json.encode(order), type=stream.Order) == order


def test_every_kind_of_file_has_a_name_for_each_rank(tmp_path: Path) -> None:
    named = {stream.place_of(LaunchFiles(tmp_path), kind, rank) for kind in stream.EVERYTHING for rank in range(2)}

    assert len(named) == 2 * len(stream.EVERYTHING)


ECHOES = "import sys\nfor line in sys.stdin.buffer: sys.stdout.buffer.write(line); sys.stdout.buffer.flush()"


@pytest.fixture
def hop() -> Iterator[Hop]:
    """To a process that says what it is told, until its stream is closed."""
    ours, theirs = socket.socketpair()
    with theirs:
        process = subprocess.Popen([sys.executable, "-c", ECHOES], stdin=theirs, stdout=theirs)
    made = Hop(Host(name="there", line=ours, keeper=process, ranks=[0]))
    yield made
    made.shut()
    made.see_off()
    assert process.returncode is not None


def test_orders_arrive_and_after_the_end_there_is_nothing(hop: Hop) -> None:
    hop.ping()
    assert msgspec.json.decode(hop.read(), type=Order) == Ping(number=1)
    hop.host.keeper.kill()
    hop.host.keeper.wait()

    assert hop.read() == b""


def test_a_clock_is_read_in_the_middle_of_the_way_there_and_back(hop: Hop) -> None:
    before = time.monotonic()
    hop.ping()
    assert hop.read_clock() is None
    hop.take_time(Pong(number=0, at=0.0))  # an older answer
    assert hop.read_clock() is None
    hop.take_time(Pong(number=1, at=before + 3600.0))
    reading = hop.read_clock()

    assert reading is not None
    error_s, offset_s = reading
    assert 0 <= error_s <= (time.monotonic() - before) / 2
    assert offset_s == pytest.approx(-3600.0, abs=time.monotonic() - before)


def test_the_best_first_reading_counts_and_later_ones_tell_how_far_it_still_does(hop: Hop) -> None:
    hop.set_clock([(0.2, 7.0), (0.1, 5.0)])
    assert (hop.offset_s, hop.error_s) == (5.0, 0.1)
    hop.set_clock([(0.25, 5.5)])
    assert (hop.offset_s, hop.error_s) == (5.0, 0.75)
    hop.set_clock([])
    assert (hop.offset_s, hop.error_s) == (5.0, math.inf)
