"""How time is measured in a rank: iterations, steps, blocks, and the clocks of the host and the device.

Here are the host's, as they were when the package was imported, and a delay that they see. A body or a script may put
others in their place, which stand still or jump: freezegun does, in every module that it finds, and a test of a
scheduler patches the module ``time``. What is measured is the time that passes all the same. A delay is a slowdown that
is planted, and really passes: what a clock spans takes longer by a share of itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable


class HostClock:
    """Functions of the module ``time``. They are attributes of no module, where freezegun would find them."""

    monotonic = staticmethod(time.monotonic)
    monotonic_ns = staticmethod(time.monotonic_ns)
    perf_counter = staticmethod(time.perf_counter)
    process_time = staticmethod(time.process_time)
    thread_time = staticmethod(time.thread_time)
    time_ns = staticmethod(time.time_ns)


_AWAKE_S = 100e-6
"""The last of a wait is spent awake: the system wakes a sleeper up to so much late."""


Mark = tuple[float, float, float]
"""A moment, and what had been waited for until then, and computed by this thread."""


class Delay:
    """Waits, where a clock is about to stop, for a share of what it has spanned.

    What is spanned may be delayed in part already, as a phase is in its iteration: then only the rest is waited for,
    and the whole is longer by the same share. It waits as it was: awake for as much of it as the thread has computed,
    because beside others who sleeps gets a core back late, and who never does loses his turn to those that do. None of
    that counts in the CPU time that the meter tells: it is a slowdown that only the clock can see.

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
        return self._clock(), self.waited_s, HostClock.thread_time() if self.share else 0.0

    def wait(self, since: Mark, *, apart_s: float = 0.0, is_apart: bool = False) -> None:
        """A clock stops now, which has spanned what happened since, but for so many seconds.

        What is apart itself is no part of what is spanned around it, and its delay is none of that.
        """
        if not self.share:
            return
        now, began_s = self._clock(), HostClock.thread_time()
        at, before_s, cpu_s = since
        within_s = self.waited_s - before_s
        due_s = self.rest(now - at - apart_s - within_s, within_s)
        computed = min(1.0, (began_s - cpu_s) / max(now - at, _AWAKE_S))
        if (asleep_s := due_s * (1 - computed) - _AWAKE_S) > 0:
            time.sleep(asleep_s)
        while (waited_s := self._clock() - now) < due_s:
            pass
        self.awake_s += HostClock.thread_time() - began_s
        if due_s > 0 and not is_apart:
            self.waited_s += waited_s

    def rest(self, own_s: float, within_s: float) -> float:
        """What is still to be waited for, of something that took so long by itself, and was delayed by so much."""
        return max(0.0, self.share * own_s - within_s)
