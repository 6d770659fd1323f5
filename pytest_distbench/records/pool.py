"""A pool: slots that several elastic jobs share, and a serving that goes before them; and what became of it.

All seconds of results are since the pool's clock began: with the first step of the first job. What came before it is
negative.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from pytest_distbench.records.elastic import ElasticJob, ElasticResult
from pytest_distbench.records.record import Record

Policy = Literal["gang", "elastic"]
"""Who gets slots. ``gang``: a job starts when there are all it may have, and keeps them. ``elastic``: a job starts when
there are the fewest it needs, grows into what is free, and gives back what another needs to start."""

Compute = Literal["real", "synthetic"]
"""What bodies say of themselves: they compute, or wait in place of it."""

SERVING = "serving"
"""What the serving is called among the owners of slots."""


class PoolJob(Record, frozen=True, kw_only=True):
    """One job of a pool."""

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
        """That it should have at a moment."""
        return next((demand.slots for demand in reversed(self.demand) if demand.at_s <= at_s), 0)

    def __str__(self) -> str:
        return f"serving on {', '.join(f'{demand.slots} from {demand.at_s:g} s' for demand in self.demand)}"


class Sharing(Record, frozen=True, kw_only=True):
    """What is shared, by whom, and how."""

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
    """What became of one job."""

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
    """What one launch of a pool showed beside its metrics."""

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
