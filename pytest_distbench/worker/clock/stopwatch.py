"""Stopwatch: the clock of an iteration, or of several in one breath: the host's, or the device's."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

import torch

from pytest_distbench.worker.clock.busy import BusyStream
from pytest_distbench.worker.clock.meter import Meter


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

    def __init__(self) -> None:
        self._start = 0.0
        self._iterations = 1

    def start(self, iterations: int = 1) -> None:
        self._iterations = iterations
        self._start = time.perf_counter()

    def stop(self) -> float:
        return (time.perf_counter() - self._start) / self._iterations

    def settle(self, iterations: int = 1) -> None:
        """It has one way only."""


class DeviceStopwatch:
    """Times what the device does, with events on its current stream. The meter is told what the host did meanwhile.

    ``align`` enqueues what ends on all ranks' devices together: their streams go on at the same time.
    """

    def __init__(self, meter: Meter, align: Callable[[], None], busy: BusyStream) -> None:
        self._meter = meter
        self._align = align
        self._busy = busy
        self._began: torch.cuda.Event
        self._start = 0.0
        self._iterations = 1

    def start(self, iterations: int = 1) -> None:
        self._iterations = iterations
        self._busy.hold(iterations)
        self._align()
        self._began = torch.cuda.Event(enable_timing=True)
        self._began.record()
        self._start = time.perf_counter()

    def stop(self) -> float:
        host_s = (time.perf_counter() - self._start) / self._iterations
        is_exposed = self._began.query()  # the device had reached the beginning before all was enqueued
        ended = torch.cuda.Event(enable_timing=True)
        ended.record()
        ended.synchronize()
        self._busy.learn(host_s, was_enough=not is_exposed)
        self._meter.note(host_s=host_s, exposed=float(is_exposed))
        return float(self._began.elapsed_time(ended)) / 1e3 / self._iterations

    def settle(self, iterations: int = 1) -> None:
        self._busy.settle(iterations)
