"""Stopwatch: the clock of an iteration, or of several in one breath: the host's, or the device's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch

from pytest_distbench.errors import RecordingError
from pytest_distbench.units import format_quantity
from pytest_distbench.worker.clock.busy import BusyStream
from pytest_distbench.worker.clock.delay import Delay
from pytest_distbench.worker.clock.host import HostClock
from pytest_distbench.worker.clock.meter import Meter
from pytest_distbench.worker.clock.parts import recorded

LEFT_SHARE, LEFT_S = 0.05, 20e-6
"""What the device still does when its clock stops passes for nothing up to this share of what was timed, or so long."""


class Stopwatch(Protocol):
    """Times what lies between its two methods."""

    def start(self, iterations: int = 1) -> None:
        """So many iterations follow. Whatever has to be done first is no part of what is timed."""

    def stop(self) -> float:
        """Seconds of an iteration; of several their mean."""

    def settle(self, iterations: int = 1) -> None:
        """The warm-up is over: from now on every value is measured in the same way, so many iterations at a time.

        Raises:
            RecordingError: in every iteration so far the device went on with work that the clock does not hold.
        """


class HostStopwatch:
    """Reads the host's clock."""

    def __init__(self, delay: Delay) -> None:
        self._delay = delay
        self._mark = delay.mark()
        self._start = 0.0
        self._iterations = 1

    def start(self, iterations: int = 1) -> None:
        self._iterations = iterations
        self._mark = self._delay.mark()
        self._start = HostClock.perf_counter()

    def stop(self) -> float:
        if self._delay.share:
            self._delay.wait(self._mark)
        return (HostClock.perf_counter() - self._start) / self._iterations

    def settle(self, iterations: int = 1) -> None:
        """It has one way only."""


class DeviceStopwatch:
    """Times what the device does, with events on its current stream. The meter is told what the host did meanwhile.

    ``align`` enqueues what ends on all ranks' devices together: their streams go on at the same time. ``occupy``
    enqueues a kernel that does nothing for so many seconds. A delay is such a kernel, behind what is timed: a share of
    what the iteration before took by itself, as nobody waits to know how long this one takes.

    Work on a stream that the current one does not wait for is in no event. So in the warm-up the whole device is waited
    for when the clock has stopped, and once more, to know how long that takes where nothing is left.
    """

    def __init__(
        self,
        meter: Meter,
        align: Callable[[], None],
        occupy: Callable[[float], None],
        delay: Delay,
    ) -> None:
        self._meter = meter
        self._align = align
        self._occupy = occupy
        self._delay = delay
        self._mark = delay.mark()
        self._own_s = 0.0
        self._busy = BusyStream(occupy)
        self._began: torch.cuda.Event
        self._start = 0.0
        self._iterations = 1
        self._left_s: list[tuple[float, float]] | None = []

    def start(self, iterations: int = 1) -> None:
        self._iterations = iterations
        self._busy.hold(iterations)
        self._align()
        self._mark = self._delay.mark()
        self._began = recorded()
        self._start = HostClock.perf_counter()

    def stop(self) -> float:
        host_s = (HostClock.perf_counter() - self._start) / self._iterations
        is_exposed = self._began.query()  # the device had reached the beginning before all was enqueued
        within_s = self._delay.waited_s - self._mark.waited_s
        if due_s := self._delay.rest(self._own_s * self._iterations, within_s):
            self._occupy(due_s)
            self._delay.waited_s += due_s
        ended = recorded()
        ended.synchronize()
        self._busy.learn(host_s, was_enough=not is_exposed)
        self._meter.note(host_s=host_s, exposed=float(is_exposed))
        took_s = float(self._began.elapsed_time(ended)) / 1e3
        self._own_s = max(0.0, took_s - within_s - due_s) / self._iterations
        if self._left_s is not None:
            self._left_s.append((_synchronized() - _synchronized(), took_s))
        return took_s / self._iterations

    def settle(self, iterations: int = 1) -> None:
        self._busy.settle(iterations)
        left_s, self._left_s = self._left_s, None
        if left_s and all(left > max(LEFT_S, LEFT_SHARE * took) for left, took in left_s):
            left, took = min(left_s)
            raise RecordingError(
                f"the clock of the device reads {format_quantity(took, 's')}, and the device goes on for "
                f"{format_quantity(left, 's')}: work on a stream that the current one does not wait for is not timed. "
                "Wanted at the end of an iteration: torch.cuda.current_stream().wait_stream(the other stream), or the "
                "wait() of a collective that is async_op=True"
            )


def _synchronized() -> float:
    """Wait for the whole device; the seconds that takes."""
    start = HostClock.perf_counter()
    torch.cuda.synchronize()
    return HostClock.perf_counter() - start
