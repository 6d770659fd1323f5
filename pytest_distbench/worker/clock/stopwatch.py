"""Stopwatch: the clock of an iteration, or of several in one breath: the host's, or the device's."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

import torch

from pytest_distbench.worker.clock.busy import BusyStream
from pytest_distbench.worker.clock.delay import Delay
from pytest_distbench.worker.clock.meter import Meter
from pytest_distbench.worker.clock.parts import recorded


class Stopwatch(Protocol):
    """Times what lies between its two methods."""

    def start(self, iterations: int = 1) -> None:
        """So many iterations follow. Whatever has to be done first is no part of what is timed."""

    def stop(self) -> float:
        """Seconds of an iteration; of several their mean."""

    def settle(self, iterations: int = 1) -> None:
        """The warm-up is over: from now on every value is measured in the same way, so many iterations at a time."""


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
        self._start = time.perf_counter()

    def stop(self) -> float:
        if self._delay.share:
            self._delay.wait(self._mark)
        return (time.perf_counter() - self._start) / self._iterations

    def settle(self, iterations: int = 1) -> None:
        """It has one way only."""


class DeviceStopwatch:
    """Times what the device does, with events on its current stream. The meter is told what the host did meanwhile.

    ``align`` enqueues what ends on all ranks' devices together: their streams go on at the same time. ``occupy``
    enqueues a kernel that does nothing for so many seconds. A delay is such a kernel, behind what is timed: a share of
    what the iteration before took by itself, as nobody waits to know how long this one takes.
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

    def start(self, iterations: int = 1) -> None:
        self._iterations = iterations
        self._busy.hold(iterations)
        self._align()
        self._mark = self._delay.mark()
        self._began = recorded()
        self._start = time.perf_counter()

    def stop(self) -> float:
        host_s = (time.perf_counter() - self._start) / self._iterations
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
        return took_s / self._iterations

    def settle(self, iterations: int = 1) -> None:
        self._busy.settle(iterations)
