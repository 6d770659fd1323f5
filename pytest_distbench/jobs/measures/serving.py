"""What a pool's serving showed: how soon it had the slots it needed, and who had slots when. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from pytest_distbench.jobs.measures.measure import number
from pytest_distbench.records.metric import Measurement
from pytest_distbench.records.pool import SERVING, Hold, Preemption, Serving, Stretch
from pytest_distbench.records.pool_timeline import Demanded, PoolLine

_SHORTEST_S = 0.1
"""Of a row of its own: a slot changes hands within it."""


def measure_serving(preemptions: Sequence[Preemption]) -> list[Measurement]:
    """The metrics of a serving: the longest that a demand waited for its slots, and for servers that are ready."""
    found = []
    for name, values in (
        ("preempt_latency", [p.free_s for p in preemptions]),
        ("serving_ready", [p.ready_s for p in preemptions]),
    ):
        if values:
            told = [value for value in values if value is not None]
            found.append(number(name, max(told) if len(told) == len(values) else None, unit="s", better="lower"))
    return found


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


def preemptions_of(lines: Sequence[PoolLine], holds: Sequence[Hold], began: float) -> list[Preemption]:
    """The demands for more slots than there were, and how soon they were free and their servers ready."""
    found = []
    demands = [line for line in lines if isinstance(line, Demanded)]
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
