"""Who gets the slots of a pool: the policies. Pure: from what there is to what is done now."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from pytest_distbench.records.elastic import SERVING, Policy


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """A job that has been submitted and has not ended. Slots it was asked to give back are not among its own.

    A stable one trains on all of them; it may be given more, or asked for some so that another job can start.
    """

    name: str
    least: int
    most: int
    slots: frozenset[int] = frozenset()
    is_stable: bool = False

    @property
    def spare(self) -> int:
        return max(0, len(self.slots) - self.least)


@dataclass(slots=True)
class Decision:
    """What is done now: (owner, slot) that it gets, and that it is to give back."""

    grants: list[tuple[str, int]] = field(default_factory=list)
    asks: list[tuple[str, int]] = field(default_factory=list)


def decide(
    policy: Policy,
    jobs: Sequence[Holder],
    *,
    free: Collection[int],
    coming: int = 0,
    servers: Collection[int] = (),
    wanted: int = 0,
) -> Decision:
    """Share out the slots. Jobs come in the order in which they were submitted, and none passes the one before it.

    Coming are slots that somebody was asked for and still has. Before all jobs goes the serving, which has the slots of
    its servers and should have as many as are wanted.
    """
    decision = Decision()
    left = sorted(free)
    if policy == "gang":
        _start(decision, jobs, left, fewest={job.name: job.most for job in jobs})
        return decision
    missing = wanted - len(servers)
    if missing < 0:
        decision.asks += [(SERVING, slot) for slot in sorted(servers)[missing:]]
    granted = [left.pop(0) for _ in range(min(max(0, missing), len(left)))]
    decision.grants += [(SERVING, slot) for slot in granted]
    missing -= len(granted)
    if missing > 0:
        _ask(decision, jobs, missing - coming)
        return decision
    waiting = _start(decision, jobs, left, fewest={job.name: job.least for job in jobs})
    if waiting is not None:
        missing = waiting.least - len(left) - coming
        stable = [job for job in jobs if job.is_stable]
        if sum(job.spare for job in stable) >= missing:
            _ask(decision, stable, missing)
        return decision
    for job in jobs:
        if job.slots and job.is_stable:
            decision.grants += [(job.name, left.pop(0)) for _ in range(min(job.most - len(job.slots), len(left)))]
    return decision


def _start(decision: Decision, jobs: Sequence[Holder], left: list[int], *, fewest: dict[str, int]) -> Holder | None:
    """Start jobs that wait; returns the first for which there are not enough slots."""
    for job in jobs:
        if job.slots:
            continue
        if len(left) < fewest[job.name]:
            return job
        decision.grants += [(job.name, left.pop(0)) for _ in range(min(job.most, len(left)))]
    return None


def _ask(decision: Decision, jobs: Sequence[Holder], missing: int) -> None:
    """Ask for slots: of the job that can spare most, of several the last; its highest first."""
    asked: dict[str, int] = {}
    for _ in range(missing):
        able = [job for job in jobs if job.spare > asked.get(job.name, 0)]
        if not able:
            return
        chosen = max(reversed(able), key=lambda job: job.spare - asked.get(job.name, 0))
        asked[chosen.name] = asked.get(chosen.name, 0) + 1
        decision.asks.append((chosen.name, sorted(chosen.slots)[-asked[chosen.name]]))
