"""The host's clocks, and a delay for positive controls.

The clocks are those of the first import: freezegun, or a test that patches the module ``time``, may replace them by
clocks that stand still or jump, and time is still measured. A delay is a slowdown that really passes: timed code takes
longer by a share of its own time.
"""

from __future__ import annotations

import time
from collections.abc import Callable


class HostClock:
    """Functions of the module ``time``, kept in a class because freezegun replaces attributes of modules."""

    monotonic = staticmethod(time.monotonic)
    monotonic_ns = staticmethod(time.monotonic_ns)
    perf_counter = staticmethod(time.perf_counter)
    process_time = staticmethod(time.process_time)
    thread_time = staticmethod(time.thread_time)
    time_ns = staticmethod(time.time_ns)


_AWAKE_S = 100e-6  # the last of a wait is spent awake: the system wakes a sleeper up to so much late


Mark = tuple[float, float, float]  # a moment, seconds waited until then, and CPU seconds of this thread


class Delay:
    """Waits for a share of the timed seconds before a timing ends; 0 for never.

    A phase inside an iteration may be delayed already: then only the rest is waited for, and the whole is longer by the
    same share. It spins for as much of the wait as the thread has computed, and sleeps otherwise: a sleeper gets a core
    back late when others compute, and a thread that never sleeps loses its turn to others. ``awake_s``: CPU time of the
    delay, which the meter leaves out. ``waited_s``: seconds waited so far, on the host or enqueued on the device.
    """

    def __init__(self, share: float, clock: Callable[[], float]) -> None:
        self.share = share
        self.waited_s = self.awake_s = 0.0
        self._now = clock

    def mark(self) -> Mark:
        return self._now(), self.waited_s, HostClock.thread_time() if self.share else 0.0

    def wait(self, since: Mark, *, apart_s: float = 0.0, is_apart: bool = False) -> None:
        """Wait, before a timing that began at a mark ends, for a share of it; ``apart_s`` of its seconds do not count.

        ``is_apart``: the timed part, and its delay, do not count for the timings around it.
        """
        if not self.share:
            return
        now, began_s = self._now(), HostClock.thread_time()
        at, before_s, cpu_s = since
        within_s = self.waited_s - before_s
        due_s = self.rest(now - at - apart_s - within_s, within_s)
        computed = min(1.0, (began_s - cpu_s) / max(now - at, _AWAKE_S))
        if (asleep_s := due_s * (1 - computed) - _AWAKE_S) > 0:
            time.sleep(asleep_s)
        while (waited_s := self._now() - now) < due_s:
            pass
        self.awake_s += HostClock.thread_time() - began_s
        if due_s > 0 and not is_apart:
            self.waited_s += waited_s

    def rest(self, own_s: float, within_s: float) -> float:
        """Seconds still to wait, for code that took ``own_s`` by itself and was delayed by ``within_s``."""
        return max(0.0, self.share * own_s - within_s)
