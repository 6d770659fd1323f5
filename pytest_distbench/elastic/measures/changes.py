"""What each change of membership cost: stall, recovery and its parts, steps redone; and what no change explains.

Made of a timeline alone.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from pytest_distbench.elastic.measures.history import History, Worker, mean_of
from pytest_distbench.elastic.records import START
from pytest_distbench.elastic.timeline import event
from pytest_distbench.records.event import Event


def change_results(history: History) -> list[Event]:
    changes = history.of("changed")
    first = history.first_step_t
    return [_result(history, change, changes, first) for change in changes] if first is not None else []


def _result(history: History, change: Event, changes: Sequence[Event], first: float) -> Event:
    stable = next((line for line in history.of("stable") if line.t >= change.t and line.index >= change.index), None)
    begun = {g: min(w.steps[0].t for w in history.members(g).values() if w.steps) for g in history.generations}
    before = max((generation for generation, t in begun.items() if t <= change.t), default=None)
    result = {
        "t": change.t - first,
        "index": change.index,
        "kind": change.kind,
        "slots": change.slots,
        "before": 0 if before is None else history.world_size(before),
        "overlapped": _is_overlapped(history, change, changes),
    }
    if stable is None or before is None:
        return event("change", **result)
    after = stable.generation
    stall_s, recovery_s, worker = (
        _cost_within(history, change, after, stable) if after == before else _cost(history, change, before, after)
    )
    highest = max(
        (s.step for g in range(before, after) for w in history.members(g).values() for s in w.steps), default=0
    )
    redone = max(0, highest - history.resumed_at(after)) if after != before else 0
    step_s = history.step_s(history.world_size(before))
    ready = [
        history.workers[after, slot].steps[0].t - change.t
        for slot in change.slots
        if change.kind == "join" and (after, slot) in history.workers and history.workers[after, slot].steps
    ]
    old = [generation for generation in history.generations if generation < after]
    freed: dict[int, float] = {}  # from a request to go until the agents of all these nodes had ended
    for line in history.of("agent_ended"):
        if line.slot in change.slots and line.t >= change.t:
            freed.setdefault(line.slot, line.t)  # a later end is that of a node which has taken the slot since
    return event(
        "change",
        **result,
        after=stable.world_size,
        stall_s=stall_s,
        recovery_s=recovery_s,
        parts=_parts(history, change, worker) if worker is not None else {},
        steps_redone=redone,
        redone_s=redone * step_s if step_s is not None else 0.0,
        rounds=after - before,
        restarts_used=_restarts(history, before, after),
        joiner_ready_s=max(ready, default=None),
        slot_free_s=max(freed.values()) - change.t if change.kind == "leave" and freed else None,
        before_it=moment(history, old, last=True) if after != before else None,
        after_it=moment(history, [after], last=False) if after != before else None,
    )


def moment(history: History, generations: Sequence[int], *, last: bool) -> dict[str, float | None] | None:
    """The first or the last step that anybody took in generations, as it stood: nothing is smoothed."""
    lines = [step for g in generations for worker in history.members(g).values() for step in worker.steps]
    if not lines:
        return None
    chosen = max(lines, key=lambda s: (s.generation, s.step)) if last else min(lines, key=lambda s: s.step)
    same = [line for line in lines if (line.generation, line.step) == (chosen.generation, chosen.step)]
    return {
        "step": chosen.step,
        "epoch": history.workers[chosen.generation, chosen.slot].epoch(chosen),
        "loss": mean_of("loss", same),
        "accuracy": mean_of("accuracy", same),
        "lr": chosen.lr,
    }


def _is_overlapped(history: History, change: Event, changes: Sequence[Event]) -> bool:
    stables = [line.t for line in history.of("stable")]
    order = [c.t for c in changes]
    position = order.index(change.t)
    neighbours = [(order[i], order[i + 1]) for i in (position - 1, position) if 0 <= i < len(order) - 1]
    return any(not any(earlier <= t <= later for t in stables) for earlier, later in neighbours)


def _cost(history: History, change: Event, before: int, after: int) -> tuple[float | None, float | None, Worker | None]:
    here = {slot for slot, worker in history.members(before).items() if worker.steps}
    there = {slot for slot, worker in history.members(after).items() if worker.steps}
    survivors = sorted((here & there) - set(change.slots) or here & there)  # the change's own where there are no others
    if not survivors:
        return None, None, None
    stalls = []
    for slot in survivors:
        lives = [history.workers[g, slot] for g in range(before, after + 1) if (g, slot) in history.workers]
        lives = [worker for worker in lives if worker.steps]
        stalls.append(sum(new.steps[0].t - old.steps[-1].t for old, new in itertools.pairwise(lives)))
    last = max((history.workers[after, slot] for slot in survivors), key=lambda w: w.steps[0].t)
    return max(stalls), last.steps[0].t - change.t, last


def _cost_within(
    history: History, change: Event, generation: int, stable: Event
) -> tuple[float | None, float | None, Worker | None]:
    """The same where nobody began anew: the longest wait for a step, and when it was over."""
    gaps = [
        (later.t - earlier.t, later.t)
        for worker in history.members(generation).values()
        for earlier, later in itertools.pairwise(worker.steps)
        if change.t < later.t <= stable.t
    ]
    if not gaps:
        return None, None, None
    gap, end = max(gaps)
    return gap, end - change.t, None


def _parts(history: History, change: Event, worker: Worker) -> dict[str, float]:
    """Seconds from the change to a worker's first step, cut where the timeline has seen something."""
    joined, started, loaded = worker.joined.t, worker.started, worker.loaded
    stepped = worker.steps[0].t
    ends = [
        line
        for line in history.of("rendezvous")
        if line.slot == worker.joined.slot and change.t <= line.t <= worker.joined.t
    ]
    met_from, met = (ends[-1].t - ends[-1].seconds, ends[-1].t) if ends else (None, None)
    cut = _cut(history, change, worker)
    spans: list[tuple[str, float | None, float | None]]
    if cut is None:
        spans = [("detect", change.t, met_from)]
    elif change.kind == "join":
        spans = [("detect", change.t, cut), ("stop", cut, met_from)]
    else:
        spans = [("stop", change.t, cut), ("detect", cut, met_from)]
    spans.append(("rendezvous", met_from, met))
    if started is not None:
        spans += [("process_start", met, started.process_t), ("import", started.process_t, worker.imported_t)]
        spans.append(("group_init", worker.imported_t, joined))
    if loaded is not None:
        spans += [("build", joined, loaded.began_t), ("checkpoint_load", loaded.began_t, loaded.t)]
    spans.append(("first_step", joined if loaded is None else loaded.t, stepped))
    found = {}
    latest = change.t
    for part, begin, end in spans:
        if begin is None or end is None:
            continue
        found[part] = max(0.0, end - max(begin, latest))
        latest = max(latest, end)
    return found


def _cut(history: History, change: Event, worker: Worker) -> float | None:
    """What lies between the parts *detect* and *stop*; None: it was not seen.

    Of a join it is the last step that the survivor's old worker took: from then on it was being stopped. Of other
    changes it is the end of the workers that had to go: only then can anybody notice that they have gone.
    """
    old = {
        slot: w
        for (generation, slot), w in sorted(history.workers.items())
        if generation < worker.joined.generation and (w.ended is None or w.ended >= change.t)
    }
    if change.kind != "join":
        ends = [old[slot].ended for slot in change.slots if slot in old]
        return max((end for end in ends if end is not None), default=None)
    before = old.get(worker.joined.slot)
    if before is None or before.ended is None or before.ended > worker.joined.t or not before.steps:
        return None
    return max(change.t, before.steps[-1].t)


def _restarts(history: History, before: int, after: int) -> int:
    used = [0]
    for slot, worker in history.members(after).items():
        earlier = history.workers.get((before, slot))
        if earlier is not None and earlier.started is not None and worker.started is not None:
            used.append(worker.started.restarts - earlier.started.restarts)
    return max(used)


def unplanned(history: History) -> list[tuple[float, str]]:
    """Generations that nobody asked for: the stall that each cost, and what is told of it.

    A stall is from the last step before to the first one of it, of the survivor that waited longest. What happens from
    a change until the job is stable again is that change's.
    """
    first = history.first_step_t
    stable = {line.index: line.t for line in history.of("stable")}
    begun = [(START, 0.0), *((line.index, line.t) for line in history.of("changed"))]
    found = []
    for before, after in itertools.pairwise(history.generations):
        met = min(worker.joined.t for worker in history.members(after).values())
        is_explained = any(begin <= met <= stable.get(index, met) for index, begin in begun)  # the job was on its way
        if first is None or is_explained:
            continue
        old, new = history.members(before), history.members(after)
        waits = [
            new[slot].steps[0].t - old[slot].steps[-1].t
            for slot in old.keys() & new.keys()
            if old[slot].steps and new[slot].steps
        ]
        gone = {slot: worker.ended for slot, worker in old.items() if worker.ended is not None and worker.ended <= met}
        who = f": the worker of slot {min(gone, key=lambda slot: gone[slot])} ended first" if gone else ""
        stall_s = max(waits, default=0.0)
        told = (
            f"generation {after} began {met - first:.1f} s after the first step, without a change in the plan{who}. It "
            f"cost {stall_s:.1f} s, which lost_fraction includes"
        )
        found.append((stall_s, told))
    return found
