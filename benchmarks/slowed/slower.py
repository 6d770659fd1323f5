"""More work in the code itself, or more waiting: so much of each iteration's time. ``confirmation.py`` writes both."""

import time

SHARE = 0.0
WAITS = 0.0


def work_more(start: float) -> None:
    """Compute for SHARE of the time since ``start``, which is of ``time.perf_counter``."""
    end = time.perf_counter()
    until = end + SHARE * (end - start)
    while time.perf_counter() < until:
        pass
