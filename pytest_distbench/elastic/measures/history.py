"""A timeline, evaluated: workers, the pass through each step that counted, epochs, and the cost of each change.

The cost is the stall, the recovery and its parts, and the steps redone. Stalls without a change are listed too.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import fsum
from statistics import median
from typing import Literal

from pytest_distbench.elastic.records import START, HeldAt, event
from pytest_distbench.records.kinds import grouped
from pytest_distbench.records.metric import Scalar
from pytest_distbench.records.wire import Event


@dataclass
class Worker:
    """The events of one worker, which is a slot in one generation; None for events that were not observed.

    ``batches``: step -> samples that it was given; ``drawn``: step -> samples that it reported to have trained on
    instead; ``remembered``: sizes of optimizer state before and after its first step; ``held``: moment -> digests.
    """

    joined: Event
    started: Event | None = None
    loaded: Event | None = None
    batches: dict[int, Event] = field(default_factory=dict)
    steps: list[Event] = field(default_factory=list)
    ended: float | None = None
    remembered: Event | None = None
    drawn: dict[int, list[int]] = field(default_factory=dict)
    held: dict[HeldAt, Event] = field(default_factory=dict)

    @property
    def imported_t(self) -> float | None:
        """When the worker had imported what it needs and could join its group, or None if unobserved."""
        if self.started is None:
            return None
        called_t: float | None = self.joined.called_t
        return self.started.t if called_t is None else called_t

    def samples(self, step: int) -> list[int]:
        """Samples that the worker trained on in a step, as far as known."""
        batch = self.batches.get(step)
        return self.drawn.get(step, [] if batch is None else batch.samples)

    def epoch(self, step: Event) -> int | None:
        batch = self.batches.get(step.step)
        epoch: int | None = step.epoch if batch is None else batch.epoch
        return epoch

    @property
    def reports_within_epochs(self) -> bool:
        """Whether there are two steps in a row with a known number of steps between them."""
        return any(b.step > a.step and not b.is_laid for a, b in itertools.pairwise(self.steps))

    @property
    def step_seconds(self) -> list[float]:
        """Seconds per step, from each reported step to the next. A script may report every tenth step alone.

        If it reports an epoch by a single line, they are seconds per epoch.
        """
        pairs = [(a, b) for a, b in itertools.pairwise(self.steps) if b.step > a.step]
        known = [(a, b) for a, b in pairs if not b.is_laid]
        return [(b.t - a.t) / (b.step - a.step) for a, b in known or pairs]


class History:
    """The workers of a timeline by (generation, slot), and what follows from their events.

    If none of them reports steps within epochs, as a script that prints one line per epoch, step numbers count epochs.
    """

    def __init__(self, lines: Sequence[Event]) -> None:
        self.lines = lines
        self.workers: dict[tuple[int, int], Worker] = {}
        self.saved = self.of("saved")
        started = {line.pid: line for line in self.of("started")}
        ended = {line.pid: line.t for line in self.of("worker_ended")}
        for line in lines:
            if line.what == "joined":
                self.workers[line.generation, line.slot] = Worker(
                    joined=line, started=started.get(line.pid), ended=ended.get(line.pid)
                )
            elif (worker := self.workers.get((line.facts.get("generation", -1), line.slot))) is None:
                continue
            elif line.what == "loaded":
                worker.loaded = line
            elif line.what == "remembered":
                worker.remembered = line
            elif line.what == "held" and line.at != "save":
                worker.held[line.at] = line
            elif line.what == "batch":
                worker.batches[line.step] = line
            elif line.what == "drew":
                worker.drawn[line.step] = line.samples
            elif line.what == "stepped":
                worker.steps.append(line)
        self.finished = self.of("finished")
        self._step_s: dict[int, float | None] = {}
        self.reports_within_epochs = any(worker.reports_within_epochs for worker in self.workers.values())

    def of(self, what: str) -> list[Event]:
        return [line for line in self.lines if line.what == what]

    @property
    def first_step_t(self) -> float | None:
        """When the run's first step ended, or None if no step was taken."""
        return min((step.t for worker in self.workers.values() for step in worker.steps), default=None)

    @property
    def generations(self) -> list[int]:
        """Numbers of the generations in which a step was taken, ascending."""
        return sorted({generation for (generation, _), worker in self.workers.items() if worker.steps})

    def members(self, generation: int) -> dict[int, Worker]:
        """The workers of a generation by slot."""
        return {slot: worker for (g, slot), worker in sorted(self.workers.items()) if g == generation}

    def resumed_at(self, generation: int) -> int:
        """The step of the checkpoint that a generation continued from.

        For a script it is the step before the first that it reported.
        """
        members = self.members(generation).values()
        loaded = [w.loaded.step for w in members if w.loaded is not None]
        return max(loaded) if loaded else min((w.steps[0].step - 1 for w in members if w.steps), default=0)

    def world_size(self, generation: int) -> int:
        return max((w.joined.world_size for w in self.members(generation).values()), default=0)

    def kept(self) -> dict[int, int]:
        """Step -> generation whose pass through it counted: no later generation went back before it."""
        found: dict[int, int] = {}
        limit = math.inf
        for generation in reversed(self.generations):
            for worker in self.members(generation).values():
                found |= {step.step: generation for step in worker.steps if step.step <= limit}
            limit = min(limit, self.resumed_at(generation))
        return dict(sorted(found.items()))

    def step_s(self, world_size: int) -> float | None:
        """Median seconds of a step at a world size, or None if no two steps followed each other."""
        if world_size not in self._step_s:
            found = [
                seconds
                for worker in self.workers.values()
                if worker.joined.world_size == world_size
                if worker.reports_within_epochs or not self.reports_within_epochs
                for seconds in worker.step_seconds
            ]
            self._step_s[world_size] = median(found) if found else None
        return self._step_s[world_size]

    def worker_results(self, first: float) -> list[Event]:
        """An event for each worker with what became of it, in seconds from the run's first step."""
        return [
            event(
                "worker",
                t=worker.joined.t - first,
                slot=worker.joined.slot,
                generation=worker.joined.generation,
                rank=worker.joined.rank,
                world_size=worker.joined.world_size,
                process_s=None if worker.started is None else worker.started.process_t - first,
                imported_s=None if worker.imported_t is None else worker.imported_t - first,
                loaded_s=None if worker.loaded is None else worker.loaded.t - first,
                resumed_at=None if worker.loaded is None else worker.loaded.step,
                first_step_s=worker.steps[0].t - first if worker.steps else None,
                last_step_s=worker.steps[-1].t - first if worker.steps else None,
                steps=len(worker.steps),
            )
            for _, worker in sorted(self.workers.items())
        ]

    def passes(self) -> Iterator[tuple[int, int, int | None, list[Event]]]:
        """Each step that counted: its number, its generation, its epoch, and its events, one per worker."""
        by_step = grouped(((of, step.step), step) for (of, _), worker in self.workers.items() for step in worker.steps)
        for number, generation in self.kept().items():
            lines = sorted(by_step[generation, number], key=lambda line: line.slot)
            yield number, generation, self.workers[generation, lines[0].slot].epoch(lines[0]), lines


def epoch_results(history: History, changes: Sequence[Event]) -> list[Event]:
    """An event per epoch. Together they cover all the time between the run's first step and its last.

    A change belongs to the epoch in which the job stepped again.
    """
    first = history.first_step_t
    if first is None:
        return []
    steps = grouped((epoch, lines) for *_, epoch, lines in history.passes() if epoch is not None)
    found = []
    begin = first
    for epoch, passes in sorted(steps.items()):
        every = [line for lines in passes for line in lines]
        end = max(line.t for line in every)
        mine = [c for c in changes if begin < first + c.t + (c.recovery_s or 0.0) <= end]
        found.append(
            event(
                "epoch",
                t=end - first,
                epoch=epoch,
                seconds=end - begin,
                nodes=list(dict.fromkeys(lines[0].world_size for lines in passes)),
                loss=mean_of("loss", every),
                accuracy=mean_of("accuracy", every),
                top5=mean_of("top5", every),
                lr=passes[-1][0].lr,
                changes=[c.index for c in mine],
                stall_s=sum(c.stall_s or 0.0 for c in mine),
                steps_redone=sum(c.steps_redone for c in mine),
            )
        )
        begin = end
    return found


def mean_of(name: Literal["loss", "accuracy", "top5"], lines: Sequence[Event]) -> float | None:
    """Mean of a value over the samples of the steps that recorded it, or None if none did.

    Ranks have shares of a step's samples that differ by one at most. Steps whose samples are unknown count alike.
    """
    values = [(getattr(line, name), (line.samples or 1) / line.world_size) for line in lines]
    values = [(value, share) for value, share in values if value is not None]
    weight = sum(share for _, share in values)  # fsum: the order is that of slots, and a rank may have another one now
    return fsum(value * share for value, share in values) / weight if weight else None


def rates_at(history: History) -> list[tuple[dict[str, Scalar], float]]:
    """Median learning rate at each world size, and at each in every epoch: a rule may depend on both."""
    found: dict[tuple[int, int | None], list[float]] = {}
    for *_, epoch, lines in history.passes():
        for at in {(lines[0].world_size, None), (lines[0].world_size, epoch)}:
            found.setdefault(at, []).extend(line.lr for line in lines if line.lr is not None)
    return [
        ({"nodes": nodes} if epoch is None else {"epoch": epoch, "nodes": nodes}, median(rates))
        for (nodes, epoch), rates in found.items()
        if rates
    ]


_MOST_CHANGES = 10_000  # so many changes of it are kept: a schedule may change it at every step


def rate_changes(history: History) -> list[Event]:
    """The first step with a known learning rate, and each that differs from the step before in rate or nodes."""
    found: list[Event] = []
    first = history.first_step_t or 0.0
    for step, _, epoch, lines in history.passes():
        one = next((line for line in lines if line.lr is not None), None)
        if one is None or one.lr is None or (found and (found[-1].lr, found[-1].nodes) == (one.lr, one.world_size)):
            continue
        found.append(event("rate", t=one.t - first, step=step, epoch=epoch, nodes=one.world_size, lr=one.lr))
        if len(found) == _MOST_CHANGES:
            break
    return found


def change_results(history: History) -> list[Event]:
    first = history.first_step_t
    if first is None:
        return []
    changes, stables = history.of("changed"), [line.t for line in history.of("stable")]
    pairs = [(a, b) for a, b in itertools.pairwise(changes) if not any(a.t <= t <= b.t for t in stables)]
    overlapped = [change for pair in pairs for change in pair]
    return [_result(history, change, first, is_overlapped=change in overlapped) for change in changes]


def _result(history: History, change: Event, first: float, *, is_overlapped: bool) -> Event:
    stable = next((line for line in history.of("stable") if line.t >= change.t and line.index >= change.index), None)
    begun = {g: min(w.steps[0].t for w in history.members(g).values() if w.steps) for g in history.generations}
    before = max((generation for generation, t in begun.items() if t <= change.t), default=None)
    result = {
        "t": change.t - first,
        "index": change.index,
        "kind": change.kind,
        "slots": change.slots,
        "before": 0 if before is None else history.world_size(before),
        "overlapped": is_overlapped,
    }
    if stable is None or before is None:
        return event("change", **result)
    after = stable.generation
    stall_s, recovery_s, worker = (
        _cost_within(history, change, after, stable) if after == before else _cost(history, change, before, after)
    )
    steps = [step.step for g in range(before, after) for worker in history.members(g).values() for step in worker.steps]
    redone = max(0, max(steps, default=0) - history.resumed_at(after)) if after != before else 0
    step_s = history.step_s(history.world_size(before))
    ready = [
        history.workers[after, slot].steps[0].t - change.t
        for slot in change.slots
        if change.kind == "join" and (after, slot) in history.workers and history.workers[after, slot].steps
    ]
    old = [generation for generation in history.generations if generation < after]
    used = [
        worker.started.restarts - earlier.started.restarts
        for slot, worker in history.members(after).items()
        if (earlier := history.workers.get((before, slot))) is not None and earlier.started and worker.started
    ]
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
        restarts_used=max([0, *used]),
        joiner_ready_s=max(ready, default=None),
        slot_free_s=max(freed.values()) - change.t if change.kind == "leave" and freed else None,
        before_it=moment(history, old, last=True) if after != before else None,
        after_it=moment(history, [after], last=False) if after != before else None,
    )


def moment(history: History, generations: Sequence[int], *, last: bool) -> dict[str, float | None] | None:
    """Step, epoch, loss, accuracy and rate of the first or last step of some generations, or None without a step."""
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
    """Stall and recovery of a change at which nobody restarted: the longest wait for a step, and its end."""
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
    """The moment at which the part *detect* of a recovery ends and *stop* begins, or None if unobserved.

    For a join it is the last step of the survivor's old worker: from then on it was being stopped. For other changes it
    is the end of the workers that had to go: only then can anybody notice that they have gone.
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


def unplanned(history: History) -> list[tuple[float, str]]:
    """Generations without a planned change: the stall that each cost, and a remark on it.

    A stall lasts from the last step before to the first one of the generation, for the survivor that waited longest.
    What happens from a change until the job is stable again belongs to that change.
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
        remark = (
            f"generation {after} began {met - first:.1f} s after the first step, without a change in the plan{who}. It "
            f"cost {stall_s:.1f} s, which lost_fraction includes"
        )
        found.append((stall_s, remark))
    return found
