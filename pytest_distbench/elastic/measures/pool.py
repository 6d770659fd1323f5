"""From the timelines of a pool and its jobs to what one launch measured. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from pytest_distbench.elastic.measures import measure, number, useful_s
from pytest_distbench.elastic.measures.history import History
from pytest_distbench.elastic.records import (
    SERVING,
    Hold,
    PoolJob,
    PoolJobResult,
    PoolResult,
    Preemption,
    Serving,
    Sharing,
    Stretch,
)
from pytest_distbench.records.event import Event
from pytest_distbench.records.metric import Sample
from pytest_distbench.records.record import replace

_SHORTEST_S = 0.1
"""Of a row of its own: a slot changes hands within it."""


def stretches_of(serving: Serving, holds: Sequence[Hold], end_s: float) -> list[Stretch]:
    """Stretches of time in which slots and demand were the same; a server that is ready begins one too."""
    marks = {0.0, end_s, *(demand.at_s for demand in serving.demand)}
    for hold in holds:
        marks |= {hold.begin_s, hold.end_s} | ({hold.ready_s} if hold.ready_s is not None else set())
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
        owners = [hold.owner for hold in holds if hold.begin_s <= begin < hold.end_s]
        has = owners.count(SERVING)
        wanted = serving.slots(begin)
        found.append(Stretch(begin_s=begin, end_s=end, wanted=wanted, serving=has, training=len(owners) - has))
    return found


def preemptions_of(lines: Sequence[Event], holds: Sequence[Hold], began: float) -> list[Preemption]:
    """The demands for more slots than there were, and how soon they were free and their servers ready."""
    found = []
    demands = [line for line in lines if line.what == "demanded"]
    for index, demand in enumerate(demands):
        at_s = demand.t - began
        until_s = demands[index + 1].t - began if index + 1 < len(demands) else float("inf")
        mine = [hold for hold in holds if hold.owner == SERVING]
        missing = demand.slots - sum(hold.begin_s <= at_s < hold.end_s for hold in mine)
        if missing <= 0:
            continue
        new = [hold for hold in mine if at_s <= hold.begin_s < until_s][:missing]
        ready = [hold.ready_s for hold in new if hold.ready_s is not None]
        found.append(
            Preemption(
                at_s=at_s,
                slots=missing,
                free_s=max(hold.begin_s for hold in new) - at_s if len(new) == missing else None,
                ready_s=max(ready) - at_s if len(ready) == missing else None,
            )
        )
    return found


def measure_pool(
    pool: Sharing, lines: Sequence[Event], jobs: Mapping[str, Sequence[Event]]
) -> tuple[PoolResult | None, list[Sample]]:
    began = next((line.t for line in _of(lines, "clock_began")), None)
    if began is None:
        return None, []
    histories = {name: History(told) for name, told in jobs.items()}
    results, measurements = [], []
    for job in pool.jobs:
        result, found = _job(job, lines, histories[job.name], began)
        results.append(result)
        measurements += found
    first = min((line.t for line in _of(lines, "submitted")), default=began)
    ends = [line.t for line in _of(lines, "ended")]
    if len(ends) < len(pool.jobs):  # it was ended
        ends = [line.t for told in (lines, *jobs.values()) for line in told]
    last = max(ends)
    holds = holds_of(lines, began, last)
    whole = pool.slots * (last - first)
    end_s = last - began
    stretches = [] if pool.serving is None else stretches_of(pool.serving, holds, end_s)
    preemptions = [] if pool.serving is None else preemptions_of(lines, holds, began)
    served_s = sum(max(0.0, min(hold.end_s, end_s) - hold.ready_s) for hold in holds if hold.ready_s is not None)
    found_pool = PoolResult(
        pool=pool,
        makespan_s=last - first,
        idle_gap_s=_idle_gap(list(histories.values())),
        allocated=sum(max(0.0, min(hold.end_s, end_s) - hold.begin_s) for hold in holds) / whole,
        productive=(sum(map(useful_s, histories.values())) + served_s) / whole,
        jobs=results,
        holds=holds,
        stretches=stretches,
        preemptions=preemptions,
    )
    measurements = [
        number("makespan", found_pool.makespan_s, unit="s", better="lower"),
        number("idle_gap", found_pool.idle_gap_s, unit="s", better="lower"),
        number("allocated", found_pool.allocated, better="higher"),
        number("productive", found_pool.productive, better="higher"),
        *measurements,
    ]
    if pool.serving is not None:  # the longest that a demand waited for its slots, and for servers that are ready
        waited = [p.free_s for p in preemptions], [p.ready_s for p in preemptions]
        for name, values in zip(("preempt_latency", "serving_ready"), waited, strict=True):
            if values:
                told = [value for value in values if value is not None]
                longest = max(told) if len(told) == len(values) else None
                measurements.append(number(name, longest, unit="s", better="lower"))
    return found_pool, measurements


def holds_of(lines: Sequence[Event], began: float, last: float) -> list[Hold]:
    """Who had which slot when, by their beginning; nobody has one after ``last``."""
    open_holds: dict[int, Hold] = {}
    found = []
    for line in lines:
        if line.what == "granted":
            open_holds[line.slot] = Hold(
                slot=line.slot, owner=line.owner, begin_s=line.t - began, end_s=max(line.t, last) - began
            )
        elif line.what == "asked" and line.slot in open_holds:
            open_holds[line.slot] = replace(open_holds[line.slot], asked_s=line.t - began)
        elif line.what == "server_ready" and line.slot in open_holds:
            open_holds[line.slot] = replace(open_holds[line.slot], ready_s=line.t - began)
        elif line.what == "freed" and line.slot in open_holds:
            found.append(replace(open_holds.pop(line.slot), end_s=line.t - began))
    return sorted([*found, *open_holds.values()], key=lambda hold: (hold.begin_s, hold.slot))


def _job(wanted: PoolJob, lines: Sequence[Event], history: History, began: float) -> tuple[PoolJobResult, list[Sample]]:
    elastic, measurements = measure(wanted.job, history)
    submitted = next((line.t for line in _of(lines, "submitted") if line.job == wanted.name), began)
    ended = next((line.t for line in _of(lines, "ended") if line.job == wanted.name), None)
    firsts = {g: min(w.steps[0].t for w in history.members(g).values() if w.steps) for g in history.generations}
    started = min(firsts.values(), default=None)
    result = PoolJobResult(
        name=wanted.name,
        submitted_s=submitted - began,
        started_s=None if started is None else started - began,
        ended_s=None if ended is None else ended - began,
        workers=[(first - began, history.world_size(g)) for g, first in firsts.items()],
        elastic=elastic,
    )
    found = []
    if started is not None:
        found.append(number("queue_wait", started - submitted, unit="s", better="lower"))
    if ended is not None:
        found.append(number("jct", ended - submitted, unit="s", better="lower"))
    if started is not None and ended is not None:
        freed = max(line.t for line in _of(lines, "freed") if line.owner == wanted.name)
        trained = max(end for _, end in _spans(history))
        found.append(number("slots_kept", freed - trained, unit="s", better="lower"))
    most = max((workers for _, workers in result.workers), default=None)
    found.append(number("most_workers", most, better="exact"))
    return result, [replace(m, at={"job": wanted.name, **m.at}) for m in [*found, *measurements]]


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
