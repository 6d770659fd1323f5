"""A pool, with jobs and servers that are made up: who gets slots by its policy, and when its controller gives up."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from support.timelines import ERROR, JOB

from pytest_distbench.elastic.engines import CannotGoOn
from pytest_distbench.elastic.pool import EXIT_S, PoolController, SharingJob, decide
from pytest_distbench.elastic.records import SERVING, Demand, ElasticJob, Policy, Sharing, event
from pytest_distbench.records.record import replace
from pytest_distbench.records.wire import Event, EventReader, append, read_events


class Nodes:
    """Nodes of one job: a generation begins a second after each change, and then each steps ten times a second."""

    def __init__(self, world: World, name: str, steps: int) -> None:
        self.world = world
        self.timeline = world.folder / f"{name}.jsonl"
        self.steps = steps
        self.nodes: set[int] = set()
        self.begins: float | None = None
        self.generation = -1
        self.step = 0
        self.leave_s = 0.3
        self.ending: list[tuple[float, int]] = []
        self.is_closed = False
        self.killed: set[int] = set()

    def tick(self) -> None:
        now = self.world.now
        if self.begins is not None and now >= self.begins:
            self.begins = None
            self.generation += 1
            for rank, slot in enumerate(sorted(self.nodes)):
                place = {"generation": self.generation, "rank": rank, "world_size": len(self.nodes)}
                self.note(event("joined", t=now, slot=slot, pid=slot, **place))
        elif self.begins is None and self.step < self.steps and self.nodes:
            self.step += 1
            for slot in sorted(self.nodes):
                done = {"generation": self.generation, "step": self.step, "world_size": len(self.nodes), "samples": 1}
                self.note(event("stepped", t=now, slot=slot, **done))
                if self.step == self.steps:
                    self.note(event("finished", t=now, slot=slot, generation=self.generation))
                    self.ending.append((now + 0.2, slot))

    def note(self, line: Event) -> None:
        append(self.timeline, line)

    def join(self, slot: int) -> None:
        self.nodes.add(slot)
        self.begins = self.world.now + 1.0

    def leave(self, slot: int) -> None:
        self.nodes.discard(slot)
        self.ending.append((self.world.now + self.leave_s, slot))
        self.begins = self.world.now + 1.0

    def kill(self, slot: int) -> None:
        self.killed.add(slot)

    def crash(self, slot: int) -> None: ...

    def stop(self, slot: int) -> None: ...

    def go_on(self, slot: int) -> None: ...

    def poll(self) -> list[Event]:
        now = self.world.now
        over = [slot for t, slot in self.ending if t <= now]
        self.ending = [(t, slot) for t, slot in self.ending if t > now]
        return [event("agent_ended", t=now, slot=slot, code=0) for slot in over]

    def log(self, slot: int) -> str:
        return f"log of {slot}"

    def close(self) -> None:
        self.is_closed = True


class SimulatedServers:
    """Servers that are ready two seconds after their start, and end when they are asked to."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.ended: dict[int, int] = {}
        self.is_closed = False
        self.load_s = 2.0

    def start(self, slot: int) -> None:
        now = self.world.now
        ready = event("server_ready", t=now, slot=slot)
        self.world.at.append((now + self.load_s, lambda: append(self.world.timeline, ready)))

    def stop(self, slot: int) -> None:
        self.ended[slot] = 0

    def poll(self) -> dict[int, int]:
        ended, self.ended = self.ended, {}
        return ended

    def log(self, slot: int) -> str:
        return f"log of {slot}"

    def close(self) -> None:
        self.is_closed = True


class World:
    """A pool whose time is made up: each look takes a tenth of a second."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.now = 100.0
        self.nodes: dict[str, Nodes] = {}
        self.wanted: list[ElasticJob] = []
        self.jobs: list[SharingJob] = []
        self.servers = SimulatedServers(self)
        self.timeline = folder / "pool.jsonl"
        self.at: list[tuple[float, Callable[[], None]]] = []

    def job(
        self,
        name: str,
        least: int,
        most: int,
        *,
        steps: int = 100,
        submit_s: float = 0.0,
        settle_s: float = 30,
        ends_after: int | None = None,
    ) -> None:
        nodes = self.nodes[name] = Nodes(self, name, steps)
        timers = {**JOB.timers, "settle_s": settle_s}
        job = replace(JOB, least=least, most=most, start=least, timers=timers, ends_after=ends_after)
        wanted = replace(job, name=name, submit_s=submit_s)
        self.wanted.append(wanted)
        self.jobs.append(SharingJob(wanted, nodes, nodes.timeline, clock=lambda: self.now))

    def sleep(self, seconds: float) -> None:
        self.now += 0.1
        for nodes in self.nodes.values():
            nodes.tick()
        for t, act in [(t, act) for t, act in self.at if t <= self.now]:
            self.at.remove((t, act))
            act()
        assert self.now < 1000, "it never ends"

    def run(self, policy: Policy, slots: int, *, demand: Demand = ()) -> list[Event]:
        pool = Sharing(slots=slots, policy=policy, jobs=self.wanted, demand=[*demand])
        servers = self.servers if demand else None
        PoolController(pool, self.jobs, self.timeline, servers=servers, clock=lambda: self.now, sleep=self.sleep).run()
        return EventReader(self.timeline).read()


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def held(lines: list[Event], what: str, owner: str) -> list[int]:
    return [line.slot for line in lines if line.what == what and line.owner == owner]


def test_gang_lets_the_second_job_wait_until_all_its_slots_are_free(world: World) -> None:
    world.job("A", 1, 1)
    world.job("B", 2, 2, submit_s=1)
    lines = world.run("gang", 2)

    ended = next(line.t for line in lines if line.what == "ended" and line.job == "A")
    granted = [line.t for line in lines if line.what == "granted" and line.owner == "B"]
    assert len(granted) == 2
    assert min(granted) >= ended
    assert all(nodes.is_closed for nodes in world.nodes.values())


def test_elastic_starts_the_second_job_at_once_and_lets_it_grow(world: World) -> None:
    world.job("A", 1, 1, steps=50)
    world.job("B", 1, 2, submit_s=1, steps=200)
    lines = world.run("elastic", 2)

    began = next(line.t for line in lines if line.what == "clock_began")
    first, second = (line.t - began for line in lines if line.what == "granted" and line.owner == "B")
    assert first == pytest.approx(1.0, abs=0.3)
    assert second > 4
    changed = [line for line in read_events(world.nodes["B"].timeline) if line.what in ("changed", "stable")]
    assert [type(line) for line in changed] == [Event, Event, Event]
    assert (changed[1].kind, changed[1].expected) == ("join", [0, 1])  # type: ignore[union-attr]


def test_a_serving_takes_slots_when_its_demand_rises_and_gives_them_back(world: World) -> None:
    world.job("train", 1, 2, steps=300)
    demand: Demand = [(5, 1), (10, 0)]
    lines = world.run("elastic", 2, demand=demand)

    assert world.servers.is_closed
    assert [line.slots for line in lines if line.what == "demanded"] == [1, 0]
    assert held(lines, "asked", "train") == [1]
    assert held(lines, "granted", SERVING) == held(lines, "freed", SERVING) == [1]
    assert held(lines, "granted", "train") == [0, 1, 1]


def test_a_body_that_raises_ends_the_pool(world: World) -> None:
    world.job("A", 1, 1)
    world.job("B", 1, 1)
    raised = event("raised", t=105, slot=1, pid=1, generation=0, error=ERROR)
    world.at = [(105.0, lambda: world.nodes["B"].note(raised))]

    with pytest.raises(CannotGoOn, match="the body raised in slot 1, generation 0: ValueError: no"):
        world.run("elastic", 2)
    assert world.nodes["A"].is_closed


def test_a_slot_that_is_not_given_back_is_an_error(world: World) -> None:
    world.job("A", 1, 2, steps=1000, settle_s=5)
    world.job("B", 1, 1, submit_s=2)
    world.nodes["A"].leave_s = 1000.0

    with pytest.raises(CannotGoOn, match="job A: slot 1 was not returned 5 s after its agent received SIGTERM"):
        world.run("elastic", 2)


def test_a_node_that_ends_unasked_is_an_error(world: World) -> None:
    world.job("A", 1, 1)
    world.at = [(105.0, lambda: world.nodes["A"].ending.append((105.0, 0)))]

    with pytest.raises(CannotGoOn, match="job A: the agent of slot 0 ended with exit code 0"):
        world.run("elastic", 1)


@pytest.mark.parametrize(
    ("happens", "text"),
    [
        ("raises", "the serving failed in slot 1: no such model"),
        ("ends", r"the server in slot 1 ended with exit code 3; its log:\nlog of 1"),
    ],
)
def test_a_serving_that_fails_ends_the_pool(world: World, happens: str, text: str) -> None:
    world.job("train", 1, 2, steps=300)
    failed = event("server_failed", t=106, slot=1, error="no such model")
    acts: dict[str, Callable[[], None]] = {
        "raises": lambda: append(world.timeline, failed),
        "ends": lambda: world.servers.ended.update({1: 3}),
    }
    world.at = [(106.0, acts[happens])]
    world.servers.load_s = 100.0

    with pytest.raises(CannotGoOn, match=text):
        world.run("elastic", 2, demand=[(2, 1)])


def test_a_training_that_is_over_before_the_demand_fails(world: World) -> None:
    world.job("train", 1, 2, steps=20)
    demand: Demand = [(1, 0), (50, 1)]

    with pytest.raises(CannotGoOn, match=r"over after \d.\d s, and the demand goes on until 50 s"):
        world.run("elastic", 2, demand=demand)


def test_a_job_whose_agents_do_not_end_is_ended(world: World) -> None:
    world.job("A", 1, 1, steps=20)
    world.nodes["A"].poll = list  # type: ignore[method-assign]
    lines = world.run("gang", 1)

    finished = 100 + 1 + 2
    assert next(line.t for line in lines if line.what == "ended") == pytest.approx(finished + EXIT_S, abs=1)
    assert world.nodes["A"].killed == {0}


def test_elastic_makes_room_for_a_job_that_could_not_start(world: World) -> None:
    world.job("A", 1, 2)
    world.job("B", 1, 2, submit_s=2)
    lines = world.run("elastic", 2)

    assert held(lines, "asked", "A") == [1]
    assert held(lines, "freed", "A")[0] == 1
    assert held(lines, "granted", "B") == [1, 0]


def test_a_training_may_end_so_many_steps_after_the_last_demand_has_given_its_slots_back(world: World) -> None:
    world.job("train", 1, 2, steps=300, ends_after=40)
    demand: Demand = [(5, 1), (10, 0)]
    world.run("elastic", 2, demand=demand)
    lines = read_events(world.nodes["train"].timeline)
    last = [line.t for line in lines if line.what == "stable" and line.world_size == 2][-1]
    then = max(line.step for line in lines if line.what == "stepped" and line.t <= last)

    assert int((world.folder / "last_step").read_text()) == then + 40


def test_a_server_that_loads_is_not_asked_to_go_before_it_is_ready(world: World) -> None:
    """Though the training is over before."""
    world.job("train", 1, 2, steps=60)
    world.servers.load_s = 40.0
    lines = world.run("elastic", 2, demand=[(2, 1), (4, 0)])

    [ready] = [index for index, line in enumerate(lines) if line.what == "server_ready"]
    [asked] = [index for index, line in enumerate(lines) if line.what == "asked" and line.owner == SERVING]
    assert ready < asked


def holder(name: str, *slots: int, least: int = 1, most: int = 2, is_stable: bool = True) -> SharingJob:
    spare = max(0, len(slots) - least)
    found = SimpleNamespace(name=name, least=least, most=most, slots={*slots}, is_stable=is_stable, spare=spare)
    return cast("SharingJob", found)


def test_jobs_start_and_grow_as_gang_or_elastic_lets_them() -> None:
    a, b = holder("A", 0, 1), holder("B")
    assert decide("gang", [holder("A"), b], free=[0, 1]) == ([("A", 0), ("A", 1)], [])
    assert decide("gang", [a, b], free=[2]) == ([], [])
    assert decide("gang", [b], free=[0, 1])[0] == [("B", 0), ("B", 1)]

    a = holder("A", 0, most=1)
    assert decide("elastic", [a, holder("B")], free=[1])[0] == [("B", 1)]
    assert decide("elastic", [holder("B", 1)], free=[0])[0] == [("B", 0)]

    assert decide("elastic", [holder("A", 0, 1), holder("B")], free=[]) == ([], [("A", 1)])

    a, b = holder("A", 0, 1), holder("B", least=2)
    assert decide("elastic", [a, b], free=[]) == ([], [])
    assert decide("elastic", [holder("A", 0), holder("B")], free=[], coming=1) == ([], [])

    assert decide("elastic", [holder("A", 0, is_stable=False)], free=[1]) == ([], [])
    assert decide("elastic", [holder("A", 0, 1, is_stable=False), holder("B")], free=[]) == ([], [])

    large, small = holder("large", least=2), holder("small", least=1, most=1)
    assert decide("gang", [holder("A", 0), large, small], free=[1]) == ([], [])
    assert decide("elastic", [holder("A", 0, least=1), large, small], free=[1]) == ([], [])


def test_serving_takes_from_jobs_that_can_spare_and_gives_back() -> None:
    a = holder("A", 0, 1, 2, most=3, is_stable=False)
    assert decide("elastic", [a], free=[3], wanted=2) == ([(SERVING, 3)], [("A", 2)])
    assert decide("elastic", [a], free=[], coming=1, wanted=1) == ([], [])
    assert decide("elastic", [holder("A", 0)], free=[], wanted=1) == ([], [])

    a = holder("A", 0)
    assert decide("elastic", [a], free=[], servers=[1, 2], wanted=1) == ([], [(SERVING, 2)])
    assert decide("elastic", [a], free=[2], servers=[1], wanted=1) == ([("A", 2)], [])

    jobs = [holder("A", 0, 1, 2, most=3), holder("B", 3, 4)]
    assert decide("elastic", jobs, free=[], wanted=2)[1] == [("A", 2), ("B", 4)]
    assert decide("elastic", jobs, free=[], wanted=3)[1] == [("A", 2), ("B", 4), ("A", 1)]
