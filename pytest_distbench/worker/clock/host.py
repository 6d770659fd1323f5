"""HostClock: the clocks of this process as they were when the package was imported.

A body or a script may put others in their place, which stand still or jump: freezegun does, in every module that it
finds, and a test of a scheduler patches the module ``time``. What is measured is the time that passes all the same.
"""

from __future__ import annotations

import time


class HostClock:
    """Functions of the module ``time``. They are attributes of no module, where freezegun would find them."""

    monotonic = staticmethod(time.monotonic)
    monotonic_ns = staticmethod(time.monotonic_ns)
    perf_counter = staticmethod(time.perf_counter)
    process_time = staticmethod(time.process_time)
    thread_time = staticmethod(time.thread_time)
    time_ns = staticmethod(time.time_ns)
