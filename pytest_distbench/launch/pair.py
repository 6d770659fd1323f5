"""Launches held open together, whose bodies run in turns."""

from __future__ import annotations

import contextlib
import random
import selectors
from collections.abc import Callable, Sequence

from pytest_distbench.launch.side import Arm
from pytest_distbench.launch.supervise import Supervised, open_launch
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.plan import LaunchPlan
from pytest_distbench.records.record import replace
from pytest_distbench.records.work import Ranks


def run_in_turns(arms: Sequence[Arm]) -> list[LaunchRecord | None]:
    """Run launches of ranks at once, whose bodies take turns, block by block. Nothing of any outlives the call.

    A launch that does not pass ends the others at once, which then have no record: what they measured without it is no
    comparison. Each launcher has a session of its own for that. A launch's limit stands still while it waits for its
    turn: the others' limits bound that wait.
    """
    with contextlib.ExitStack() as stack, selectors.DefaultSelector() as all_arms:
        launches = [stack.enter_context(open_launch(_taking_turns(plan), side)) for plan, side in arms]
        turnstile = Turnstile(launches, random.SystemRandom().shuffle)
        for launch in launches:
            all_arms.register(launch.site, selectors.EVENT_READ)
            launch.on_ready = turnstile.ask
        records: dict[Supervised, LaunchRecord] = {}
        while len(records) < len(launches) and all(r.outcome == "passed" for r in records.values()):
            running = [launch for launch in launches if launch not in records]
            all_arms.select(min(launch.patience() for launch in running))
            for launch in [launch for launch in running if launch.advance(0.0)]:
                all_arms.unregister(launch.site)
                launch.finish()
                records[launch] = launch.record()
                turnstile.leave(launch)
    return [_alone_at_its_turn(records.get(launch)) for launch in launches]


def _taking_turns(plan: LaunchPlan) -> LaunchPlan:
    return replace(plan, work=replace(plan.expect(Ranks), takes_turns=True))


def _alone_at_its_turn(record: LaunchRecord | None) -> LaunchRecord | None:
    """To each group the others are foreign work, which says nothing about the machine."""
    return record and replace(record, foreign_cores=None, foreign_wanted=None, crowding=None)


class Turnstile:
    """Gives the turn to one group at a time.

    A turn is given only while every group waits that has not left: until it first asks a group starts up, later it asks
    after each block. In every round each group has one turn; ``shuffle`` draws the order of a round anew, in place.
    """

    def __init__(self, launches: Sequence[Supervised], shuffle: Callable[[list[Supervised]], None]) -> None:
        self._present = list(launches)
        self._shuffle = shuffle
        self._waiting: list[Supervised] = []
        self._round: list[Supervised] = []

    def ask(self, launch: Supervised) -> None:
        """A group waits for its turn."""
        self._waiting.append(launch)
        self._next()

    def leave(self, launch: Supervised) -> None:
        """A group has ended: the others go on without it."""
        for queue in (self._present, self._waiting, self._round):
            if launch in queue:
                queue.remove(launch)
        self._next()

    def _next(self) -> None:
        if not self._present or len(self._waiting) < len(self._present):
            return
        if not self._round:
            self._round = list(self._present)
            self._shuffle(self._round)
        launch = self._round.pop(0)
        self._waiting.remove(launch)
        launch.give_turn()
