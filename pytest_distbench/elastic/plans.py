"""Changes of membership of an elastic job: ``cycle``, ``join``, ``leave``, ``kill``, ``crash``, ``stop``, ``draw``.

The module also has the parts of a pool, ``job`` and ``serving``, and ``rates``, for tests of a learning-rate rule.

Changes are values for ``plan=`` of the ``elastic`` fixture. A change happens at ``at_s``, seconds of training, or at
``at_step``, the training's own number of the step. The time of ``at_s`` begins when all nodes of the start have taken
steps, and pauses from a change until the job is stable again. The rest of the module checks a plan, and chooses the
slots of each change.
"""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from pytest_distbench.elastic.progress import STABLE_STEPS
from pytest_distbench.elastic.records import Change, ChangeKind, Cycle, ElasticJob, Plan
from pytest_distbench.errors import ConfigurationError, show
from pytest_distbench.records.wanted import YES_OR_NO, one_of, seconds, whole

__all__ = ["crash", "cycle", "draw", "job", "join", "kill", "leave", "rates", "serving", "stop"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedJob:
    """One job of a pool, as :func:`job` describes it."""

    name: str
    body: Callable[..., object] | str
    nodes: int | tuple[int, int]
    submit_s: float
    params: Mapping[str, Any] | None
    seed: int
    ends_after: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedServing:
    """The serving of a pool, as :func:`serving` describes it."""

    body: Callable[..., object] | str
    demand: Sequence[tuple[float, int]]
    params: Mapping[str, Any] | None


def cycle(
    period_s: float,
    on: int = 1,
    off: int | None = None,
    *,
    times: int | None = None,
    by: Literal["leave", "kill"] = "leave",
) -> Cycle:
    """Nodes that join and leave periodically.

    Args:
        period_s: seconds of training between two changes.
        on: nodes that join after the first period, the third, ...
        off: nodes that leave after the second, the fourth, ..., by default as many.
        times: how often, by default until the training ends.
        by: ``leave`` (SIGTERM) or ``kill`` (SIGKILL of the whole node).
    """
    return Cycle(period_s=period_s, on=on, off=on if off is None else off, times=times, by=by)


def join(*, at_s: float | None = None, at_step: int | None = None, nodes: int = 1, overlaps: bool = False) -> Change:
    """Nodes join: their agents are started.

    Args:
        at_s: seconds of training.
        at_step: number of the step.
        nodes: number of nodes that join.
        overlaps: the change does not wait until the one before it is over.
    """
    return Change(kind="join", at_s=at_s, at_step=at_step, nodes=nodes, overlaps=overlaps)


def leave(
    *,
    at_s: float | None = None,
    at_step: int | None = None,
    nodes: int = 1,
    slot: int | None = None,
    overlaps: bool = False,
) -> Change:
    """Nodes are asked to leave: SIGTERM to their agents, as a scheduler does.

    Args:
        at_s: seconds of training.
        at_step: number of the step.
        nodes: number of nodes that leave.
        slot: slot of the node that leaves; by default those with the highest slots leave.
        overlaps: the change does not wait until the one before it is over.
    """
    return Change(kind="leave", at_s=at_s, at_step=at_step, nodes=nodes, slot=slot, overlaps=overlaps)


def kill(
    *,
    at_s: float | None = None,
    at_step: int | None = None,
    nodes: int = 1,
    slot: int | None = None,
    overlaps: bool = False,
) -> Change:
    """Nodes are lost: SIGKILL to all their processes."""
    return Change(kind="kill", at_s=at_s, at_step=at_step, nodes=nodes, slot=slot, overlaps=overlaps)


def crash(*, at_s: float | None = None, at_step: int | None = None, slot: int | None = None) -> Change:
    """The worker of a node dies of SIGKILL, as when memory is short; its agent lives and starts another."""
    return Change(kind="crash", at_s=at_s, at_step=at_step, slot=slot)


def stop(*, for_s: float, at_s: float | None = None, at_step: int | None = None, slot: int | None = None) -> Change:
    """A node is suspended: SIGSTOP to all its processes, and SIGCONT after ``for_s`` seconds."""
    return Change(kind="stop", at_s=at_s, at_step=at_step, slot=slot, for_s=for_s)


def draw(seed: int, *, nodes: tuple[int, int], changes: int, period_s: float) -> list[Change]:
    """Draw changes by a seed, beginning with a full job.

    Args:
        seed: the same seed gives the same plan.
        nodes: the minimum and the maximum, as for the job.
        changes: number of changes.
        period_s: seconds of training between two changes.

    Raises:
        ConfigurationError: an argument is not what is wanted.
    """
    is_pair = isinstance(nodes, tuple | list) and len(nodes) == 2 and all(type(n) is int for n in nodes)
    if not is_pair or not 1 <= nodes[0] <= nodes[1]:
        raise ConfigurationError(f"draw: nodes={show(nodes)}; wanted the fewest and the most: (1, 3)")
    chance = random.Random(seed)
    least, most = nodes
    taken = set(range(most))
    found = []
    for number in range(1, changes + 1):
        kinds: list[ChangeKind] = ["crash"]
        kinds += ["join"] if len(taken) < most else []
        kinds += ["leave", "kill"] if len(taken) > least else []
        kind = chance.choice(kinds)
        slot = None if kind == "join" else chance.choice(sorted(taken))
        change = Change(kind=kind, at_s=number * period_s, slot=slot)
        taken = taken_after(change, choose_slots(change, taken, least=least, most=most), taken)
        found.append(change)
    return found


def job(
    name: str,
    body: Callable[..., object] | str,
    *,
    nodes: int | tuple[int, int],
    submit_s: float = 0.0,
    params: Mapping[str, Any] | None = None,
    seed: int = 0,
    ends_after: int | None = None,
) -> WantedJob:
    """One of the jobs that share a pool, for ``elastic_pool``.

    Args:
        name: distinguishes it from the others, in metrics and tables.
        body: function or ``"file.py::function"``, as for ``elastic``.
        nodes: the number of slots, or the minimum and the maximum.
        submit_s: seconds from the first step of the first job.
        params: JSON-able; parameters of the body.
        seed: seed of the training.
        ends_after: next to a serving process: it ends so many steps after it got back the slots of the last demand.
    """
    return WantedJob(
        name=name, body=body, nodes=nodes, submit_s=submit_s, params=params, seed=seed, ends_after=ends_after
    )


def rates(launch: Mapping[str, float | None]) -> dict[tuple[int, int], float]:
    """Learning rates of a launch by epoch and number of nodes: for a rule of both, as ``_schedule(epoch) * size``.

    Args:
        launch: the argument of the function of ``distbench.judge``.
    """
    found = ((_RATE.fullmatch(metric), value) for metric, value in launch.items())
    return {(int(at[1]), int(at[2])): value for at, value in found if at is not None and value is not None}


_RATE = re.compile(r"lr\[epoch=(\d+),nodes=(\d+)\]")


def serving(
    body: Callable[..., object] | str, *, demand: Sequence[tuple[float, int]], params: Mapping[str, Any] | None = None
) -> WantedServing:
    """An inference process with priority over the jobs of a pool, and the slots that it needs over time.

    Args:
        body: a function that loads a model, or ``"file.py::function"``. Each server, a process with a slot, runs it,
            and is ready when it returns.
        demand: pairs of (seconds from the first step of the first job, slots from then on), by time.
        params: JSON-able; parameters of the body.
    """
    return WantedServing(body=body, demand=demand, params=params)


_COUNT = whole(1).plain()

_LOOKED_AT = 1000  # changes that are looked at: a cycle may have no end, and comes back to where it was, or not


def changes_of(plan: Plan) -> Iterator[Change]:
    if not isinstance(plan, Cycle):
        yield from plan
        return
    for number in itertools.count() if plan.times is None else range(plan.times):
        yield Change(kind="join", at_s=(2 * number + 1) * plan.period_s, nodes=plan.on)
        yield Change(kind=plan.by, at_s=(2 * number + 2) * plan.period_s, nodes=plan.off)


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


def usual_start(plan: Plan, *, least: int, most: int) -> int:
    """Default number of nodes at the start: the minimum if some join first, else the maximum."""
    first = next(changes_of(plan), None)
    return least if first is not None and first.kind == "join" else most


def check_values(plan: Plan) -> None:
    """Raise ConfigurationError unless every number and word of a plan is valid."""
    if isinstance(plan, Cycle):
        seconds(above=0).plain()("cycle: period_s", plan.period_s)
        for name, nodes in (("on", plan.on), ("off", plan.off), ("times", plan.times)):
            if nodes is not None or name != "times":
                _COUNT(f"cycle: {name}", nodes)
        one_of(("leave", "kill"))("cycle: by", plan.by)
        return
    for change in plan:
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


def check_job(job: ElasticJob) -> None:
    cycle = job.cycle
    check_values(job.plan)
    taken = set(range(job.start))
    latest: dict[str, Change] = {}
    for change in itertools.islice(changes_of(job.plan), _LOOKED_AT):
        # a change that is due before one listed above it would be in the past when its turn comes
        name = "at_s" if change.at_s is not None else "at_step"
        before = latest.get(name)
        if before is not None and getattr(change, name) < getattr(before, name):
            raise ConfigurationError(
                f"{change} comes after {before}; list changes in their order, with {name} that does not fall"
            )
        latest[name] = change
        every = job.checkpoint_every
        if job.hold and (change.at_step is None or every is None or change.at_step % every):
            wanted = "" if every is None else f", a multiple of {every} (checkpoint_every=)"
            raise ConfigurationError(
                f"{change}: the nodes hold after a step with a checkpoint; wanted at_step={wanted}"
            )
        if job.hold and (change.kind == "stop" or change.overlaps):
            raise ConfigurationError(
                f"{change}: the nodes hold until the membership has changed, which never happens here"
            )
        try:
            slots = choose_slots(change, taken, least=job.least, most=job.most)
        except ConfigurationError as error:
            raise ConfigurationError(f"{cycle}: {error}" if cycle is not None else str(error)) from None
        taken = taken_after(change, slots, taken)
    held = [0, *(change.at_step or 0 for change in job.changes)] if job.hold else []
    for earlier, later in itertools.pairwise(held):
        if later - earlier < STABLE_STEPS:
            raise ConfigurationError(
                f"hold=True: {later - earlier} steps lie between at_step={earlier} and at_step={later}; wanted at "
                f"least {STABLE_STEPS}, which make a job stable"
            )
