"""Metrics of one launch of an elastic job, or of a pool of them, from its timelines. Pure.

Events for the record of the launch are made here too.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from statistics import median

from pytest_distbench.elastic.measures.continuity import (
    MOST_LOST,
    ORDER,
    REORDERED,
    accuracy_lost,
    count_samples,
    epochs_in_one_order,
    optimizers_that_forgot,
    samples_reordered,
    worst_relapse,
)
from pytest_distbench.elastic.measures.history import (
    History,
    change_results,
    epoch_results,
    rate_changes,
    rates_at,
    unplanned,
)
from pytest_distbench.elastic.measures.ledger import (
    CUT,
    LOADS,
    RANDOM,
    REPLICAS,
    SHARED,
    count,
    cut_batches,
    mismatches,
    shared_batches,
)
from pytest_distbench.elastic.records import PARTS, SERVING, Demand, ElasticJob, Sharing, event, wanted_at
from pytest_distbench.records.kinds import grouped
from pytest_distbench.records.metric import SAID, Bound, Sample, Scalar
from pytest_distbench.records.record import Number, replace
from pytest_distbench.records.wire import Event

_WHERE = "elastic(...)"


def measure(job: ElasticJob, history: History) -> tuple[list[Event], list[Sample]]:
    """Return the events and the metrics of a run; both are empty if no step was taken."""
    first = history.first_step_t
    if first is None:
        return [], []
    began = min((line.t for line in history.of("began")), default=first)
    last = max(step.t for worker in history.workers.values() for step in worker.steps)
    end = max((line.t for line in history.finished), default=last)
    summary = event(
        "job",
        t=began - first,
        job=job,
        schedule=job.schedule,
        start_s=first - began,
        training_s=last - first,
        end_s=end - last,
    )
    changes = change_results(history)
    epochs = epoch_results(history, changes)
    torn = {name for line in history.of("loaded") for name in line.torn}
    measurements = [*_of_run(job, history, summary, changes, epochs), *_of_changes(job, changes, torn=len(torn))]
    if job.cores is not None:  # nodes take turns on the cores: their timings are not judged
        units, names = ("s", "samples/s"), ("goodput", "lost_fraction")
        is_timing = [m.unit in units or m.name in names for m in measurements]
        measurements = [replace(m, better="info") if it else m for m, it in zip(measurements, is_timing, strict=True)]
    return [summary, *changes, *epochs, *history.worker_results(first), *rate_changes(history)], measurements


def _of_run(
    job: ElasticJob, history: History, summary: Event, changes: Sequence[Event], epochs: Sequence[Event]
) -> list[Sample]:
    given_s = _given_s(history)
    stall_s = sum(c.stall_s or 0.0 for c in changes) + sum(stall_s for stall_s, _ in unplanned(history))
    found = [
        number("training_time", summary.training_s, unit="s", better="lower"),
        number("start_time", summary.start_s, unit="s"),
        number("goodput", min(1.0, useful_s(history) / given_s) if given_s > 0 else None, better="higher"),
        number("lost_fraction", stall_s / summary.training_s if summary.training_s else None, better="lower"),
    ]
    if job.steps is None:  # nobody sees from outside what a script trains on and keeps
        skipped, repeated = count_samples(history)
        found += [
            _none("samples_skipped", *skipped),
            _none("samples_repeated", *repeated),
            _none(SHARED, *count(shared_batches(history), SHARED)),
            _none(CUT, *count(cut_batches(history), CUT)),
            _none("optimizer_state_lost", optimizers_that_forgot(history)),
            *_of_loads(job, history, is_whole=not (skipped[0] or repeated[0])),
        ]
        every = job.checkpoint_every
        if every is not None and (interval := _longest_interval(history, every)) is not None:
            claimed = Bound(side="most", value=every, where=_WHERE)
            found.append(number("checkpoint_interval", interval, unit="steps", better="exact", bounds=[claimed]))
    found += _losses(job, history, epochs)
    for epoch in epochs:
        for name in ("loss", "accuracy", "top5"):
            if (mean := epoch.facts[name]) is not None:
                found.append(number(name, mean, at={"epoch": epoch.epoch}))
    found += [number("lr", rate, at=at) for at, rate in rates_at(history)]
    for world_size in sorted({history.world_size(g) for g in history.generations}):
        if not (step_s := history.step_s(world_size)):
            continue
        at: dict[str, Scalar] = {"nodes": world_size}
        steps = [step for worker in history.workers.values() for step in worker.steps if step.world_size == world_size]
        if samples := [step.samples for step in steps if step.samples is not None]:
            rate = median(samples) / step_s
            found.append(number("samples_per_second", rate, unit="samples/s", better="higher", at=at))
        else:
            found.append(number("steps_per_second", 1 / step_s, unit="steps/s", better="higher", at=at))
    return found


def _losses(job: ElasticJob, history: History, epochs: Sequence[Event]) -> list[Sample]:
    """The losses of the epochs as a golden curve: all of a fixed run, and of one whose nodes hold at each change.

    Other runs have those that no change can have touched: up to the newest checkpoint before a change at a step, which
    is the furthest that the job goes back. A change at a moment comes at another step in each run.
    """
    changes = job.changes
    is_whole = job.hold or not changes
    first = changes[0].at_step if not is_whole else None
    every = job.checkpoint_every
    if job.steps is not None or job.cycle is not None or not (is_whole or (first and every)):
        return []
    if is_whole and len(history.generations) != len(changes) + 1:
        return []  # a worker died of itself, or a node came later than others
    until = math.inf if first is None or every is None else (first - 1) // every * every
    last_steps = {epoch: number for number, _, epoch, _ in history.passes()}
    done = [epoch for epoch in epochs if last_steps[epoch.epoch] <= until and epoch.epoch + 1 in last_steps]
    done += [epoch for epoch in epochs[-1:] if is_whole]
    losses = [epoch.loss for epoch in done if epoch.loss is not None]
    if not losses or len(losses) < len(done):
        return []
    begun = next((line for line in history.of("held") if line.at == "begin" and line.rank == 0), None)
    weights = "" if begun is None else ", ".join(f"{name} {digest[:8]}" for name, digest in begun.parameters.items())
    return [
        Sample(
            name="losses" if is_whole else "losses_before_change",
            unit="",
            better="curve",
            value=losses[-1],
            values=list(losses),
            beside=[f"epoch {epoch.epoch}" for epoch in done],
            identity={"begins with": weights} if weights else {},  # without a seed each run is another training
        )
    ]


def _of_loads(job: ElasticJob, history: History, *, is_whole: bool) -> list[Sample]:
    """Metrics of loads: for each kind of state, the number of workers that did not continue with what was saved.

    That samples continue in the same order is judged only if none was skipped or repeated (``is_whole``), and no epoch
    repeats another's order, which have metrics of their own.
    """
    if job.checkpoint_every is None:
        return []
    found = mismatches(history)
    has_loaded = any(line.step for line in history.of("loaded"))
    if not (has_loaded or job.plan):
        return [_none(REPLICAS, *count(found, REPLICAS))]
    keeps_random = any(line.at == "begin" and line.random for line in history.of("held"))
    metrics = [_none(metric, *count(found, metric)) for metric in (*LOADS, *([RANDOM] if keeps_random else []))]
    same = epochs_in_one_order(history)
    reordered = samples_reordered(history) if is_whole and not same[0] else (0, "")
    metrics += [_none(ORDER, *same), _none(REORDERED, *reordered)]
    # of a body that records them; which steps lie about a load is chance, so that no digit of it repeats
    if (lost := accuracy_lost(history)) is not None:
        metrics.append(number("accuracy_lost", lost))
    if any(step.loss is not None for worker in history.workers.values() for step in worker.steps):
        lost_share, words = worst_relapse(history)
        facts: dict[str, Scalar] = {SAID: words} if words else {}
        most = Bound(side="most", value=MOST_LOST, where=_WHERE, is_default=True)
        share = Sample(name="learning_lost", unit="", better="info", value=lost_share, facts=facts, bounds=[most])
        metrics.append(share)
    return metrics


def _of_changes(job: ElasticJob, changes: Sequence[Event], *, torn: int) -> list[Sample]:
    """Median and largest cost of each kind of change, without changes that another one overlapped.

    ``torn`` is the number of checkpoints that were passed over: the job may go back further by as many intervals.
    """
    done = (change for change in changes if change.after is not None and not change.overlapped)
    kinds = grouped(((change.kind, change.before, change.after), change) for change in done)
    found = []
    for (kind, before, after), those in kinds.items():
        at: dict[str, Scalar] = {"change": f"{kind} {before} to {after}"}
        for name, values in (
            ("stall", [c.stall_s for c in those if c.stall_s is not None]),
            ("recovery", [c.recovery_s for c in those if c.recovery_s is not None]),
        ):
            if values:
                found.append(number(name, median(values), unit="s", better="lower", at=at))
                found.append(number(f"{name}_max", max(values), unit="s", better="lower", at=at))
        for part in PARTS:
            seconds = [c.parts[part] for c in those if part in c.parts]
            found += [number(f"recovery/{part}", median(seconds), unit="s", at=at)] if seconds else []
        every = job.checkpoint_every
        bounds = [] if every is None else [Bound(side="most", value=every * (1 + torn), where=_WHERE)]
        redone = max(c.steps_redone for c in those)
        found.append(number("steps_redone", redone, unit="steps", at=at, bounds=bounds))
        found.append(number("restarts_used", max(c.restarts_used for c in those), at=at))
        found.append(number("rounds", max(c.rounds for c in those), at=at))
        if ready := [c.joiner_ready_s for c in those if c.joiner_ready_s is not None]:
            found.append(number("joiner_ready", median(ready), unit="s", better="lower", at=at))
        if free := [c.slot_free_s for c in those if c.slot_free_s is not None]:
            found.append(number("slot_free", median(free), unit="s", better="lower", at=at))
    return found


def useful_s(history: History) -> float:
    """Node-seconds of steps that counted, each at the median time of its world size."""
    useful = 0.0
    before = 0, -1, 0.0
    widest = 1
    for number, generation, _, lines in history.passes():
        first = lines[0]
        step_s = history.step_s(first.world_size)
        goes_on = before[1] == generation
        steps = number - before[0] if goes_on else 1  # a script may report every tenth alone
        seconds = steps * (step_s or 0.0)
        if goes_on and first.is_laid and history.reports_within_epochs:
            due = math.inf if step_s is None else widest * step_s
            seconds = min(max(seconds, first.t - before[2]), due)  # behind an epoch's last line, until another was due
        elif goes_on:
            widest = max(widest, steps)
        useful += seconds * first.world_size
        before = number, generation, first.t
    return useful


def _given_s(history: History) -> float:
    first = history.first_step_t
    assert first is not None
    last = max(step.t for worker in history.workers.values() for step in worker.steps)
    taken = {slot: first for line in history.of("began") for slot in line.slots}
    total = 0.0
    for line in history.lines:
        if line.what == "changed" and line.kind == "join":
            taken |= {slot: max(first, line.t) for slot in line.slots}
        elif line.what == "agent_ended" and line.slot in taken and line.t < last:
            total += max(0.0, line.t - taken.pop(line.slot))
    return total + sum(max(0.0, last - begin) for begin in taken.values())


def _longest_interval(history: History, claimed: int) -> int | None:
    """Most steps between two checkpoints of a generation, or the first and its start, or None if there are no two.

    Steps after the last checkpoint count if they are more than ``claimed``: a checkpoint is missing there.
    """
    found = []
    for generation in history.generations:
        steps = sorted({line.step for line in history.saved if line.generation == generation})
        marks = [history.resumed_at(generation), *steps]
        found += [later - earlier for earlier, later in itertools.pairwise(marks)]
        highest = max(step.step for worker in history.members(generation).values() for step in worker.steps)
        found += [highest - marks[-1]] if highest - marks[-1] > claimed else []
    return max(found, default=None)


def _none(name: str, value: int, words: str = "") -> Sample:
    facts: dict[str, Scalar] = {SAID: words} if words else {}
    none = Bound(side="most", value=0, where=_WHERE, is_default=True)
    return Sample(name=name, unit="", better="exact", value=value, facts=facts, bounds=[none])


def number(
    name: str,
    value: Number | None,
    *,
    unit: str = "",
    better: str = "info",
    at: dict[str, Scalar] | None = None,
    bounds: Sequence[Bound] = (),
) -> Sample:
    """Make a metric, which is not judged unless ``better`` says how."""
    return Sample(name=name, unit=unit, better=better, value=value, at=at or {}, bounds=list(bounds))


_SHORTEST_S = 0.1  # of a row of its own: a slot changes hands within it


def stretches_of(demand: Demand, holds: Sequence[Event], end_s: float) -> list[Event]:
    """Periods in which slots and demand were constant; a server that gets ready begins one too."""
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
    """Demands for more slots than the serving had, and the seconds until slots were free and servers ready."""
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
    histories = {name: History(events) for name, events in jobs.items()}
    results: list[Event] = []
    measurements: list[Sample] = []
    for job in pool.jobs:
        events, found = _job(job, lines, histories[job.name], began)
        results += events
        measurements += found
    first = min((line.t for line in _of(lines, "submitted")), default=began)
    ends = [line.t for line in _of(lines, "ended")]
    if len(ends) < len(pool.jobs):  # it was ended
        ends = [line.t for events in (lines, *jobs.values()) for line in events]
    last = max(ends)
    holds = holds_of(lines, began, last)
    whole = pool.slots * (last - first)
    end_s = last - began
    stretches = stretches_of(pool.demand, holds, end_s) if pool.demand else []
    preemptions = preemptions_of(lines, holds, began)
    served_s = sum(max(0.0, min(hold.end_s, end_s) - hold.ready_s) for hold in holds if hold.ready_s is not None)
    spans = sorted(span for history in histories.values() for span in _spans(history))
    reached = itertools.accumulate((end for _, end in spans), max)
    whole_pool = event(
        "pool",
        t=first - began,
        sharing=pool,
        makespan_s=last - first,
        idle_gap_s=max((0.0, *(begin - until for until, (begin, _) in zip(reached, spans[1:], strict=False)))),
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
"""Kind of event on a slot -> time that it sets in the ``hold``, which records who had the slot from when to when."""


def holds_of(lines: Sequence[Event], began: float, last: float) -> list[Event]:
    """Owners of slots over time, sorted by begin; a hold that is still open ends at ``last``."""
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


def _job(
    wanted: ElasticJob, lines: Sequence[Event], history: History, began: float
) -> tuple[list[Event], list[Sample]]:
    events, measurements = measure(wanted, history)
    submitted = next((line.t for line in _of(lines, "submitted") if line.job == wanted.name), began)
    ended = next((line.t for line in _of(lines, "ended") if line.job == wanted.name), None)
    started = history.first_step_t
    summary, *of_job = events or [event("job", t=submitted - began, job=wanted, schedule=wanted.schedule)]
    summary = replace(
        summary,
        facts={
            **summary.facts,
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
    return [summary, *of_job], [replace(m, at={"job": wanted.name, **m.at}) for m in [*found, *measurements]]


def _spans(history: History) -> list[tuple[float, float]]:
    found = []
    for generation in history.generations:
        steps = [worker.steps for worker in history.members(generation).values() if worker.steps]
        found.append((min(s[0].t for s in steps), max(s[-1].t for s in steps)))
    return found


def _of(lines: Sequence[Event], what: str) -> list[Event]:
    return [line for line in lines if line.what == what]
