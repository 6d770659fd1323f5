"""Turns: of several groups that are held open one runs at a time, block by block, in random order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar


class TurnTaker(Protocol):
    """A group that runs until it asks for its next turn."""

    def give_turn(self) -> None:
        """Let it run."""


Taker = TypeVar("Taker", bound=TurnTaker)


class Turnstile(Generic[Taker]):
    """Gives the turn to one group at a time.

    A turn is given only while every group waits that has not left: until it first asks a group starts up, later it
    asks after each block. In every round each group has one turn; the order of a round is drawn anew.

    Args:
        takers: all groups; none of them waits yet.
        shuffle: brings a list into random order, in place.
    """

    def __init__(self, takers: Sequence[Taker], shuffle: Callable[[list[Taker]], None]) -> None:
        self._present = list(takers)
        self._shuffle = shuffle
        self._waiting: list[Taker] = []
        self._round: list[Taker] = []

    def ask(self, taker: Taker) -> None:
        """A group waits for its turn."""
        self._waiting.append(taker)
        self._next()

    def leave(self, taker: Taker) -> None:
        """A group has ended: the others go on without it."""
        for queue in (self._present, self._waiting, self._round):
            if taker in queue:
                queue.remove(taker)
        self._next()

    def _next(self) -> None:
        if not self._present or len(self._waiting) < len(self._present):
            return
        if not self._round:
            self._round = list(self._present)
            self._shuffle(self._round)
        taker = self._round.pop(0)
        self._waiting.remove(taker)
        taker.give_turn()
