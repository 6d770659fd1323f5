"""The stream to a relay: whose clock is read by it, and what is said beside it."""

from __future__ import annotations

import math
import subprocess
import sys
import time
from collections.abc import Iterator

import msgspec
import pytest
from support.processes import wait_for

from pytest_distbench.launch.site.hop import Hop, Host
from pytest_distbench.launch.site.stream import Order, Ping, Pong

ECHOES = "import sys\nfor line in sys.stdin.buffer: sys.stdout.buffer.write(line); sys.stdout.buffer.flush()"


@pytest.fixture
def hop() -> Iterator[Hop]:
    """To a process that says what it is told, until its stream is closed."""
    process = subprocess.Popen(
        [sys.executable, "-c", ECHOES], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    made = Hop(Host(name="there", relay=process, ranks=[0]))
    yield made
    made.shut()
    made.see_off()
    assert process.returncode is not None


def test_orders_arrive_and_after_the_end_there_is_nothing(hop: Hop) -> None:
    hop.ping()
    assert msgspec.json.decode(hop.read(), type=Order) == Ping(number=1)
    hop.host.relay.kill()
    hop.host.relay.wait()

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


def test_the_end_of_what_is_said_beside_is_kept(hop: Hop) -> None:
    assert hop.complaint == ""
    assert hop.take_complaints()
    code = "import sys; sys.stderr.write('a' * 1000 + ' no such host')"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        speaking = Hop(Host(name="there", relay=process, ranks=[0]))
        wait_for(lambda: not speaking.take_complaints())

        assert speaking.complaint.endswith("no such host'")
        assert len(speaking.complaint) < 400
