"""The clocks of a rank. Here are the host's, and a delay that they see.

They are as they were when the package was imported: freezegun, or a test that patches the module ``time``, may put
others in their place that stand still or jump, and the time that passes is measured all the same. A delay is a slowdown
that really passes: what a clock spans takes longer by a share of itself.
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


_AWAKE_S = 100e-6  # the last of a wait is spent awake: the system wakes a sleeper up to so much late


Mark = tuple[float, float, float]  # a moment, seconds waited until then, and CPU seconds of this thread


class Delay:
    """Waits, where a clock is about to stop, for a share of what it has spanned, 0 for never.

    A phase inside an iteration may be delayed already: then only the rest is waited for, and the whole is longer by the
    same share. It waits awake for as much of it as the thread has computed: who sleeps beside others gets a core back
    late, and who never does loses his turn to those that do. The meter leaves out ``awake_s``, CPU time that this has
    taken. ``waited_s``: so far, on the host or enqueued on the device.
    """

    def __init__(self, share: float, clock: Callable[[], float]) -> None:
        self.share = share
        self.waited_s = self.awake_s = 0.0
        self._clock = clock

    def mark(self) -> Mark:
        return self._clock(), self.waited_s, HostClock.thread_time() if self.share else 0.0

    def wait(self, since: Mark, *, apart_s: float = 0.0, is_apart: bool = False) -> None:
        """Stop a clock that has spanned what happened since the mark, but for ``apart_s``.

        ``is_apart``: it is no part of what is spanned around it, nor is its delay.
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
        """What is still to be waited for, of something with so many own and already delayed seconds."""
        return max(0.0, self.share * own_s - within_s)
