"""Clocks of an iteration, and of several. That of the device is tested where there is one: test_iterations.py."""

from __future__ import annotations

import time

from pytest_distbench.worker.clock.delay import Delay
from pytest_distbench.worker.clock.stopwatch import HostStopwatch


def test_of_several_iterations_it_is_the_mean() -> None:
    watch = HostStopwatch(Delay(0.0, time.perf_counter))
    watch.start(1000)
    time.sleep(0.05)
    mean = watch.stop()

    assert 5e-5 <= mean < 5e-2
