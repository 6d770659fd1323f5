"""The controller's end of ranks on other hosts, over relays that are made up."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import psutil
import pytest
from support.plans import make_plan
from support.processes import wait_for

from pytest_distbench.errors import LauncherError
from pytest_distbench.hosts import relayed
from pytest_distbench.hosts.relay import Message
from pytest_distbench.hosts.relayed import Host, RelayedSite
from pytest_distbench.launch.site import Exit, processes
from pytest_distbench.launch.supervise import Side, supervise
from pytest_distbench.records.launch import ErrorReport, HostReport, RankReport
from pytest_distbench.records.plan import LaunchPlan, read_work
from pytest_distbench.records.record import replace
from pytest_distbench.records.wire import rank_event

Says = Callable[[Message], list[Message]]


class SimulatedRelay:
    """A thread in the place of the process that leads to a relay; it answers as a test says.

    Args:
        rank: that lives there.
        ahead_s: how far the clock of its host is ahead of this one's.
        says: what it says to an order, before the answer; an answer in it replaces the usual one.
    """

    def __init__(
        self, rank: int, ahead_s: float = 0.0, says: Callable[[Message], list[Message]] = lambda order: []
    ) -> None:
        self.line, self.other_end = socket.socketpair()
        self.rank, self.ahead_s, self._says = rank, ahead_s, says
        self.pid = os.getpid()
        self.leads_there = True
        self.given: list[Message] = []
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def poll(self) -> int | None:
        return None if self.leads_there else 1

    def wait(self, timeout: float | None = None) -> int:
        self._thread.join(timeout)
        return 0

    def kill(self) -> None:
        raise AssertionError("it ends by itself")

    def _serve(self) -> None:
        with contextlib.suppress(OSError, StopIteration), self.other_end, self.other_end.makefile("rb") as orders:
            for line in orders:
                order = msgspec.json.decode(line, type=Message, dec_hook=read_work)
                self.given.append(order)
                said = self._says(order)
                answer = [] if any(word.what == "done" for word in said) else self._answer(order)
                self.other_end.sendall(b"".join(msgspec.json.encode(word) + b"\n" for word in [*said, *answer]))

    def _answer(self, order: Message) -> list[Message]:
        match order:
            case Message(what="ping", number=number):
                return [Message(what="pong", number=number, at=time.monotonic() + self.ahead_s)]
            case Message(what="ask"):
                return []
            case Message(what="running"):
                return [Message(what="done", ranks=[self.rank])]
            case Message(what="end"):
                return [Message(what="ended", ended=Exit(codes={self.rank: -signal.SIGKILL})), Message(what="done")]
            case Message(what="clear"):
                return [Message(what="done", ended=Exit(oom_kills={self.rank: 1}))]
        return [Message(what="done")]


MakeSite = Callable[..., RelayedSite]


@pytest.fixture
def plan(tmp_path: Path) -> LaunchPlan:
    plan = make_plan(tmp_path)
    plan.files.began.touch()
    return plan


@pytest.fixture
def make_site(plan: LaunchPlan) -> Iterator[MakeSite]:
    made: list[RelayedSite] = []

    def make(*relays: SimulatedRelay) -> RelayedSite:
        hosts = [Host(f"host{r.rank}", line=r.line, keeper=r, ranks=[r.rank]) for r in relays]
        here = replace(plan, world_size=len({relay.rank for relay in relays}))
        made.append(RelayedSite(here, hosts, meeting_point=("host0", 29500)))
        return made[-1]

    yield make
    for site in made:
        site.close()


def event(rank: int, kind: str, text: str = "", at: float = 0.0) -> Message:
    return Message(what="said", event=rank_event(kind, rank, at, text))  # type: ignore[arg-type]


def report(rank: int, at: float) -> RankReport:
    error = ErrorReport(kind="ValueError", message="x", traceback="x", raised_at=at)
    phases = {"begin": at, "body": 0.5, "end": at}
    return RankReport(rank=rank, outcome="failed", phase="body", phases=phases, error=error)


def test_each_host_gets_the_places_of_its_ranks_and_the_meeting_point(make_site: MakeSite) -> None:
    first, second = SimulatedRelay(0), SimulatedRelay(1)
    make_site(first, second).start()
    opened = next(order for order in second.given if order.what != "ping")

    assert opened.what == "open"
    place = opened.places[1]
    assert (place["RANK"], place["LOCAL_RANK"], place["GROUP_RANK"]) == ("1", "0", "1")
    assert (place["WORLD_SIZE"], place["LOCAL_WORLD_SIZE"], place["MASTER_ADDR"]) == ("2", "1", "host0")
    assert first.given[-1].what == "start"


def test_a_relay_that_says_nothing_any_more_is_lost_however_long_its_order_may_take(
    make_site: MakeSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relayed, "PULSE_S", 0.05)
    monkeypatch.setattr(relayed, "_SILENT_S", 0.3)
    stands_still = threading.Event()

    def says(order: Message) -> list[Message]:
        if order.what == "ask":
            stands_still.wait(20)
        return []

    site = make_site(SimulatedRelay(0), SimulatedRelay(1, says=says))
    site.start()
    site.ask([1], b"x")
    try:
        exit_ = site.end([0, 1])
    finally:
        stands_still.set()

    assert exit_.codes == {0: -signal.SIGKILL}
    assert "host host1: its relay has been silent for 0 s: the host is gone" in exit_.trouble


def test_a_relay_that_says_nothing_is_asked_and_lost_when_nothing_leads_there_though_it_answers(
    make_site: MakeSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relayed, "PULSE_S", 0.05)
    relay = SimulatedRelay(0)
    site = make_site(relay)
    site.start()
    before = len(relay.given)
    until = time.monotonic() + 20
    while len(relay.given) < before + 3 and time.monotonic() < until:
        site.listen(0.02)

    assert {order.what for order in relay.given[before:]} == {"ping"}
    assert site.ended is None

    relay.leads_there = False
    site.listen(0.0)
    assert site.ended is not None
    assert site.ended.trouble == "host host0: its relay has ended, or the connection to it"


def test_moments_of_a_host_are_converted_to_this_hosts_time_within_the_error(
    make_site: MakeSite, plan: LaunchPlan
) -> None:
    """The host's clock is an hour ahead: what is not turned into our time is an hour off."""
    ahead_s = 3600.0
    began = time.monotonic()
    there = began + ahead_s

    def says(order: Message) -> list[Message]:
        done = Message(what="done", ended=Exit(), report=HostReport(ranks=[report(0, there)]))
        return (
            [event(0, "hello", at=there), Message(what="closed", rank=0, at=there), done]
            if order.what == "clear"
            else []
        )

    site = make_site(SimulatedRelay(0, ahead_s, says))
    site.start()
    site.clear()
    [[found]] = [host.ranks for host in site.reports()]
    assert found.error is not None
    moments = [site.heard.events[0].t, site.heard.closed_at[0], found.error.raised_at, found.phases["end"]]

    error_s = site.clocks.errors_s["host0"]
    assert 0 < error_s < 60
    assert [moment for moment in moments if abs(moment - began) > error_s + 1e-6] == []
    assert found.phases["body"] == 0.5


def test_what_ranks_write_there_is_found_among_the_launchs_files(make_site: MakeSite, plan: LaunchPlan) -> None:
    parts = iter([[(0, b"one\n")], [(4, b"two\n")]])

    def says(order: Message) -> list[Message]:
        is_asked = order.what == "fetch"
        return (
            [Message(what="wrote", rank=0, kind="log", offset=at, data=data) for at, data in next(parts)]
            if is_asked
            else []
        )

    site = make_site(SimulatedRelay(0, says=says))
    site.start()
    site.fetch_output()
    assert plan.files.log(0).read_bytes() == b"one\n"
    site.fetch_output()
    assert plan.files.log(0).read_bytes() == b"one\ntwo\n"


def test_hosts_have_each_rank_once_and_one_that_cannot_start_its_own_is_named(make_site: MakeSite) -> None:
    with pytest.raises(LauncherError, match=r"the hosts have ranks \[1\]; wanted each of 1 once, from 0"):
        make_site(SimulatedRelay(1)).start()
    with pytest.raises(LauncherError, match=r"the hosts have ranks \[0, 0\]; wanted each of 1 once"):
        make_site(SimulatedRelay(0), SimulatedRelay(0)).start()

    site = make_site(
        SimulatedRelay(0),
        SimulatedRelay(1, says=lambda o: [Message(what="done", trouble="no room")] * (o.what == "open")),
    )

    with pytest.raises(LauncherError, match="host host1: no room"):
        site.start()


@pytest.mark.parametrize("noise", [b"Welcome to the cluster\n", b'{"type": "Said", "pid": 1}\n'])
def test_what_is_no_word_ends_the_stream_and_is_shown(make_site: MakeSite, noise: bytes) -> None:
    relay = SimulatedRelay(0)
    relay.other_end.sendall(noise)
    with pytest.raises(LauncherError, match=r"its relay said b.*only one relay"):
        make_site(relay).start()


@pytest.mark.parametrize(
    ("does", "text"),
    [
        ("exec sleep 1000", "did not answer within 1 s"),
        ("read order", r"(has ended, or the connection to it|no longer accepts commands \(Broken pipe\))"),
    ],
)
def test_a_host_whose_relay_never_answers_is_lost_soon(
    plan: LaunchPlan, monkeypatch: pytest.MonkeyPatch, does: str, text: str
) -> None:
    monkeypatch.setattr(relayed, "_OPEN_S", 1.0)
    ours, theirs = socket.socketpair()
    with theirs:
        process = subprocess.Popen(["sh", "-c", does], stdin=theirs)
    host = Host("host0", line=ours, keeper=process, ranks=[0])
    site = RelayedSite(replace(plan, world_size=1), [host], meeting_point=("host0", 29500))
    with pytest.raises(LauncherError, match=f"host host0: its relay {text}"):
        site.start()
    site.close()
    assert process.returncode is not None


def test_a_relay_that_is_gone_is_no_ranks_fault(make_site: MakeSite) -> None:
    def leaves(order: Message) -> list[Message]:
        return [] if order.what != "running" else next(iter([]))

    site = make_site(SimulatedRelay(0), SimulatedRelay(1, says=leaves))
    site.start()
    assert site.running() == {0}
    assert set(site.heard.closed_at) == {1}
    assert site.ended is None
    ended = site.end([0])
    assert (ended.died, ended.codes) == (True, {0: -signal.SIGKILL})
    assert "host host1: its relay has ended, or the connection to it" in ended.trouble


def test_when_what_leads_to_a_host_stands_still_the_launch_is_over(
    make_site: MakeSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "STOPPED_S", 0.0)
    relay = SimulatedRelay(0)
    site = make_site(relay)
    site.start()
    site.look()
    assert site.ended is None
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"]) as process:
        process.send_signal(signal.SIGSTOP)
        wait_for(lambda: processes.is_stopped(process.pid))
        relay.pid = process.pid
        site.look()
        process.kill()

    assert site.ended is not None
    assert (site.ended.died, "has been stopped" in site.ended.trouble) == (True, True)


def test_no_process_of_this_host_is_sent_a_signal_for_a_rank_of_another(
    make_site: MakeSite, plan: LaunchPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A launch that hangs and is ended by force, while every process of this host is watched."""
    sent: list[object] = []
    for owner, name in (
        (os, "kill"),
        (os, "killpg"),
        (os, "pidfd_open"),
        (signal, "pidfd_send_signal"),
        (psutil.Process, "send_signal"),
        (psutil.Process, "kill"),
        (psutil.Process, "terminate"),
        (subprocess.Popen, "send_signal"),
        (processes, "send"),
        (processes, "kill"),
        (processes, "kill_groups"),
    ):
        monkeypatch.setattr(owner, name, lambda *args, _name=name, **options: sent.append((_name, args)))

    def says(rank: int) -> Callable[[Message], list[Message]]:
        def say(order: Message) -> list[Message]:
            return [event(rank, "hello"), event(rank, "phase", "body")] if order.what == "start" else []

        return say

    relays = [SimulatedRelay(rank, says=says(rank)) for rank in range(2)]
    site = make_site(*relays)
    launcher = type("Made", (), {"name": "made", "session": "x", "open": lambda self, plan: site})()
    record = supervise(replace(plan, timeout_s=0.2), Side(launcher=lambda: launcher))

    assert record.timed_out
    assert [order.what for order in relays[1].given if order.what != "ping"] == [
        "open", "start", "ask", "ask", "running", "collect", "end", "clear",
    ]  # fmt: skip
    assert sent == []


ECHOES = "import sys\nfor line in sys.stdin.buffer: sys.stdout.buffer.write(line); sys.stdout.buffer.flush()"


@pytest.fixture
def host() -> Iterator[Host]:
    """A host whose process repeats what it receives, until its stream is closed."""
    ours, theirs = socket.socketpair()
    with theirs:
        process = subprocess.Popen([sys.executable, "-c", ECHOES], stdin=theirs, stdout=theirs)
    made = Host("there", line=ours, keeper=process, ranks=[0])
    yield made
    made.line.close()
    made.see_off()
    assert process.returncode is not None


def test_the_offset_of_a_host_is_taken_in_the_middle_of_a_round_trip(host: Host) -> None:
    before = time.monotonic()
    host.ping()
    assert host.read_offset() is None
    host.pong = Message(what="pong", number=0, at=0.0)  # an older answer
    assert host.read_offset() is None
    host.pong, host.ponged_at = Message(what="pong", number=1, at=before + 3600.0), time.monotonic()
    reading = host.read_offset()

    assert reading is not None
    error_s, offset_s = reading
    assert 0 <= error_s <= (time.monotonic() - before) / 2
    assert offset_s == pytest.approx(-3600.0, abs=time.monotonic() - before)


def test_the_best_first_offset_counts_and_later_ones_widen_its_error(host: Host) -> None:
    host.set_offset([(0.2, 7.0), (0.1, 5.0)])
    assert (host.offset_s, host.error_s) == (5.0, 0.1)
    host.set_offset([(0.25, 5.5)])
    assert (host.offset_s, host.error_s) == (5.0, 0.75)
    host.set_offset([])
    assert (host.offset_s, host.error_s) == (5.0, math.inf)
