"""Steps: the clock of a training loop. On a CPU each step by itself, on a GPU a block of them.

A training that waits for its device after every step hides what it costs to wait: the host would no longer run ahead.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch

from pytest_distbench.worker.clock.clocks import Meter, recorded
from pytest_distbench.worker.clock.delay import Delay
from pytest_distbench.worker.clock.host import HostClock


class Steps(Protocol):
    """Times of steps, in seconds."""

    times: list[float]

    def begin(self) -> None:
        """A step begins."""

    def pause(self) -> None:
        """The step waits for the device now, for reasons of ours: what it has enqueued is all it does."""

    def end(self, apart_s: float, *, ends_block: bool) -> None:
        """The step is over, of which so many seconds are not its own.

        ``ends_block``: what follows is not to run beside the device's work.
        """


class HostSteps:
    """Each step by itself, on the host's clock."""

    def __init__(self, meter: Meter, delay: Delay) -> None:
        self.times: list[float] = []
        self._meter = meter
        self._delay = delay
        self._mark = delay.mark()
        self._start = 0.0

    def begin(self) -> None:
        self._meter.start()
        self._mark = self._delay.mark()
        self._start = HostClock.perf_counter()

    def pause(self) -> None:
        """Nothing is enqueued."""

    def end(self, apart_s: float, *, ends_block: bool) -> None:
        del ends_block
        self._delay.wait(self._mark, apart_s=apart_s)
        self.times.append(HostClock.perf_counter() - self._start - apart_s)
        self._meter.stop()


@dataclass(slots=True)
class _Enqueued:
    """A step that the host is done with: when, what it needed for that, and the event that the device is too."""

    at: float
    host_s: float
    event: torch.cuda.Event


class DeviceSteps:
    """Steps in blocks: the device is waited for once, at the end of a block, whose steps all get their mean time.

    The meter measures each step too, and is told the host's share.
    """

    def __init__(self, meter: Meter, synchronize: Callable[[], None], delay: Delay) -> None:
        self.times: list[float] = []
        self._meter = meter
        self._delay = delay
        self._mark = delay.mark()
        self._synchronize = synchronize
        self._block: list[_Enqueued] = []
        self._block_start = self._step_start = self._apart_s = 0.0
        self._began: torch.cuda.Event
        self._is_enqueued = False

    def begin(self) -> None:
        if not self._block:
            self._apart_s = 0.0
            self._began = recorded()
            self._mark = self._delay.mark()
            self._block_start = HostClock.perf_counter()
        self._is_enqueued = False
        self._meter.start()
        self._step_start = HostClock.perf_counter()

    def pause(self) -> None:
        now = HostClock.perf_counter()
        self._block.append(_Enqueued(now, now - self._step_start, recorded()))
        self._is_enqueued = True

    def end(self, apart_s: float, *, ends_block: bool) -> None:
        if not self._is_enqueued:
            self.pause()
        self._meter.stop()  # before our own wait, which spins
        self._apart_s += apart_s
        if ends_block:
            self._close()

    def _close(self) -> None:
        self._synchronize()
        self._delay.wait(self._mark, apart_s=self._apart_s)
        step_s = (HostClock.perf_counter() - self._block_start - self._apart_s) / len(self._block)
        for step in self._block:
            done_s = self._began.elapsed_time(step.event) / 1e3
            lead_s = max(0.0, done_s - (step.at - self._block_start))
            self._meter.note(host_s=step.host_s, lead_s=lead_s)
            self.times.append(step_s)
        self._block.clear()
