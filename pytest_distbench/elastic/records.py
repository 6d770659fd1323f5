"""An elastic job, a pool of them, and what became of both.

A *slot* is a place for a node of a job, from 0; a *generation* is what lies between two changes of membership. The jobs
of a pool share its slots, and a serving goes before them. All seconds of a pool's results are since its clock began:
with the first step of the first job. What came before it is negative.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

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
    """What changes the membership: a row of ``elastic/engines/table.py``."""
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
            f"{self.nodes} nodes, {self.start} at the start, {self.plan}{', held' if self.hold else ''}{end}; "
            f"{self._checkpoints}; engine {engine}, {timers}"
            + (f"; oversubscribed: {self.cores} cores" if self.cores is not None else "")
        )

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


class Moment(Record, frozen=True, kw_only=True):
    """One step of a training, as it stood: nothing is smoothed."""

    step: int
    epoch: int | None = None
    loss: float | None = None
    """Mean over the workers that told of it."""
    accuracy: float | None = None
    lr: float | None = None


class ChangeResult(Record, frozen=True, kw_only=True):
    index: int
    kind: ChangeKind
    slots: list[int]
    at_s: float
    """Since the first step of the run, by the clock on the wall."""
    before: int
    """Workers that stepped before it."""
    after: int | None = None
    """The same when the job was stable again; None: it never was."""
    overlapped: bool = False
    """Another change came before it was over: its cost cannot be told from that one's."""
    stall_s: float | None = None
    """From the last step before it was interrupted to the first one after; of the survivor that waited longest."""
    recovery_s: float | None = None
    """From the change itself to that step. Of a join it holds the newcomer's start, while others still train."""
    parts: dict[str, float] = {}
    """Seconds of the recovery in each of :data:`PARTS`, as far as seen, on that survivor."""
    steps_redone: int = 0
    redone_s: float = 0.0
    """Median steps of the world size before, as many as were redone."""
    rounds: int = 0
    """Generations it took; more than one: the job flapped."""
    restarts_used: int = 0
    """Of torchrun's ``--max-restarts``, by the survivor that used most."""
    joiner_ready_s: float | None = None
    """From the change to the newcomer's first step."""
    slot_free_s: float | None = None
    """Of a leave: from the change until the agents of its nodes have ended, and their places are free."""
    before_it: Moment | None = None
    """The last step before it that anybody took."""
    after_it: Moment | None = None
    """The first one after it; None: there was none, or nobody began anew."""

    @property
    def unaccounted_s(self) -> float | None:
        return None if self.recovery_s is None else self.recovery_s - sum(self.parts.values())


class RateChange(Record, frozen=True, kw_only=True):
    step: int
    epoch: int | None
    nodes: int
    lr: float


class EpochResult(Record, frozen=True, kw_only=True):
    """One epoch, as its last pass through each step left it."""

    epoch: int
    seconds: float
    """From the end of the epoch before, stalls and redone steps included."""
    nodes: list[int]
    """World sizes in it, in their order."""
    loss: float | None = None
    """Mean over its samples."""
    accuracy: float | None = None
    """The same, where the body or the script tells of it; of few steps of the epoch, over those."""
    top5: float | None = None
    lr: float | None = None
    """Of its last step."""
    changes: list[int] = []
    """Indices of the changes that happened in it."""
    stall_s: float = 0.0
    steps_redone: int = 0


class WorkerResult(Record, frozen=True, kw_only=True):
    """One worker: a slot in a generation. Seconds are since the run's first step, by the clock on the wall."""

    slot: int
    generation: int
    rank: int
    world_size: int
    process_s: float | None
    """When its process was made; None: unseen."""
    imported_s: float | None
    joined_s: float
    loaded_s: float | None
    """When it had what the checkpoint held; None: it did not come so far."""
    resumed_at: int | None
    first_step_s: float | None
    last_step_s: float | None
    steps: int

    @property
    def spans(self) -> list[tuple[str, float, float]]:
        """What it did, each with its begin and end, as far as seen."""
        if self.loaded_s is None:  # of a script, or it did not come so far
            start = [("to the first step", self.joined_s, self.first_step_s)]
        else:
            start = [("build and load", self.joined_s, self.loaded_s), ("first step", self.loaded_s, self.first_step_s)]
        spans = [
            ("import", self.process_s, self.imported_s),
            ("group init", self.imported_s, self.joined_s),
            *start,
            (f"train on {self.world_size}", self.first_step_s, self.last_step_s),
        ]
        return [(what, begin, max(begin, end)) for what, begin, end in spans if begin is not None and end is not None]


class ElasticResult(Record, frozen=True, kw_only=True):
    job: ElasticJob
    changes: list[ChangeResult]
    epochs: list[EpochResult]
    workers: list[WorkerResult]
    """By generation and slot."""
    lr: list[RateChange] = []
    """The trace of the learning rate: its first step, and those where it changes."""
    start_s: float
    """From the start of the agents to the end of the first step."""
    training_s: float
    """From there to the end of the last one."""
    end_s: float
    """From there until all workers had finished."""


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


class Demand(Record, frozen=True, kw_only=True):
    """Slots that the serving should have from a moment on."""

    at_s: float
    slots: int


class Serving(Record, frozen=True, kw_only=True):
    """An inference process in as many slots as its timetable says."""

    demand: list[Demand]
    """By time; before the first it has no slot."""

    def slots(self, at_s: float) -> int:
        return next((demand.slots for demand in reversed(self.demand) if demand.at_s <= at_s), 0)

    def __str__(self) -> str:
        return f"serving on {', '.join(f'{demand.slots} from {demand.at_s:g} s' for demand in self.demand)}"


class Sharing(Record, frozen=True, kw_only=True):
    slots: int
    policy: Policy
    jobs: list[PoolJob]
    """In the order in which they are submitted."""
    serving: Serving | None = None
    compute: Compute = "real"
    cores: int | None = None
    """Of this host, where there are fewer of them than slots: the pool is oversubscribed."""

    def __str__(self) -> str:
        words = [f"{self.slots} slots, {self.policy}"]
        words += map(str, self.jobs)
        first = self.jobs[0].job
        words.append(f"engine {first.engine}" + (f" (in place of {first.in_place_of})" if first.in_place_of else ""))
        words += [str(self.serving)] if self.serving is not None else []
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


class Hold(Record, frozen=True, kw_only=True):
    """A slot, for as long as somebody had it."""

    slot: int
    owner: str
    """A job, or :data:`SERVING`."""
    begin_s: float
    end_s: float
    asked_s: float | None = None
    """When its owner was asked to give it back; None: nobody asked."""
    ready_s: float | None = None
    """Of a server: when it was ready."""


class PoolJobResult(Record, frozen=True, kw_only=True):
    name: str
    submitted_s: float
    started_s: float | None = None
    """Its first step; None: it took none."""
    ended_s: float | None = None
    workers: list[tuple[float, int]] = []
    """From when on how many trained together."""
    elastic: ElasticResult | None = None
    """Its changes, epochs and workers, whose seconds are since its own first step."""


class Preemption(Record, frozen=True, kw_only=True):
    """A demand for more slots than the serving had."""

    at_s: float
    slots: int
    """More, that it needed."""
    free_s: float | None = None
    """Until they were free; None: they never were."""
    ready_s: float | None = None
    """Until the last of its servers was ready."""


class Stretch(Record, frozen=True, kw_only=True):
    """A stretch of time in which the slots and the demand were the same."""

    begin_s: float
    end_s: float
    wanted: int
    """Slots that the serving should have."""
    serving: int
    """That it had."""
    training: int


class PoolResult(Record, frozen=True, kw_only=True):
    pool: Sharing
    makespan_s: float
    """From the first submission to the end of the last job."""
    idle_gap_s: float
    """The longest time between two steps in which no job trained."""
    allocated: float
    """Share of the slots' seconds that somebody had them."""
    productive: float
    """Share that went into steps that counted, and into servers that were ready."""
    jobs: list[PoolJobResult]
    holds: list[Hold]
    stretches: list[Stretch] = msgspec.field(default_factory=list, name="moments")
    """Of a pool with a serving."""
    preemptions: list[Preemption] = []
