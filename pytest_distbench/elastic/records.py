"""An elastic job, a pool of jobs, and their results.

A *slot* is a place for a node of a job, from 0; a *generation* is what lies between two changes of membership. The jobs
of a pool share its slots, and a serving has priority over them. All seconds of a pool's results begin with the first
step of the first job. What came before it is negative.

Events stand in a launch's timeline and in its record. A job's are written by its controller and its workers: they have
a slot and, once the worker has joined its group, a generation. A pool's are written by its controller and the servers:
who has which slot, and when servers are ready.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from pytest_distbench.records.launch import ErrorReport
from pytest_distbench.records.launch_files import LaunchFiles
from pytest_distbench.records.metric import Reader
from pytest_distbench.records.plan import LaunchPlan, Task, Work
from pytest_distbench.records.record import Number, Record, replace
from pytest_distbench.records.wire import Event

ChangeKind = Literal["join", "leave", "kill", "crash", "stop"]

SLOT_VARIABLE = "DISTBENCH_SLOT"  # in the environment of a node's processes: the slot it has

NODE_VARIABLE = "DISTBENCH_NODE"
"""Environment variable with a word that is unique to a node, by which all its processes are found."""

IMPORTS_VARIABLE = "DISTBENCH_ELASTIC_IMPORTS"
"""Environment variable: modules that a worker imports before its body, separated by commas. No launcher sets it."""

START = -1  # index, among the changes of a run, of what is none: the start of the job


class Change(Record, frozen=True, kw_only=True):
    """One change of membership: its kind, and when it happens.

    Seconds are those of training: they begin when all nodes of the start have taken steps, and pause from a change
    until the job is stable again.
    """

    kind: ChangeKind
    at_s: float | None = None
    at_step: int | None = None  # the training's own number of the step; of this and ``at_s`` one is set
    nodes: int = 1  # how many join, leave or are lost
    slot: int | None = None
    """Slot to change, or None: the lowest free ones to join, the highest used ones to leave."""
    for_s: float | None = None  # of a stop: how long
    overlaps: bool = False  # it does not wait until the change before it is over

    def __str__(self) -> str:
        when = f"at_s={self.at_s:g}" if self.at_s is not None else f"at_step={self.at_step}"
        words = [when]
        words += [f"nodes={self.nodes}"] if self.nodes != 1 else []
        words += [f"slot={self.slot}"] if self.slot is not None else []
        words += [f"for_s={self.for_s:g}"] if self.for_s is not None else []
        words += ["overlaps=True"] if self.overlaps else []
        return f"{self.kind}({', '.join(words)})"


class Cycle(Record, frozen=True, kw_only=True):
    """Nodes that come and go: some join after the first period of training, leave after the second, and so on."""

    period_s: float
    on: int
    off: int
    times: int | None = None  # how often they come and go; None: until the training ends
    by: Literal["leave", "kill"] = "leave"

    def __str__(self) -> str:
        words = [f"period_s={self.period_s:g}", f"on={self.on}", f"off={self.off}"]
        words += [f"times={self.times}"] if self.times is not None else []
        words += [f"by={self.by!r}"] if self.by != "leave" else []
        return f"cycle({', '.join(words)})"


Plan = Cycle | list[Change]  # when the membership changes: in a cycle, or by a list, in its order


class ElasticJob(Record, frozen=True, kw_only=True):
    name: str = ""  # in a pool, which has several
    submit_s: float = 0.0  # when it is submitted, in seconds of its pool
    least: int
    most: int  # nodes, each with one worker: fewest and most
    start: int  # nodes at the beginning
    plan: Plan = []
    engine: str = "stock"  # what changes the membership: a row of ``elastic/engines/__init__.py``
    in_place_of: str = ""  # which engine was asked for and why this one took its place; empty: this one was asked for
    version: str = ""  # of what the engine runs, as far as it decides about its numbers: ``torch 2.13``
    timers: dict[str, Number]
    """Timers by their names in the engine's row; seconds, or numbers of attempts and restarts."""
    checkpoint_every: int | None = None  # steps between two checkpoints; None: of a script, and the test does not say
    steps: Reader | None = None  # which lines of a script are steps; None: a body says so itself
    ends_after: int | None = None
    """Number of steps after the last change whose epoch is the training's last, or None if the body ends it."""
    cores: int | None = None
    """Cores of this host if the test allows more nodes than cores, or None; timings mean nothing then."""
    hold: bool = False
    """Whether the nodes wait at the step of each change, which has a checkpoint, until the membership has changed."""

    @property
    def stable_within_s(self) -> Number:
        """Seconds within which the job must be stable after a change."""
        return self.timers["settle_s"]

    @property
    def nodes(self) -> str:
        return str(self.least) if self.least == self.most else f"{self.least} to {self.most}"

    def __str__(self) -> str:
        engine = f"{self.engine} (in place of {self.in_place_of})" if self.in_place_of else self.engine
        timers = ", ".join(f"{name}={value:g}" for name, value in self.timers.items())
        end = f", to its end {self.ends_after} steps later" if self.ends_after is not None else ""
        every = self.checkpoint_every
        checkpoints = "checkpoints of its own" if every is None else f"checkpoint every {every} steps"
        cores = f"; oversubscribed: {self.cores} cores" if self.cores is not None else ""
        held = ", held" if self.hold else ""
        return f"{self.schedule}{held}{end}; {checkpoints}; engine {engine}, {timers}{cores}"

    @property
    def schedule(self) -> str:
        return f"{self.nodes} nodes, {self.start} at the start, {self.planned}"

    @property
    def planned(self) -> str:
        return str(self.plan) if isinstance(self.plan, Cycle) else ", ".join(map(str, self.plan)) or "no change"

    @property
    def cycle(self) -> Cycle | None:
        return self.plan if isinstance(self.plan, Cycle) else None

    @property
    def changes(self) -> list[Change]:
        """The changes of a plan that lists them; [] for a cycle."""
        return [] if isinstance(self.plan, Cycle) else self.plan

    @property
    def submission(self) -> str:
        after = self.ends_after
        end = f" to {after} steps behind the last demand" if after is not None else ""
        return f"{self.name} on {self.nodes} nodes from {self.submit_s:g} s{end}"


PARTS = (
    "detect", "stop", "rendezvous", "process_start", "import", "group_init", "build", "checkpoint_load", "first_step",
)  # fmt: skip
"""Parts of a recovery, in their order."""


Policy = Literal["gang", "elastic"]
"""Which job gets slots. ``gang``: a job starts when there are all it may have, and keeps them. ``elastic``: a job
starts when there are the fewest it needs, grows into what is free, and gives back what another needs to start."""

Compute = Literal["real", "synthetic"]  # what bodies say of themselves: they compute, or wait in place of it

SERVING = "serving"  # what the serving is called among the owners of slots


Demand = list[tuple[float, int]]
"""Pairs of (seconds, slots that the serving should have from then on), by time; before the first it has none."""


def wanted_at(demand: Demand, at_s: float) -> int:
    return next((slots for since_s, slots in reversed(demand) if since_s <= at_s), 0)


class Sharing(Record, frozen=True, kw_only=True):
    slots: int
    policy: Policy
    jobs: list[ElasticJob]  # in the order in which they are submitted
    demand: Demand = []  # of the serving, if it has one: an inference process in as many slots
    compute: Compute = "real"
    cores: int | None = None  # of this host, where there are fewer of them than slots: the pool is oversubscribed

    def __str__(self) -> str:
        words = [f"{self.slots} slots, {self.policy}"]
        words += [job.submission for job in self.jobs]
        first = self.jobs[0]
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
    tasks: dict[str, Task]  # what runs, by the owners of slots

    @property
    def engine(self) -> str:
        return self.sharing.jobs[0].engine

    @property
    def files(self) -> list[str]:
        return [file for task in self.tasks.values() for file in task.files]

    def logs(self, files: LaunchFiles, world_size: int) -> list[tuple[int, Path]]:
        jobs = range(len(self.sharing.jobs))
        return [(slot, files.job(index).log(slot)) for index in jobs for slot in range(world_size)]

    def part(self, plan: LaunchPlan, index: int) -> LaunchPlan:
        """The plan of one job of the pool, in a folder of its own."""
        wanted = self.sharing.jobs[index]
        task = self.tasks[wanted.name]
        return replace(
            plan,
            work=Job(body=task.body, params=task.params, seeds=task.seeds, job=wanted),
            world_size=wanted.most,
            directory=str(plan.files.job(index).directory),
        )


class JobRun:
    """Results of an elastic job, from the events in the record of its launch; ``name``: its name in a pool, or "".

    Times are seconds from the job's own first step; its submission, that step and its end are seconds of its pool.
    """

    def __init__(self, summary: Event, events: Sequence[Event]) -> None:
        self.summary = summary
        self.job = msgspec.convert(summary.job, ElasticJob)
        self.name = self.job.name
        mine = [event for event in events if event.facts.get("of") == self.name]
        self.changes, self.epochs, self.workers, self.rates = (
            [event for event in mine if event.what == what] for what in ("change", "epoch", "worker", "rate")
        )

    @property
    def sizes(self) -> list[tuple[float, int]]:
        """Pairs of (seconds of the pool, workers that train together from then on)."""
        found: dict[int, tuple[float, int]] = {}
        for worker in self.workers:
            if worker.first_step_s is not None:
                since, size = found.get(worker.generation, (math.inf, 0))
                begin = worker.first_step_s + self.summary.started_s
                found[worker.generation] = min(since, begin), max(size, worker.world_size)
        return list(found.values())


def runs_of(events: Sequence[Event]) -> list[JobRun]:
    """The jobs of a launch that have taken steps."""
    runs = [JobRun(event, events) for event in events if event.what == "job"]
    return [run for run in runs if run.summary.training_s is not None]


class PoolRun:
    """Results of a pool, from the events in the record of its launch. Seconds begin with its first step."""

    def __init__(self, summary: Event, events: Sequence[Event]) -> None:
        self.summary = summary
        self.sharing = msgspec.convert(summary.sharing, Sharing)
        self.jobs = [JobRun(event, events) for event in events if event.what == "job"]
        self.holds = [event for event in events if event.what == "hold"]
        self.preemptions = [event for event in events if event.what == "preemption"]
        self.stretches = [event for event in events if event.what == "stretch"]


def pool_of(events: Sequence[Event]) -> PoolRun | None:
    return next((PoolRun(event, events) for event in events if event.what == "pool"), None)


def text_of_change(change: Event) -> str:
    return f"{change.kind} of slot {', '.join(map(str, change.slots))}"


def unaccounted_s(change: Event) -> float | None:
    return None if change.recovery_s is None else change.recovery_s - sum(change.parts.values())


def spans_of(worker: Event) -> list[tuple[str, float, float]]:
    """Activities of a worker, each with its begin and end in seconds, as far as observed."""
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


HeldAt = Literal["save", "load", "begin", "step"]
"""When the state of a worker was digested: at a checkpoint; after the load of one; before its first batch; before its
optimizer's first step."""

STEPS = "that steps"  # name of the first optimizer that stepped; of the second: ``that steps (2)``

RANDOM_PART = "random"  # the part that keeps the random state is handed over under this name

OUTSIDE = "outside: "  # what the name of an object begins with that a body has and did not hand over

_NOTE = {"pid": ..., "rank": ..., "world_size": ..., "restarts": ..., "address": ...}

EVENTS: dict[str, dict[str, Any]] = {
    # Nodes are started. The controller changes the membership now; expected are slots that should train from then on.
    "began": {"slots": ...},
    "changed": {"index": ..., "kind": ..., "slots": ..., "expected": ..., "overlaps": False},
    # All slots that should train have taken steps in one generation; of the change that is over, or of the start (-1).
    "stable": {"index": ..., "generation": ..., "world_size": ...},
    # An agent has completed a rendezvous, or has ended. A worker's process is gone, as the controller has seen.
    "rendezvous": {"seconds": ...},
    "agent_ended": {"code": ...},
    "worker_ended": {"pid": ...},
    # A worker runs and has imported what it needs; its process was made at process_t, its agent has used restarts.
    "started": {"pid": ..., "process_t": ..., "restarts": ...},
    # It is in its group. A script asked for it at called_t; until then it imports, and does what it does before.
    "joined": {"pid": ..., "generation": ..., "rank": ..., "world_size": ..., "called_t": None},
    # It has what the newest good checkpoint held, and goes on from that step, 0 where there is none. Torn are the names
    # of newer checkpoints that were passed over, because they are not whole.
    "loaded": {"generation": ..., "began_t": ..., "step": ..., "torn": []},
    # A body asks for batches: what the training is to have trained on when it is over, and the epoch that was under way
    # then. The body ends on purpose with them (is_end): it need not be what was asked for before.
    "wanted": {"generation": ..., "samples": ..., "epochs": ..., "epoch": 0, "is_end": False},
    # It was given samples for a step. Written before the step: what it trains on is known, however it ends. Where it
    # says itself what it has trained on in the step, it drew that, and it counts in place of the batch.
    "batch": {"generation": ..., "step": ..., "epoch": ..., "samples": ...},
    "drew": {"generation": ..., "step": ..., "samples": ...},
    # What its models were given in one of the first steps of a generation: rows by model, over all its calls, are
    # lengths of the first tensor; of_samples, of models whose first call had a row for each sample of the batch, are
    # digests of them, in the batch's order.
    "fed": {"generation": ..., "step": ..., "digest": ..., "rows": {}, "of_samples": {}},
    # Samples are of all ranks, None where nobody knows, as of a script. The epoch is there where no batch has it.
    # Its number is laid: the next one, and how many steps lie between them nobody knows, as a script began an epoch.
    # Loss, accuracy and top5 are of this rank. Updates are steps that optimizers of torch took in it, None: nobody has
    # looked. is_given_up: the gradient of the batch before was given up, and no optimizer had stepped with it.
    "stepped": {
        "generation": ..., "step": ..., "world_size": ..., "samples": None, "epoch": None, "is_laid": False,
        "loss": None, "accuracy": None, "top5": None, "lr": None, "updates": None, "is_given_up": False,
    },
    # What its optimizers remember at its first step of a generation: parameters with a state of theirs.
    "remembered": {"generation": ..., "before": ..., "after": ...},
    # What it held of the training's state (at: HeldAt): digests of it, by the name of the part that it belongs to. At a
    # checkpoint all of it; at the other times what nothing may have changed since the checkpoint. The first optimizer
    # that stepped, and its parameters, are STEPS too, whether or not the body handed it over.
    "held": {
        "generation": ..., "rank": ..., "at": ..., "step": ..., "epoch": ..., "position": ...,
        "parameters": {}, "buffers": {},
        "moved": {},  # of each model, at a checkpoint: tensors that are others than when they were looked at before
        "fields": {},  # attributes, by name, of parts that are neither models nor optimizers, and states OUTSIDE
        "options": {},  # of optimizers, one group after the other: what they are set to, but for the rate
        "built": {},  # buffers that no checkpoint keeps, as they are not persistent
        "moments": {},  # of each optimizer, by the names of its slots: exp_avg
        "steps": {},  # that each optimizer has counted, in words
        "rates": {},  # of each optimizer, by group
        "states": {},  # of what is neither a model nor an optimizer; before the first batch those of fresh alone
        "fresh": {},  # behind a load: of those right before it; of the part RANDOM_PART torch's stream
        "per_rank": [],  # those that each rank has of its own
        "random": {},  # streams of this process; behind a load those that it has set
    },
    # What takes part in its first step of a generation, and its body did not hand over; with the call that does so.
    "left_out": {"generation": ..., "parts": ...},
    "saved": {"generation": ..., "step": ..., "seconds": ...},
    # An exception. Without a generation it had not joined a group yet, and torchrun tries again.
    "raised": {"pid": ..., "generation": ..., "error": ...},
    # What a body wants to be shown. A body has returned, and its report is written.
    "progress": {"text": ...},
    "finished": {"generation": ...},
    # Of a script a worker's Python notes that it runs, has imported torch.distributed, asks for a group, has joined it.
    # The address is where the workers of its generation meet: of each another one. A node prints a line.
    "process": _NOTE,
    "torch": _NOTE,
    "call": _NOTE,
    "group": _NOTE,
    "printed": {"text": ...},
    # Of a pool. Its seconds begin with the first step of the first job. A slot is somebody's, is asked for, is free
    # again. The serving should have so many slots. A server has loaded what it needs, or that has raised.
    "clock_began": {},
    "submitted": {"job": ...},
    "ended": {"job": ...},
    "granted": {"owner": ...},
    "asked": {"owner": ...},
    "freed": {"owner": ...},
    "demanded": {"slots": ...},
    "server_ready": {},
    "server_failed": {"error": ...},
    # In the record of a launch: a job, and when it was submitted to its pool, took its first step there, and ended. Its
    # start lasts from that of the agents to the end of the first step, its training to that of the last one, its end
    # until all workers had finished. What follows is of a job: of its name, where a pool has several.
    "job": {
        "job": ..., "schedule": ..., "start_s": None, "training_s": None, "end_s": None,
        "submitted_s": None, "started_s": None, "ended_s": None,
    },
    # A change of membership, between so many workers that stepped before it and after, None: it never was stable again.
    # Another one came before it was over: its cost cannot be told from that one's (overlapped).
    "change": {
        "of": "", "index": ..., "kind": ..., "slots": ..., "before": ..., "after": None, "overlapped": False,
        "stall_s": None,  # from the last step before it was interrupted to the first one after; the longest wait
        "recovery_s": None,  # from the change itself to that step; of a join it holds the newcomer's start
        "parts": {},  # seconds of the recovery in each of PARTS, as far as seen, on that survivor
        "steps_redone": 0, "redone_s": 0.0,  # median steps of the world size before
        "rounds": 0,  # generations it took; more than one: the job flapped
        "restarts_used": 0,  # of torchrun's --max-restarts, by the survivor that used most
        "joiner_ready_s": None,  # from the change to the newcomer's first step
        "slot_free_s": None,  # of a leave: until the agents of its nodes have ended, and their places are free
        "before_it": None, "after_it": None,  # the step before it and after it; None: nobody restarted
    },
    # An epoch, as its last pass through each step left it: from the end of the one before, stalls and redone steps
    # included. Nodes are world sizes in it, changes the indices of those that happened in it. Loss, accuracy and top5
    # are means over its samples, as far as recorded; the learning rate is that of its last step.
    "epoch": {
        "of": "", "epoch": ..., "seconds": ..., "nodes": ..., "loss": None, "accuracy": None, "top5": None, "lr": None,
        "changes": [], "stall_s": 0.0, "steps_redone": 0,
    },
    # A worker, when it had joined; what is None was not seen, or it did not come so far.
    "worker": {
        "of": "", "generation": ..., "rank": ..., "world_size": ..., "process_s": None, "imported_s": None,
        "loaded_s": None, "resumed_at": None, "first_step_s": None, "last_step_s": None, "steps": 0,
    },
    # From a step on the learning rate is another one, or the nodes are more or less.
    "rate": {"of": "", "step": ..., "epoch": None, "nodes": ..., "lr": ...},
    # A pool: from the first submission to the end of the last job; the longest time between two steps in which no job
    # trained; shares of the slots' seconds that somebody had them, and that went into steps that counted and servers.
    "pool": {"sharing": ..., "makespan_s": ..., "idle_gap_s": ..., "allocated": ..., "productive": ...},
    # A slot, for as long as somebody had it; asked: when its owner was to give it back; ready: of a server.
    "hold": {"owner": ..., "end_s": ..., "asked_s": None, "ready_s": None},
    # A demand for more slots than the serving had, and how long until they were free, and the last server was ready.
    "preemption": {"slots": ..., "free_s": None, "ready_s": None},
    # A stretch of time in which the slots and the demand were the same, of a pool with a serving.
    "stretch": {"end_s": ..., "wanted": ..., "serving": ..., "training": ...},
}  # fmt: skip
"""Facts of each kind of event, with their defaults; ``...`` marks a required fact."""


def event(what: str, *, t: float, slot: int = -1, **facts: Any) -> Event:
    """Make one of :data:`EVENTS`. Raises TypeError if a fact is missing or unknown."""
    row = EVENTS[what]
    lacking = {name for name, usual in row.items() if usual is ... and name not in facts}
    if lacking or not facts.keys() <= row.keys():
        raise TypeError(f"{what}: wanted {', '.join(row)}, found {', '.join(facts) or 'nothing'}")
    return Event(t=t, what=what, slot=slot, facts=msgspec.to_builtins({**row, **facts}))


def error_of(raised: Event) -> ErrorReport:
    return msgspec.convert(raised.error, ErrorReport)
