"""One launch, or several side by side, from plan to record: start, listen, end in time, leave nothing."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from support.plans import make_plan

from pytest_distbench.launch.site import Clocks, Exit, Heard
from pytest_distbench.launch.supervise import Supervised, Turnstile
from pytest_distbench.records.launch import RankReport
from pytest_distbench.records.plan import LaunchPlan
from pytest_distbench.records.record import replace
from pytest_distbench.records.wire import ALL_JOINED, ALL_UP, TURN_REQUEST, Event, RankWord, rank_event


class Group:
    def __init__(self, name: str, log: list[str]) -> None:
        self.name = name
        self.log = log

    def give_turn(self) -> None:
        self.log.append(self.name)


TURNS = {
    "nobody before all have started": ("ask a", ""),
    "one turn a round in the order drawn": ("ask a, ask b, ask b, ask a", "bab"),
    "while one runs the other waits": ("ask b, ask a", "b"),
    "one that ends in its turn frees the other": ("ask a, ask b, leave b, ask a", "baa"),
    "one that never asked does too": ("ask a, leave b", "a"),
    "one that ended waiting gets no turn": ("ask a, leave a, ask b", "b"),
    "nor one that ended before its turn of the round": ("ask a, ask b, leave a, ask b", "bb"),
}


@pytest.mark.parametrize(("calls", "turns"), TURNS.values(), ids=TURNS)
def test_groups_have_a_turn_a_round_in_the_order_drawn_until_they_end(calls: str, turns: str) -> None:
    log: list[str] = []
    groups = {name: Group(name, log) for name in "ab"}
    turnstile = Turnstile(list(groups.values()), lambda order: order.reverse())
    for call in calls.split(", "):
        does, name = call.split()
        getattr(turnstile, does)(groups[name])

    assert "".join(log) == turns


class SimulatedSite:
    """Fulfils the contract without any process: its ranks say what a test says, and what is asked of them is kept."""

    def __init__(self, plan: LaunchPlan) -> None:
        self.heard = Heard()
        self.clocks = Clocks()
        self.ended: Exit | None = None
        self.plan = plan
        self.arrived: list[Event] = []
        self.asked: list[tuple[set[int], bytes]] = []
        self.ended_ranks: set[int] = set()
        self._readable, self._writable = os.pipe()

    def say(self, rank: int, kind: RankWord, text: str = "") -> None:
        self.arrived.append(rank_event(kind, rank, 0.0, text))

    def fileno(self) -> int:
        return self._readable

    def start(self) -> None:
        pass

    def listen(self, timeout_s: float) -> list[Event]:
        fresh, self.arrived = self.arrived, []
        self.heard.take(fresh)
        return fresh

    def ask(self, ranks: Iterable[int], request: bytes) -> None:
        self.asked.append((set(ranks), request))

    def signal(self, rank: int, number: signal.Signals) -> None:
        raise AssertionError(rank)

    def running(self) -> frozenset[int]:
        return frozenset(range(self.plan.processes)) if self.ended is None else frozenset()

    def look(self) -> None:
        pass

    def collect(self, *, undecided: Iterable[int], held: Iterable[int]) -> None:
        pass

    def end(self, ranks: Iterable[int]) -> Exit:
        self.ended_ranks = set(ranks)
        self.ended = Exit()
        return self.ended

    def clear(self) -> Exit:
        return self.ended or Exit()

    def fetch_output(self) -> None:
        pass

    def reports(self) -> dict[int, RankReport]:
        return {}

    def close(self) -> None:
        os.close(self._readable)
        os.close(self._writable)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[SimulatedSite]:
    made = SimulatedSite(replace(make_plan(tmp_path), timeout_s=60.0))
    yield made
    made.close()


@pytest.fixture
def launch(site: SimulatedSite) -> Supervised:
    return Supervised(site, site.plan, lambda text: None, None)


def test_ranks_are_notified_when_all_are_up_and_when_all_have_joined(site: SimulatedSite, launch: Supervised) -> None:
    site.say(0, "hello")
    launch.advance(0.0)
    assert site.asked == []
    site.say(1, "hello")
    launch.advance(0.0)
    assert site.asked.pop() == ({0, 1}, ALL_UP)

    site.say(0, "phase", "rendezvous")
    site.say(0, "phase", "body")
    site.say(0, "done")
    site.say(1, "phase", "rendezvous")
    launch.advance(0.0)
    assert site.asked == []
    site.say(1, "phase", "body")
    launch.advance(0.0)
    assert site.asked == [({0, 1}, ALL_JOINED)]


def test_a_turn_is_given_when_all_ranks_wait_for_it(site: SimulatedSite, launch: Supervised) -> None:
    site.say(0, "turn")
    launch.advance(0.0)
    assert site.asked == []
    site.say(1, "turn")
    launch.advance(0.0)

    assert site.asked == [({0, 1}, TURN_REQUEST)]


def test_a_launch_whose_ranks_have_all_said_how_they_ended_is_over_and_they_are_ended(
    site: SimulatedSite, launch: Supervised
) -> None:
    for rank in range(2):
        site.say(rank, "hello")
        site.say(rank, "failed")
    assert launch.advance(0.0)
    launch.finish()

    assert site.ended_ranks == {0, 1}
    assert launch.record().outcome == "failed"


def test_a_rank_whose_line_has_ended_without_a_word_ends_the_launch_within_a_second(
    site: SimulatedSite, launch: Supervised
) -> None:
    site.say(0, "hello")
    site.heard.close(0, 1.0)
    launch.advance(0.0)

    assert launch.patience() <= 1.0
