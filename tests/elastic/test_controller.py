"""The controller of an elastic job: carries out a membership plan, and says why a job does not come to rest."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.timelines import ERROR, JOB, LOST, but

from pytest_distbench.elastic import crash, cycle, join, kill, leave, stop
from pytest_distbench.elastic.controller import Controller, WorkerEnds
from pytest_distbench.elastic.engines import CannotGoOn
from pytest_distbench.elastic.progress import explain_agent_end, explain_slow, explain_unstable
from pytest_distbench.elastic.records import Change, ChangeKind, Cycle, ElasticJob, event
from pytest_distbench.errors import ReadingError
from pytest_distbench.read import stdout
from pytest_distbench.records.launch import ErrorReport
from pytest_distbench.records.record import Number, replace
from pytest_distbench.records.wire import Event, append, read_events

CHANGED = event("changed", t=10.0, index=0, kind="kill", slots=[1], expected=[0])
MET = event("rendezvous", t=11.0, slot=0, seconds=1.0)
STARTED = event("started", t=12.0, slot=0, pid=7, process_t=11.5, restarts=1)
JOINED = event("joined", t=13.0, slot=0, pid=7, generation=1, rank=0, world_size=1)
RAISED = event("raised", t=14.0, slot=0, pid=7, generation=1, error=ERROR)

RAISED_EARLY = event("raised", t=12.5, slot=0, pid=7, generation=None, error=ERROR)


@pytest.mark.parametrize(
    ("since", "change", "told"),
    [
        ([], kill(at_s=1), "Scale-down unnoticed: no survivor restarted."),
        ([MET, STARTED], join(at_s=1), "Hang on join: agents have met and started workers, and no worker has joined"),
        ([MET], join(at_s=1), "Hang on join: agents have met, and no worker has joined a group."),
        ([], join(at_s=1), "No rendezvous: agents wait for each other."),
        ([MET, STARTED, JOINED, RAISED], kill(at_s=1), "Workers raised 1 times, the last time ValueError: no"),
        ([MET, STARTED, RAISED_EARLY], join(at_s=1), "Workers raised 1 times, the last time ValueError: no"),
        ([MET, STARTED, JOINED], kill(at_s=1), "Slots that joined a group: 0"),
    ],
)
def test_a_job_that_does_not_become_stable_is_explained(since: list[Event], change: Change, told: str) -> None:
    text = explain_unstable(
        [event("started", t=1.0, slot=0, pid=1, process_t=0.0, restarts=0), CHANGED, *since], {0}, change, JOB
    )

    assert text.startswith(f"not stable 120 s after {change}: 1 nodes should train together, and of slot 0 there is no")
    assert told in text


@pytest.mark.parametrize(("restarts", "code", "is_explained"), [(3, 1, True), (2, 1, False), (3, -9, False)])
def test_an_agent_without_restarts_left_is_explained(restarts: int, code: int, is_explained: bool) -> None:
    job = replace(JOB, timers={**JOB.timers, "max_restarts": 3})
    lines = [CHANGED, but(STARTED, restarts=restarts)]
    text = explain_agent_end(lines, event("agent_ended", t=9.0, slot=0, code=code), job, log="the end")

    assert text.startswith(f"the agent of slot 0 ended with exit code {code} by itself")
    assert text.endswith("; its log:\nthe end")
    assert ("Restarts used up: it had taken 3 of --max-restarts=3, in 1 changes of membership" in text) is is_explained


def slow(kind: ChangeKind, part: str, seconds: float, *, after: int = 1) -> Event:
    sizes = {"index": 0, "kind": kind, "slots": [1], "before": 2, "after": after}
    return event("change", t=5.0, **sizes, recovery_s=seconds + 1, parts={part: seconds})


@pytest.mark.parametrize(
    ("change", "timers", "told"),
    [
        (slow("kill", "rendezvous", 34.0), {"last_call_s": 30}, "last_call_timeout (30 s): below MAX nodes"),
        (slow("kill", "rendezvous", 34.0), {"keep_alive_s": 5}, "keep_alive_max_attempt (15 s)"),
        (slow("join", "rendezvous", 62.0, after=2), {}, "the store's timeout (60 s)"),
        (slow("join", "rendezvous", 40.0, after=2), {}, "agents joined it late, or again and again"),
        (slow("kill", "process_start", 40.0), {}, "process start took 40 s: torchrun took so long to start"),
        (slow("kill", "checkpoint_load", 40.0), {}, "checkpoint load took 40 s: loading"),
        (slow("leave", "stop", 31.0), {}, "a handler of SIGTERM must end soon"),
        (slow("kill", "detect", 31.0), {}, "init_process_group(timeout=...)"),
    ],
)
def test_a_slow_recovery_is_explained_by_its_largest_part_and_its_setting(
    change: Event, timers: dict[str, Number], told: str
) -> None:
    text = explain_slow(change, replace(JOB, timers={**JOB.timers, **timers}))

    assert text.startswith(f"recovery of {change.recovery_s:.0f} s after the {change.kind} at 5.0 s, of which ")
    assert told in text


def started(slot: int, pid: int) -> Event:
    return event("started", t=0.0, slot=slot, pid=pid, process_t=0.0, restarts=0)


def test_a_worker_has_ended_once_and_one_that_was_gone_before_has_too() -> None:
    ends = WorkerEnds(clock=lambda: 5.0)
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    ends.watch(started(0, process.pid))
    ends.watch(started(1, 2**22 + 1))

    assert ends.poll() == [event("worker_ended", t=5.0, slot=1, pid=2**22 + 1)]
    process.communicate(b"\n")
    assert ends.poll() == [event("worker_ended", t=5.0, slot=0, pid=process.pid)]
    assert ends.poll() == []
    ends.close()


class SimulatedNodes:
    """Nodes that begin a generation a second after each change, and then step ten times a second."""

    def __init__(self, timeline: Path, *, steps: int) -> None:
        self.timeline = timeline
        self.now = 100.0
        self.steps = steps
        self.deaf = False
        """Survivors do not notice that a node has gone."""
        self.nodes: set[int] = set()
        self.still: set[int] = set()
        self.generation = -1
        self.begins: float | None = None
        self.step = 0
        self.events: list[Event] = []
        self.raises: ErrorReport | None = None
        self.saves: dict[int, int] = {}
        """Step -> that of the checkpoint which is written with it."""
        self.calls: list[str] = []
        self.is_closed = False

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        """A tenth of a second passes, and a step with it."""
        self.now += 0.1
        if self.begins is not None and self.now >= self.begins:
            self.begins = None
            self.generation += 1
            for rank, slot in enumerate(sorted(self.nodes)):
                of = {"t": self.now, "slot": slot, "pid": slot}
                append(self.timeline, event("started", **of, process_t=self.now, restarts=0))
                place = {"generation": self.generation, "rank": rank, "world_size": len(self.nodes)}
                append(self.timeline, event("joined", **of, **place))
        elif self.begins is None and not self.still and self.step < self.steps:
            self.step += 1
            for slot in self.nodes:
                self._step(slot)
            if self.step in self.saves:
                of = {"t": self.now, "slot": 0, "generation": self.generation}
                append(self.timeline, event("saved", **of, step=self.saves[self.step], seconds=0.0))

    def _step(self, slot: int) -> None:
        of = {"t": self.now, "slot": slot, "generation": self.generation}
        append(self.timeline, event("stepped", **of, step=self.step, world_size=len(self.nodes), samples=1))
        if self.raises is not None:
            append(self.timeline, event("raised", **of, pid=slot, error=self.raises))
        if self.step == self.steps:
            append(self.timeline, event("finished", **of))
            self.events.append(event("agent_ended", t=self.now, slot=slot, code=0))

    def join(self, slot: int) -> None:
        self._change(f"join {slot}", {*self.nodes, slot})

    def leave(self, slot: int) -> None:
        self._change(f"leave {slot}", self.nodes - {slot})

    def kill(self, slot: int) -> None:
        self._change(f"kill {slot}", self.nodes - {slot})
        self.events.append(event("agent_ended", t=self.now, slot=slot, code=-9))

    def crash(self, slot: int) -> None:
        self._change(f"crash {slot}", self.nodes)

    def stop(self, slot: int) -> None:
        self.calls.append(f"stop {slot}")
        self.still.add(slot)

    def go_on(self, slot: int) -> None:
        self.calls.append(f"go on {slot}")
        self.still.discard(slot)

    def _change(self, call: str, nodes: set[int]) -> None:
        self.calls.append(call)
        self.nodes = nodes
        if not self.deaf or call.startswith("join"):
            self.begins = self.now + 1.0

    def poll(self) -> list[Event]:
        events, self.events = self.events, []
        return events

    def log(self, slot: int) -> str:
        return f"log of {slot}"

    def close(self) -> None:
        self.is_closed = True


class Slow(SimulatedNodes):
    """Workers go on until they are found and killed."""

    def crash(self, slot: int) -> None:
        for _ in range(5):
            self.sleep(0.1)
        super().crash(slot)


class Split(SimulatedNodes):
    """Slot 1 counts as lost, and trains on alone."""

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        if self.generation > 0:
            line = event("stepped", t=self.now, slot=1, generation=0, step=self.step, world_size=1, samples=1)
            append(self.timeline, line)


class Broken(SimulatedNodes):
    def poll(self) -> list[Event]:
        raise CannotGoOn("no forkserver")


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., SimulatedNodes]:
    """Run a plan with simulated nodes, from one to three."""

    def make(
        plan: Cycle | list[Change],
        *,
        kind: type[SimulatedNodes] = SimulatedNodes,
        steps: int = 100,
        start: int = 1,
        hold: bool = False,
        ends_after: int | None = None,
        **traits: object,
    ) -> SimulatedNodes:
        engine = kind(tmp_path / "timeline", steps=steps)
        for name, value in traits.items():
            setattr(engine, name, value)
        job: ElasticJob = replace(JOB, most=3, start=start, plan=plan, hold=hold, ends_after=ends_after)
        try:
            Controller(job, engine, engine.timeline, clock=engine.clock, sleep=engine.sleep).run()
        finally:
            assert engine.is_closed
        return engine

    return make


@pytest.mark.parametrize(
    ("plan", "start", "calls"),
    [
        ([join(at_s=1, nodes=2), kill(at_s=2, slot=0)], 1, ["join 0", "join 1", "join 2", "kill 0"]),
        ([kill(at_s=1, slot=0), join(at_s=1, overlaps=True)], 2, ["join 0", "join 1", "kill 0", "join 0"]),
    ],
)
def test_a_plan_is_carried_out_and_the_job_waited_for(
    run: Callable[..., SimulatedNodes], plan: list[Change], start: int, calls: list[str]
) -> None:
    engine = run(plan, start=start)

    assert (engine.calls, engine.step) == (calls, 100)


def test_seconds_of_a_plan_are_of_training_and_each_change_waits_until_the_job_is_stable(
    run: Callable[..., SimulatedNodes],
) -> None:
    lines = read_events(run([join(at_s=1), kill(at_s=2)]).timeline)
    stables = [line for line in lines if line.what == "stable"]
    changes = [line for line in lines if line.what == "changed"]

    assert [(line.index, line.generation, line.world_size) for line in stables] == [(-1, 0, 1), (0, 1, 2), (1, 2, 1)]
    assert [changes[0].t - stables[0].t, changes[1].t - stables[1].t] == pytest.approx([1.0, 1.0], abs=0.25)
    assert stables[1].t - changes[0].t > 1.0


@pytest.mark.parametrize(
    ("given", "steps"),
    [({}, (40, 41)), ({"saves": {33: 30, 46: 40}, "hold": True}, (46, 47))],
    ids=["not held", "held"],
)
def test_a_change_may_wait_for_a_step_or_for_the_checkpoint_behind_which_nodes_hold(
    run: Callable[..., SimulatedNodes], given: dict[str, Any], steps: tuple[int, int]
) -> None:
    lines = read_events(run([join(at_step=40)], **given).timeline)
    [at] = [line.t for line in lines if line.what == "changed"]

    assert max(line.step for line in lines if line.what == "stepped" and line.t <= at) in steps


def test_a_node_that_stands_still_goes_on_in_time(run: Callable[..., SimulatedNodes]) -> None:
    engine = run([stop(at_s=1, for_s=2, slot=0)])
    lines = read_events(engine.timeline)
    [at] = [line.t for line in lines if line.what == "changed"]

    assert engine.calls == ["join 0", "stop 0", "go on 0"]
    assert [line.t > at + 2 for line in lines if line.what == "stable"] == [False, True]


@pytest.mark.parametrize(("kind", "start"), [(SimulatedNodes, 2), (Slow, 1)])
def test_a_worker_that_dies_is_awaited_in_a_generation_of_as_many_with_a_step_behind_its_crash(
    run: Callable[..., SimulatedNodes], kind: type[SimulatedNodes], start: int
) -> None:
    lines = read_events(run([crash(at_s=1)], kind=kind, start=start).timeline)
    stables = [(line.index, line.generation, line.world_size) for line in lines if line.what == "stable"]

    assert stables == [(-1, 0, start), (0, 1, start)]


@pytest.mark.parametrize(
    ("plan", "given", "text"),
    [
        (
            [join(at_s=1), kill(at_s=60)],
            {"steps": 30},
            r"training was over after .* and 30 steps, before kill\(at_s=60\); .* and 16 steps of these .*: change 2",
        ),
        (
            [kill(at_step=29)],
            {"steps": 31, "start": 2},
            r"before the job was stable after kill\(at_step=29\); .* and 2 steps of these .*: change 1 .* shows",
        ),
        (
            [kill(at_s=1)],
            {"steps": 10**6, "start": 2, "deaf": True},
            r"not stable 120 s after kill\(at_s=1\): 1 nodes should.* Scale-down unnoticed",
        ),
        (
            [crash(at_s=1)],
            {"kind": Split, "steps": 200, "start": 2},
            "The job is split: slot 1 still trains in generation 0, while .* in generation 1",
        ),
        ([], {"steps": 10, "raises": ERROR}, "the body raised in slot 0, generation 0: ValueError: no"),
        ([], {"kind": Broken}, "no forkserver"),
    ],
)
def test_a_job_that_cannot_go_on_says_why(
    run: Callable[..., SimulatedNodes], plan: list[Change], given: dict[str, Any], text: str
) -> None:
    with pytest.raises(CannotGoOn, match=text):
        run(plan, **given)


def test_a_body_that_lost_its_peers_does_not_end_the_job(run: Callable[..., SimulatedNodes]) -> None:
    run([], steps=10, raises=LOST)


class SimulatedScript:
    """What a script shows from outside, as lines of simulated nodes."""

    def __init__(self, *, trouble: str = "", unreadable: str = "") -> None:
        self.trouble = trouble
        self.unreadable = unreadable

    def poll(self) -> list[Event]:
        if self.unreadable:
            raise ReadingError(self.unreadable)
        return []

    take_end = finish = lambda self, *_: []

    def last_words(self) -> str:
        return "Rank 0 printed last:\nhello"


@pytest.mark.parametrize(
    ("script", "steps", "text"),
    [
        (SimulatedScript(trouble="the script reached no step"), 100, "the script reached no step"),
        (SimulatedScript(unreadable="the number of the step fell"), 100, "the number of the step fell"),
        (SimulatedScript(), 0, r"not stable 120 s after its start: .*\nRank 0 printed last:\nhello"),
    ],
)
def test_a_script_that_leads_nowhere_is_given_up_with_what_it_said(
    tmp_path: Path, script: SimulatedScript, steps: int, text: str
) -> None:
    engine = SimulatedNodes(tmp_path / "timeline", steps=steps)
    job = replace(JOB, plan=[kill(at_s=1)])
    watch: Any = script

    with pytest.raises(CannotGoOn, match=re.compile(text, re.DOTALL)):
        Controller(job, engine, engine.timeline, script=watch, clock=engine.clock, sleep=engine.sleep).run()


class Late(SimulatedNodes):
    """The last line before a crash comes a moment after it."""

    def crash(self, slot: int) -> None:
        super().crash(slot)
        self.step += 1
        for node in self.nodes:
            self._step(node)


def test_one_line_of_a_script_makes_a_job_stable_but_none_of_a_generation_that_a_crash_ends(tmp_path: Path) -> None:
    engine = Late(tmp_path / "timeline", steps=60)
    job = replace(JOB, most=3, start=2, plan=[crash(at_s=1)])
    watch: Any = SimulatedScript()
    Controller(job, engine, engine.timeline, script=watch, clock=engine.clock, sleep=engine.sleep).run()
    lines = read_events(engine.timeline)
    steps = [line for line in lines if line.what == "stepped"]

    assert [
        (stable.generation, len({s.step for s in steps if s.t <= stable.t and s.generation == stable.generation}))
        for stable in lines
        if stable.what == "stable"
    ] == [(0, 1), (1, 1)]


def test_a_cycle_goes_on_until_the_training_ends(run: Callable[..., SimulatedNodes]) -> None:
    engine = run(cycle(period_s=1))

    assert engine.calls[:4] == ["join 0", "join 1", "leave 1", "join 1"]
    assert read_events(engine.timeline)[0].what == "began"


def test_a_training_may_end_so_many_steps_behind_the_last_change(run: Callable[..., SimulatedNodes]) -> None:
    engine = run([join(at_s=1), leave(at_s=1.5)], ends_after=30)
    lines = read_events(engine.timeline)
    last = [line.t for line in lines if line.what == "stable"][-1]
    then = max(line.step for line in lines if line.what == "stepped" and line.t <= last)

    assert int((engine.timeline.parent / "last_step").read_text()) == then + 30


def test_the_error_for_a_script_without_matching_lines_names_the_pattern() -> None:
    text = explain_unstable([MET, STARTED, JOINED], {0}, None, replace(JOB, steps=stdout(r"step (\d+)")))

    assert r"No step: workers have joined their group, and no line that rank 0 printed since matches" in text


def test_a_recovery_of_seconds_needs_no_words() -> None:
    assert explain_slow(slow("kill", "rendezvous", 20.0), JOB) == ""


def test_a_change_that_overlaps_does_not_wait(run: Callable[..., SimulatedNodes]) -> None:
    lines = read_events(run([join(at_s=1), kill(at_s=1, slot=0, overlaps=True)]).timeline)
    changes = [line for line in lines if line.what == "changed"]

    assert changes[1].t - changes[0].t < 0.5
    assert [line.index for line in lines if line.what == "stable"] == [-1, 1]


def test_a_training_that_ends_by_itself_gets_no_last_step(run: Callable[..., SimulatedNodes]) -> None:
    assert not (run([join(at_s=1)]).timeline.parent / "last_step").exists()
