"""An elastic job, a pool of them, and what became of both.

A *slot* is a place for a node of a job, from 0; a *generation* is what lies between two changes of membership. The jobs
of a pool share its slots, and a serving goes before them. All seconds of a pool's results are since its clock began:
with the first step of the first job. What came before it is negative.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import msgspec

from pytest_distbench.records.event import Event
from pytest_distbench.records.launch_files import LaunchFiles
from pytest_distbench.records.metric import Reader
from pytest_distbench.records.plan import LaunchPlan, Task, Work
from pytest_distbench.records.record import Number, Record, replace

ChangeKind = Literal["join", "leave", "kill", "crash", "stop"]

SLOT_VARIABLE = "DISTBENCH_SLOT"
"""In the environment of a node's processes: the slot it has."""

NODE_VARIABLE = "DISTBENCH_NODE"
"""In the environment of a node's processes: a word of its own, by which all of them are found."""

IMPORTS_VARIABLE = "DISTBENCH_ELASTIC_IMPORTS"
"""In the environment: modules that a worker imports before its body, with commas between. No launcher prepares it."""

START = -1
"""Index, among the changes of a run, of what is none: the start of the job."""


class Change(Record, frozen=True, kw_only=True):
    """One change of membership: what happens, and when.

    Seconds are those of training: the clock begins when all nodes of the start have taken steps, and stands still from
    a change until the job is stable again.
    """

    kind: ChangeKind
    at_s: float | None = None
    at_step: int | None = None
    """The training's own number of the step; of this and ``at_s`` one is set."""
    nodes: int = 1
    """How many join, leave or are lost."""
    slot: int | None = None
    """Which one; None: of those that join the lowest that are free, of others the highest that are taken."""
    for_s: float | None = None
    """Of a stop: how long."""
    overlaps: bool = False
    """It does not wait until the change before it is over."""

    def __str__(self) -> str:
        when = f"at_s={self.at_s:g}" if self.at_s is not None else f"at_step={self.at_step}"
        words = [when]
        words += [f"nodes={self.nodes}"] if self.nodes != 1 else []
        words += [f"slot={self.slot}"] if self.slot is not None else []
        words += [f"for_s={self.for_s:g}"] if self.for_s is not None else []
        words += ["overlaps=True"] if self.overlaps else []
        return f"{self.kind}({', '.join(words)})"


class Cycle(Record, frozen=True, kw_only=True):
    """Nodes that come and go: after each period of training some join, after the next some leave."""

    period_s: float
    on: int
    off: int
    times: int | None = None
    """How often they come and go; None: until the training ends."""
    by: Literal["leave", "kill"] = "leave"

    def __str__(self) -> str:
        words = [f"period_s={self.period_s:g}", f"on={self.on}", f"off={self.off}"]
        words += [f"times={self.times}"] if self.times is not None else []
        words += [f"by={self.by!r}"] if self.by != "leave" else []
        return f"cycle({', '.join(words)})"


class MembershipPlan(Record, frozen=True, kw_only=True):
    changes: list[Change] = []
    cycle: Cycle | None = None

    def __str__(self) -> str:
        return str(self.cycle) if self.cycle is not None else ", ".join(map(str, self.changes)) or "no change"


class ElasticJob(Record, frozen=True, kw_only=True):
    least: int
    most: int
    """Nodes, each with one worker: fewest and most."""
    start: int
    """Nodes at the beginning."""
    plan: MembershipPlan = MembershipPlan()
    engine: str = "stock"
    """What changes the membership: a row of ``elastic/engines/__init__.py``."""
    in_place_of: str = ""
    """Which engine was asked for and why this one took its place; empty: this one was asked for."""
    version: str = ""
    """Of what the engine runs, as far as it decides about its numbers: ``torch 2.13``."""
    timers: dict[str, Number]
    """How long it waits, by the names in the engine's row; seconds, but for numbers of attempts and restarts."""
    checkpoint_every: int | None = None
    """Steps between two checkpoints; None: of a script, and the test does not say."""
    steps: Reader | None = None
    """Which lines of a script are steps; None: a body says so itself."""
    ends_after: int | None = None
    """Steps behind the last change: with the epoch of that step the training ends. None: when the body says so."""
    cores: int | None = None
    """Of this host, where there are fewer of them than nodes and the test asked for it: no clock means anything."""
    hold: bool = False
    """At the step of each change, which is that of a checkpoint, the nodes wait until the membership has changed."""

    @property
    def settle_s(self) -> Number:
        """Within which the job has to be stable after a change."""
        return self.timers["settle_s"]

    @property
    def collective_s(self) -> Number:
        """After which a collective that lacks a rank fails: without it a lost node is never noticed."""
        return self.timers["collective_s"]

    @property
    def nodes(self) -> str:
        return str(self.least) if self.least == self.most else f"{self.least} to {self.most}"

    def __str__(self) -> str:
        engine = f"{self.engine} (in place of {self.in_place_of})" if self.in_place_of else self.engine
        timers = ", ".join(f"{name}={value:g}" for name, value in self.timers.items())
        end = f", to its end {self.ends_after} steps later" if self.ends_after is not None else ""
        return (
            f"{self.schedule}{', held' if self.hold else ''}{end}; "
            f"{self._checkpoints}; engine {engine}, {timers}"
            + (f"; oversubscribed: {self.cores} cores" if self.cores is not None else "")
        )

    @property
    def schedule(self) -> str:
        return f"{self.nodes} nodes, {self.start} at the start, {self.plan}"

    @property
    def _checkpoints(self) -> str:
        return (
            "checkpoints of its own"
            if self.checkpoint_every is None
            else f"checkpoint every {self.checkpoint_every} steps"
        )


PARTS = (
    "detect", "stop", "rendezvous", "process_start", "import", "group_init", "build", "checkpoint_load", "first_step",
)  # fmt: skip
"""Of a recovery, in their order."""


Policy = Literal["gang", "elastic"]
"""Who gets slots. ``gang``: a job starts when there are all it may have, and keeps them. ``elastic``: a job starts when
there are the fewest it needs, grows into what is free, and gives back what another needs to start."""

Compute = Literal["real", "synthetic"]
"""What bodies say of themselves: they compute, or wait in place of it."""

SERVING = "serving"
"""What the serving is called among the owners of slots."""


class PoolJob(Record, frozen=True, kw_only=True):
    name: str
    submit_s: float
    job: ElasticJob

    def __str__(self) -> str:
        after = self.job.ends_after
        end = f" to {after} steps behind the last demand" if after is not None else ""
        return f"{self.name} on {self.job.nodes} nodes from {self.submit_s:g} s{end}"


Demand = list[tuple[float, int]]
"""From when on how many slots the serving should have, by time; before the first it has none."""


def wanted_at(demand: Demand, at_s: float) -> int:
    return next((slots for since_s, slots in reversed(demand) if since_s <= at_s), 0)


class Sharing(Record, frozen=True, kw_only=True):
    slots: int
    policy: Policy
    jobs: list[PoolJob]
    """In the order in which they are submitted."""
    demand: Demand = []
    """Of the serving, if it has one: an inference process in as many slots."""
    compute: Compute = "real"
    cores: int | None = None
    """Of this host, where there are fewer of them than slots: the pool is oversubscribed."""

    def __str__(self) -> str:
        words = [f"{self.slots} slots, {self.policy}"]
        words += map(str, self.jobs)
        first = self.jobs[0].job
        words.append(f"engine {first.engine}" + (f" (in place of {first.in_place_of})" if first.in_place_of else ""))
        timetable = ", ".join(f"{slots} from {at_s:g} s" for at_s, slots in self.demand)
        words += [f"serving on {timetable}"] if self.demand else []
        words += ["synthetic compute"] if self.compute == "synthetic" else []
        words += [f"oversubscribed: {self.cores} cores"] if self.cores is not None else []
        return "; ".join(words)


class Job(Task, frozen=True, kw_only=True):
    """A training on nodes that come and go."""

    job: ElasticJob

    @property
    def engine(self) -> str:
        return self.job.engine


class Pool(Work, frozen=True, kw_only=True):
    """Jobs that share slots with each other, and with a serving."""

    sharing: Sharing
    tasks: dict[str, Task]
    """What runs, by the owners of slots."""

    @property
    def engine(self) -> str:
        return self.sharing.jobs[0].job.engine

    @property
    def files(self) -> list[str]:
        return [file for task in self.tasks.values() for file in task.files]

    def logs(self, files: LaunchFiles, world_size: int) -> list[tuple[int, Path]]:
        jobs = range(len(self.sharing.jobs))
        return [(slot, files.job(index).log(slot)) for index in jobs for slot in range(world_size)]

    def part(self, plan: LaunchPlan, index: int) -> LaunchPlan:
        """The plan of one job, which lies in a folder of its own."""
        wanted = self.sharing.jobs[index]
        task = self.tasks[wanted.name]
        return replace(
            plan,
            work=Job(body=task.body, params=task.params, seeds=task.seeds, job=wanted.job),
            world_size=wanted.job.most,
            directory=str(plan.files.job(index).directory),
        )


class JobRun:
    """What became of an elastic job, as the events in the record of its launch tell. In a pool it has a name.

    Seconds are since its own first step. When it was submitted, took that step and ended is since the pool's clock
    began.
    """

    def __init__(self, told: Event, events: Sequence[Event]) -> None:
        self.told = told
        self.name: str = told.name
        self.job = msgspec.convert(told.job, ElasticJob)
        mine = [event for event in events if event.facts.get("of") == self.name]
        self.changes, self.epochs, self.workers, self.rates = (
            [event for event in mine if event.what == what] for what in ("change", "epoch", "worker", "rate")
        )

    @property
    def has_stepped(self) -> bool:
        return self.told.training_s is not None

    @property
    def sizes(self) -> list[tuple[float, int]]:
        """From when on how many trained together, by the pool's clock."""
        found: dict[int, tuple[float, int]] = {}
        for worker in self.workers:
            if worker.first_step_s is not None:
                since, size = found.get(worker.generation, (math.inf, 0))
                begin = worker.first_step_s + self.told.started_s
                found[worker.generation] = min(since, begin), max(size, worker.world_size)
        return list(found.values())


def runs_of(events: Sequence[Event]) -> list[JobRun]:
    """The jobs of a launch that have taken steps."""
    runs = [JobRun(event, events) for event in events if event.what == "job"]
    return [run for run in runs if run.has_stepped]


class PoolRun:
    """What became of a pool, as the events in the record of its launch tell. Seconds are since its clock began."""

    def __init__(self, told: Event, events: Sequence[Event]) -> None:
        self.told = told
        self.sharing = msgspec.convert(told.sharing, Sharing)
        self.jobs = [JobRun(event, events) for event in events if event.what == "job"]
        self.holds = [event for event in events if event.what == "hold"]
        self.preemptions = [event for event in events if event.what == "preemption"]
        self.stretches = [event for event in events if event.what == "stretch"]


def pool_of(events: Sequence[Event]) -> PoolRun | None:
    return next((PoolRun(event, events) for event in events if event.what == "pool"), None)


def unaccounted_s(change: Event) -> float | None:
    return None if change.recovery_s is None else change.recovery_s - sum(change.parts.values())


def spans_of(worker: Event) -> list[tuple[str, float, float]]:
    """What a worker did, each with its begin and end, as far as seen."""
    if worker.loaded_s is None:  # of a script, or it did not come so far
        start = [("to the first step", worker.t, worker.first_step_s)]
    else:
        start = [("build and load", worker.t, worker.loaded_s), ("first step", worker.loaded_s, worker.first_step_s)]
    spans = [
        ("import", worker.process_s, worker.imported_s),
        ("group init", worker.imported_s, worker.t),
        *start,
        (f"train on {worker.world_size}", worker.first_step_s, worker.last_step_s),
    ]
    return [(what, begin, max(begin, end)) for what, begin, end in spans if begin is not None and end is not None]
