"""What an iteration cost besides its time."""

from __future__ import annotations

import time

from pytest_distbench.worker.clock.delay import Delay
from pytest_distbench.worker.clock.meter import Meter


def test_each_iteration_has_its_cpu_time_and_its_waits() -> None:
    meter = Meter(Delay(0.0, time.perf_counter))
    meter.start()
    until = time.process_time() + 0.01
    while time.process_time() < until:
        pass
    meter.stop()
    meter.start()
    time.sleep(0.001)
    meter.stop()

    assert meter.cpu_s[0] >= 0.01
    assert meter.waits[1] >= 1
    assert len(meter.cpu_s) == len(meter.waits) == 2


def test_of_several_iterations_the_mean_is_kept_and_what_the_host_did_stands_beside() -> None:
    meter = Meter(Delay(0.0, time.perf_counter))
    meter.start()
    until = time.process_time() + 0.01
    while time.process_time() < until:
        pass
    meter.stop(10)
    meter.note(host_s=0.5, exposed=1.0)

    assert 0.001 <= meter.cpu_s[0] < 0.01
    assert meter.witnesses() == {"cpu_s": meter.cpu_s, "waits": meter.waits, "host_s": [0.5], "exposed": [1.0]}
