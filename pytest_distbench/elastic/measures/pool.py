"""From the timelines of a pool and its jobs to what one launch measured. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from pytest_distbench.elastic.measures import measure, number, useful_s
from pytest_distbench.elastic.measures.history import History
from pytest_distbench.elastic.records import SERVING, Demand, PoolJob, Sharing, wanted_at
from pytest_distbench.elastic.timeline import event
from pytest_distbench.records.event import Event
from pytest_distbench.records.metric import Sample
from pytest_distbench.records.record import replace

_SHORTEST_S = 0.1
"""Of a row of its own: a slot changes hands within it."""


def stretches_of(demand: Demand, holds: Sequence[Event], end_s: float) -> list[Event]:
    """Stretches of time in which slots and demand were the same; a server that is ready begins one too."""
    marks = {0.0, end_s, *(at_s for at_s, _ in demand)}
    for hold in holds:
        marks |= {hold.t, hold.end_s} | ({hold.ready_s} if hold.ready_s is not None else set())
    edges = [0.0]
    for mark in sorted(mark for mark in marks if 0.0 < mark < end_s):
        if mark - edges[-1] < _SHORTEST_S and len(edges) > 1:
            edges[-1] = mark  # what there is when a slot has changed hands
        else:
            edges.append(mark)
    if end_s - edges[-1] < _SHORTEST_S and len(edges) > 1:
        edges.pop()
    found = []
    for begin, end in itertools.pairwise([*edges, end_s]):
        owners = [hold.owner for hold in holds if hold.t <= begin < hold.end_s]
        has = owners.count(SERVING)
        wanted = wanted_at(demand, begin)
        found.append(event("stretch", t=begin, end_s=end, wanted=wanted, serving=has, training=len(owners) - has))
    return found


def preemptions_of(lines: Sequence[Event], holds: Sequence[Event], began: float) -> list[Event]:
    """The demands for more slots than there were, and how soon they were free and their servers ready."""
    found = []
    demands = [line for line in lines if line.what == "demanded"]
    for index, demand in enumerate(demands):
        at_s = demand.t - began
        until_s = demands[index + 1].t - began if index + 1 < len(demands) else float("inf")
        mine = [hold for hold in holds if hold.owner == SERVING]
        missing = demand.slots - sum(hold.t <= at_s < hold.end_s for hold in mine)
        if missing <= 0:
            continue
        new = [hold for hold in mine if at_s <= hold.t < until_s][:missing]
        ready = [hold.ready_s for hold in new if hold.ready_s is not None]
        found.append(
            event(
                "preemption",
                t=at_s,
                slots=missing,
                free_s=max(hold.t for hold in new) - at_s if len(new) == missing else None,
                ready_s=max(ready) - at_s if len(ready) == missing else None,
            )
        )
    return found


def measure_pool(
    pool: Sharing, lines: Sequence[Event], jobs: Mapping[str, Sequence[Event]]
) -> tuple[list[Event], list[Sample]]:
    began = next((line.t for line in _of(lines, "clock_began")), None)
    if began is None:
        return [], []
    histories = {name: History(told) for name, told in jobs.items()}
    results: list[Event] = []
    measurements: list[Sample] = []
    for job in pool.jobs:
        told, found = _job(job, lines, histories[job.name], began)
        results += told
        measurements += found
    first = min((line.t for line in _of(lines, "submitted")), default=began)
    ends = [line.t for line in _of(lines, "ended")]
    if len(ends) < len(pool.jobs):  # it was ended
        ends = [line.t for told in (lines, *jobs.values()) for line in told]
    last = max(ends)
    holds = holds_of(lines, began, last)
    whole = pool.slots * (last - first)
    end_s = last - began
    stretches = stretches_of(pool.demand, holds, end_s) if pool.demand else []
    preemptions = preemptions_of(lines, holds, began)
    served_s = sum(max(0.0, min(hold.end_s, end_s) - hold.ready_s) for hold in holds if hold.ready_s is not None)
    whole_pool = event(
        "pool",
        t=first - began,
        sharing=pool,
        makespan_s=last - first,
        idle_gap_s=_idle_gap(list(histories.values())),
        allocated=sum(max(0.0, min(hold.end_s, end_s) - hold.t) for hold in holds) / whole,
        productive=(sum(map(useful_s, histories.values())) + served_s) / whole,
    )
    measurements = [
        number("makespan", whole_pool.makespan_s, unit="s", better="lower"),
        number("idle_gap", whole_pool.idle_gap_s, unit="s", better="lower"),
        number("allocated", whole_pool.allocated, better="higher"),
        number("productive", whole_pool.productive, better="higher"),
        *measurements,
    ]
    if preemptions:  # the longest that a demand waited for its slots, and for servers that are ready
        for name, fact in (("preempt_latency", "free_s"), ("serving_ready", "ready_s")):
            waited = [preemption.facts[fact] for preemption in preemptions]
            measurements.append(number(name, None if None in waited else max(waited), unit="s", better="lower"))
    return [whole_pool, *results, *holds, *stretches, *preemptions], measurements


_ENDS = {"asked": "asked_s", "server_ready": "ready_s", "freed": "end_s"}
"""What a line says of a slot that somebody has."""


def holds_of(lines: Sequence[Event], began: float, last: float) -> list[Event]:
    """Who had which slot when, by their beginning; nobody has one after ``last``."""
    open_holds: dict[int, Event] = {}
    found = []
    for line in lines:
        at_s = line.t - began
        if line.what == "granted":
            open_holds[line.slot] = event(
                "hold", t=at_s, slot=line.slot, owner=line.owner, end_s=max(line.t, last) - began
            )
        elif line.what in _ENDS and line.slot in open_holds:
            hold = open_holds[line.slot]
            open_holds[line.slot] = replace(hold, facts={**hold.facts, _ENDS[line.what]: at_s})
            if line.what == "freed":
                found.append(open_holds.pop(line.slot))
    return sorted([*found, *open_holds.values()], key=lambda hold: (hold.t, hold.slot))


def _job(wanted: PoolJob, lines: Sequence[Event], history: History, began: float) -> tuple[list[Event], list[Sample]]:
    events, measurements = measure(wanted.job, history)
    submitted = next((line.t for line in _of(lines, "submitted") if line.job == wanted.name), began)
    ended = next((line.t for line in _of(lines, "ended") if line.job == wanted.name), None)
    started = history.first_step_t
    told, *of_job = events or [event("job", t=submitted - began, job=wanted.job, schedule=wanted.job.schedule)]
    told = replace(
        told,
        facts={
            **told.facts,
            "name": wanted.name,
            "submitted_s": submitted - began,
            "started_s": None if started is None else started - began,
            "ended_s": None if ended is None else ended - began,
        },
    )
    of_job = [replace(each, facts={**each.facts, "of": wanted.name}) for each in of_job]
    found = []
    if started is not None:
        found.append(number("queue_wait", started - submitted, unit="s", better="lower"))
    if ended is not None:
        found.append(number("jct", ended - submitted, unit="s", better="lower"))
    if started is not None and ended is not None:
        freed = max(line.t for line in _of(lines, "freed") if line.owner == wanted.name)
        trained = max(end for _, end in _spans(history))
        found.append(number("slots_kept", freed - trained, unit="s", better="lower"))
    most = max(map(history.world_size, history.generations), default=None)
    found.append(number("most_workers", most, better="exact"))
    return [told, *of_job], [replace(m, at={"job": wanted.name, **m.at}) for m in [*found, *measurements]]


def _idle_gap(histories: Sequence[History]) -> float:
    spans = sorted(span for history in histories for span in _spans(history))
    reached = itertools.accumulate((end for _, end in spans), max)
    return max((0.0, *(begin - until for until, (begin, _) in zip(reached, spans[1:], strict=False))))


def _spans(history: History) -> list[tuple[float, float]]:
    found = []
    for generation in history.generations:
        steps = [worker.steps for worker in history.members(generation).values() if worker.steps]
        found.append((min(s[0].t for s in steps), max(s[-1].t for s in steps)))
    return found


def _of(lines: Sequence[Event], what: str) -> list[Event]:
    return [line for line in lines if line.what == what]
