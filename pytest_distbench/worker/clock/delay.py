"""Delay: what a clock spans takes longer by a share of itself. A slowdown that is planted, and really passes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

_AWAKE_S = 2e-3
"""The rest of a wait is spent awake: where others wait for the cores, who sleeps gets one back late."""


class Mark(NamedTuple):
    """A moment, and what had been waited for until then."""

    at: float
    waited_s: float


class Delay:
    """Waits, where a clock is about to stop, for a share of what it has spanned.

    What is spanned may be delayed in part already, as a phase is in its iteration: then only the rest is waited for,
    and the whole is longer by the same share. The wait counts as none of the CPU time that the meter tells: a slowdown
    that only the clock can see.

    Attributes:
        share: as a fraction; 0: nothing is ever waited for.
        waited_s: so far, on the host or enqueued on the device.
        awake_s: CPU time that this has taken.
    """

    def __init__(self, share: float, clock: Callable[[], float]) -> None:
        self.share = share
        self.waited_s = self.awake_s = 0.0
        self._clock = clock

    def mark(self) -> Mark:
        """A clock starts now."""
        return Mark(self._clock(), self.waited_s)

    def wait(self, since: Mark, *, apart_s: float = 0.0, is_apart: bool = False) -> None:
        """A clock stops now, which has spanned what happened since, but for so many seconds.

        What is apart itself is no part of what is spanned around it, and its delay is none of that.
        """
        if not self.share:
            return
        now = self._clock()
        within_s = self.waited_s - since.waited_s
        due_s = self.rest(now - since.at - apart_s - within_s, within_s)
        if due_s > _AWAKE_S:
            time.sleep(due_s - _AWAKE_S)
        began_s = time.thread_time()
        while (waited_s := self._clock() - now) < due_s:
            pass
        self.awake_s += time.thread_time() - began_s
        if due_s > 0 and not is_apart:
            self.waited_s += waited_s

    def rest(self, own_s: float, within_s: float) -> float:
        """What is still to be waited for, of something that took so long by itself, and was delayed by so much."""
        return max(0.0, self.share * own_s - within_s)
