"""A membership plan, change by change: which slots it takes, and whether it can be at all."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator
from typing import get_args

from pytest_distbench.elastic.progress import STABLE_STEPS
from pytest_distbench.elastic.records import Change, ChangeKind, ElasticJob, MembershipPlan
from pytest_distbench.errors import ConfigurationError, show
from pytest_distbench.records.wanted import YES_OR_NO, one_of, seconds, whole

_COUNT = whole(1).plain()

_LOOKED_AT = 1000
"""Changes that are looked at: a cycle may have no end, and comes back to where it was, or not."""


def changes_of(plan: MembershipPlan) -> Iterator[Change]:
    if plan.cycle is None:
        yield from plan.changes
        return
    cycle = plan.cycle
    for number in itertools.count() if cycle.times is None else range(cycle.times):
        yield Change(kind="join", at_s=(2 * number + 1) * cycle.period_s, nodes=cycle.on)
        yield Change(kind=cycle.by, at_s=(2 * number + 2) * cycle.period_s, nodes=cycle.off)


def choose_slots(change: Change, taken: Collection[int], *, least: int, most: int) -> list[int]:
    free = [slot for slot in range(most) if slot not in taken]
    if change.kind == "join":
        if change.nodes > len(free):
            raise ConfigurationError(
                f"{change}: {len(taken)} nodes and {change.nodes} more are {len(taken) + change.nodes}, and there are "
                f"{most} slots; wanted at most nodes=({least}, {most})"
            )
        return free[: change.nodes]
    if change.slot is not None and change.slot not in taken:
        raise ConfigurationError(
            f"{change}: slot {change.slot} is empty then; occupied are {', '.join(map(str, sorted(taken)))}"
        )
    chosen = sorted(taken)[-change.nodes :] if change.slot is None else [change.slot]
    left = len(taken) - len(chosen)
    if change.kind in ("leave", "kill") and (left < least or len(chosen) < change.nodes):
        raise ConfigurationError(
            f"{change}: of {len(taken)} nodes {len(taken) - change.nodes} would be left, fewer than MIN; wanted at "
            f"least {least} of nodes=({least}, {most})"
        )
    return chosen


def taken_after(change: Change, slots: Collection[int], taken: Collection[int]) -> set[int]:
    if change.kind == "join":
        return {*taken, *slots}
    return set(taken) - set(slots) if change.kind in ("leave", "kill") else set(taken)


def usual_start(plan: MembershipPlan, *, least: int, most: int) -> int:
    """Nodes at the beginning, unless the test says: all there may be; the fewest where some are to join first."""
    first = next(changes_of(plan), None)
    return least if first is not None and first.kind == "join" else most


def check_values(plan: MembershipPlan) -> None:
    """Make sure that what a plan holds are numbers and words that can be, before anybody counts with them."""
    cycle = plan.cycle
    if cycle is not None:
        seconds(above=0).plain()("cycle: period_s", cycle.period_s)
        for name, nodes in (("on", cycle.on), ("off", cycle.off), ("times", cycle.times)):
            if nodes is not None or name != "times":
                _COUNT(f"cycle: {name}", nodes)
        one_of(("leave", "kill"))("cycle: by", cycle.by)
    for change in plan.changes:
        _check_change(change)


def check_job(job: ElasticJob) -> None:
    cycle = job.plan.cycle
    check_values(job.plan)
    taken = set(range(job.start))
    latest: dict[str, Change] = {}
    for change in itertools.islice(changes_of(job.plan), _LOOKED_AT):
        _check_order(latest, change)
        if job.hold:
            _check_hold(job, change)
        try:
            slots = choose_slots(change, taken, least=job.least, most=job.most)
        except ConfigurationError as error:
            raise ConfigurationError(f"{cycle}: {error}" if cycle is not None else str(error)) from None
        taken = taken_after(change, slots, taken)
    held = [0, *(change.at_step or 0 for change in job.plan.changes)] if job.hold else []
    for before, step in itertools.pairwise(held):
        if step - before < STABLE_STEPS:
            raise ConfigurationError(
                f"hold=True: {step - before} steps lie between at_step={before} and at_step={step}; wanted at least "
                f"{STABLE_STEPS}, which make a job stable"
            )


def _check_hold(job: ElasticJob, change: Change) -> None:
    if change.at_step is None or job.checkpoint_every is None or change.at_step % job.checkpoint_every:
        every = "" if job.checkpoint_every is None else f", a multiple of {job.checkpoint_every} (checkpoint_every=)"
        raise ConfigurationError(f"{change}: the nodes hold after a step with a checkpoint; wanted at_step={every}")
    if change.kind == "stop" or change.overlaps:
        raise ConfigurationError(f"{change}: the nodes hold until the membership has changed, which never happens here")


def _check_change(change: Change) -> None:
    if change.kind not in get_args(ChangeKind):
        raise ConfigurationError(f"{show(change.kind)} is no change; wanted {', '.join(get_args(ChangeKind))}")
    if (change.at_s is None) == (change.at_step is None):
        raise ConfigurationError(f"{change.kind}: wanted at_s= or at_step=, one of them, to say when")
    if change.at_s is not None:
        seconds(least=0).plain()(f"{change.kind}: at_s", change.at_s)
    if change.at_step is not None:
        _COUNT(f"{change.kind}: at_step", change.at_step)
    _COUNT(f"{change.kind}: nodes", change.nodes)
    YES_OR_NO(f"{change.kind}: overlaps", change.overlaps)
    if change.slot is not None:
        whole(0).plain()(f"{change.kind}: slot", change.slot)
        if change.nodes != 1:
            raise ConfigurationError(f"{change}: slot= names one node, and nodes={change.nodes} are more")
    if change.kind == "stop":
        seconds(above=0).plain()("stop: for_s", change.for_s)


def _check_order(latest: dict[str, Change], change: Change) -> None:
    """A change that is due before one listed above it would be in the past when its turn comes. It takes its place."""
    name = "at_s" if change.at_s is not None else "at_step"
    before = latest.get(name)
    if before is not None and getattr(change, name) < getattr(before, name):
        raise ConfigurationError(
            f"{change} comes after {before}; list changes in their order, with {name} that does not fall"
        )
    latest[name] = change
