"""Parts: the clock of the parts of an iteration: the host's, or the device's, for which nobody waits inside of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

import torch

from pytest_distbench.worker.clock.busy import stream_occupier
from pytest_distbench.worker.clock.delay import Delay
from pytest_distbench.worker.clock.host import HostClock


class Span(NamedTuple):
    """How long a part took.

    Attributes:
        began_at: when, CLOCK_MONOTONIC seconds: the ranks of one host have one clock.
        seconds: of the clock.
        own_s: of that without what a planted slowdown added.
        host_s: that the host was in it.
    """

    began_at: float
    seconds: float
    own_s: float
    host_s: float


class Part(Protocol):
    """A part that has begun."""

    def end(self, last_s: float) -> None:
        """It is over for the host. When it was read last it took so many seconds of its own; 0: it was not."""

    def read(self) -> Span:
        """How long it took. Called when the iteration has been waited for."""


class Parts(Protocol):
    """The clock of the parts of one loop.

    Attributes:
        is_device: its time is the device's, and the host's stands beside it.
    """

    is_device: bool

    def begin(self) -> Part:
        """A part begins."""

    def set_clock(self) -> None:
        """Called between iterations, when nothing is under way."""


class HostParts:
    """Reads a clock of the host."""

    is_device = False

    def __init__(self, delay: Delay, clock: Callable[[], float]) -> None:
        self.delay = delay
        self.clock = clock

    def begin(self) -> Part:
        return _HostPart(self)

    def set_clock(self) -> None:
        """It has one clock only."""


class _HostPart:
    def __init__(self, parts: HostParts) -> None:
        self._parts = parts
        self._seconds = 0.0
        self._mark = parts.delay.mark()
        self._start = parts.clock()

    def end(self, last_s: float) -> None:
        del last_s
        self._parts.delay.wait(self._mark)
        self._seconds = self._parts.clock() - self._start

    def read(self) -> Span:
        return Span(self._start, self._seconds, self._seconds, self._seconds)


class DeviceParts:
    """Records events on the current stream, and reads them when the device has been waited for.

    A delay is a kernel that does nothing, behind a part: a share of what the part took when it was read last.
    """

    is_device = True

    def __init__(self, delay: Delay) -> None:
        self.delay = delay
        self.occupy = stream_occupier() if delay.share else None
        self.set_clock()

    def begin(self) -> Part:
        return _DevicePart(self)

    def set_clock(self) -> None:
        """A moment of the device that the host knows. The device is idle, and drifts from the host as time goes on."""
        self._known = recorded()
        self._known.synchronize()
        self._known_at = HostClock.perf_counter()

    def moment(self, event: torch.cuda.Event) -> float:
        """When the device came to it, on the host's clock."""
        return self._known_at + float(self._known.elapsed_time(event)) / 1e3


class _DevicePart:
    def __init__(self, parts: DeviceParts) -> None:
        self._parts = parts
        self._added_s = self._host_s = 0.0
        self._mark = parts.delay.mark()
        self._began = self._ended = recorded()
        self._start = HostClock.perf_counter()

    def end(self, last_s: float) -> None:
        self._host_s = HostClock.perf_counter() - self._start
        delay = self._parts.delay
        self._added_s = delay.waited_s - self._mark.waited_s
        if self._parts.occupy is not None and (due_s := delay.rest(last_s, self._added_s)):
            self._parts.occupy(due_s)
            delay.waited_s += due_s
            self._added_s += due_s
        self._ended = recorded()

    def read(self) -> Span:
        self._ended.synchronize()  # it may be on a stream that the iteration did not wait for
        seconds = float(self._began.elapsed_time(self._ended)) / 1e3
        began_at = self._parts.moment(self._began)
        return Span(began_at, seconds, max(0.0, seconds - self._added_s), self._host_s)


def parts_on(device: torch.device, delay: Delay) -> Parts:
    """The clock of the parts of a loop on such a device."""
    return DeviceParts(delay) if device.type == "cuda" else HostParts(delay, HostClock.perf_counter)


def recorded() -> torch.cuda.Event:
    """An event that has been recorded on the current stream, with its time."""
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event
