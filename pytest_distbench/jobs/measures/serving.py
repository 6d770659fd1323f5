"""What a pool's serving showed: latencies of its requests, and how soon it had the slots it needed. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from pytest_distbench.jobs.measures.measure import number
from pytest_distbench.jobs.pool.arrivals import arrivals
from pytest_distbench.records.bound import Bound
from pytest_distbench.records.kinds import FAST_SIDE
from pytest_distbench.records.metric import Measurement, Scalar
from pytest_distbench.records.pool import SERVING, Demand, Hold, Preemption, Serving, Stretch
from pytest_distbench.records.pool_timeline import Answered, Demanded, PoolLine
from pytest_distbench.records.quantiles import quantile

_SHORTEST_S = 0.1
"""Of a row of its own: a slot changes hands within it."""


def measure_serving(
    serving: Serving, lines: Sequence[PoolLine], preemptions: Sequence[Preemption], began: float, end_s: float
) -> list[Measurement]:
    """The metrics of a serving: latencies in each phase of the demand, from when a request was due to its answer.

    They are shown: a queue is empty or it is not, by whether the replica came before the requests, and a few launches
    hold one of the two. What lengthens it, an answer's time and the replica's start, is judged.
    """
    answered = [line for line in lines if isinstance(line, Answered)]
    found = []
    for name, values in (
        ("preempt_latency", [p.free_s for p in preemptions]),
        ("serving_ready", [p.ready_s for p in preemptions]),
    ):
        if values:
            told = [value for value in values if value is not None]
            found.append(number(name, max(told) if len(told) == len(values) else None, unit="s", better="lower"))
    for demand, until_s in phases(serving, end_s):
        mine = [line for line in answered if demand.at_s <= line.intended_t - began < until_s]
        if not mine:
            continue
        at: dict[str, Scalar] = {"demand": f"{demand.per_s:g}/s from {demand.at_s:g} s"}
        latencies = [line.t - line.intended_t for line in mine]
        for name, share in (("p50_latency", 0.5), ("p95_latency", 0.95)):
            found.append(number(name, quantile(latencies, share), unit="s", at=at))
        rate = len(mine) / (max(line.t for line in mine) - began - demand.at_s)
        found.append(number("requests_per_second", rate, unit="requests/s", at=at))
    if answered:
        computed = quantile([line.busy_s for line in answered], FAST_SIDE)
        found.append(number("answer_time", computed, unit="s", better="lower"))
    due = sum(1 for _ in itertools.takewhile(lambda at_s: at_s < end_s, arrivals(serving)))
    is_over = serving.demand[-1].per_s == 0  # else some are on their way when the last job ends
    bounds = [Bound(side="most", value=0, where="elastic_pool(...)")] if is_over else []
    found.append(number("requests", len(answered)))
    found.append(number("requests_unanswered", due - len(answered), bounds=bounds))
    return found


def phases(serving: Serving, end_s: float) -> list[tuple[Demand, float]]:
    """Each demand, and until when it was asked for."""
    untils = [demand.at_s for demand in serving.demand[1:]]
    return list(zip(serving.demand, [*untils, end_s], strict=True))


def stretches_of(
    serving: Serving, lines: Sequence[PoolLine], holds: Sequence[Hold], began: float, end_s: float
) -> list[Stretch]:
    """Stretches of time in which slots and demand were the same; a replica that begins to answer begins one too."""
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
    answered = [line for line in lines if isinstance(line, Answered)]
    return [_stretch(serving, holds, answered, began, b, e) for b, e in itertools.pairwise([*edges, end_s])]


def _stretch(
    serving: Serving, holds: Sequence[Hold], answered: Sequence[Answered], began: float, begin_s: float, end_s: float
) -> Stretch:
    owners = [hold.owner for hold in holds if hold.begin_s <= begin_s < hold.end_s]
    mine = [line.t - line.intended_t for line in answered if begin_s <= line.intended_t - began < end_s]
    return Stretch(
        begin_s=begin_s,
        end_s=end_s,
        per_s=serving.per_s(begin_s),
        serving=owners.count(SERVING),
        training=len(owners) - owners.count(SERVING),
        requests=len(mine),
        p95_s=quantile(mine, 0.95) if mine else None,
    )


def preemptions_of(lines: Sequence[PoolLine], holds: Sequence[Hold], began: float) -> list[Preemption]:
    """The demands for more replicas than there were, and how soon their slots were free and they could answer."""
    found = []
    demands = [line for line in lines if isinstance(line, Demanded)]
    for index, demand in enumerate(demands):
        at_s = demand.t - began
        until_s = demands[index + 1].t - began if index + 1 < len(demands) else float("inf")
        mine = [hold for hold in holds if hold.owner == SERVING]
        missing = demand.replicas - sum(hold.begin_s <= at_s < hold.end_s for hold in mine)
        if missing <= 0:
            continue
        new = [hold for hold in mine if at_s <= hold.begin_s < until_s][:missing]
        ready = [hold.ready_s for hold in new if hold.ready_s is not None]
        found.append(
            Preemption(
                at_s=at_s,
                replicas=missing,
                free_s=max(hold.begin_s for hold in new) - at_s if len(new) == missing else None,
                ready_s=max(ready) - at_s if len(ready) == missing else None,
            )
        )
    return found
