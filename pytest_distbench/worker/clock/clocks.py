"""Timing of iterations and training steps by the host, or by the device without making the host wait for it.

The device is kept busy while the host enqueues the measured work, so that the device's time is measured. Where two
groups interleave, each runs a block of iterations at a time. On a CPU each step has its own time, on a GPU each block
of steps: waiting for the device after every step would hide what waiting costs.
"""

from __future__ import annotations

import functools
import math
import resource
from collections.abc import Callable
from typing import Protocol

import torch

from pytest_distbench.errors import RecordingError
from pytest_distbench.units import format_quantity
from pytest_distbench.worker.clock import Delay, HostClock
from pytest_distbench.worker.torch_internals import occupy_stream

MOST_BLOCKS = 60  # per timed loop: each change costs about a millisecond
SHORTEST_BLOCK = 10  # iterations: the first after a change finds cold caches, and must stay a small part of its block


def block_length(iterations: int) -> int:
    return max(SHORTEST_BLOCK, math.ceil(iterations / MOST_BLOCKS))


class Meter:
    """CPU seconds and voluntary context switches (``waits``) of this process, all threads, per iteration.

    On a busy machine they vary far less than wall time. A reading takes 2 us, outside of the timing. On a GPU, where a
    waiting host spins, the host's share is added: ``host_s``, its seconds in the iteration; ``exposed``, 1 if the
    device had to wait for the host; ``lead_s``, seconds by which the host was ahead at the end. CPU time of a delay is
    left out.
    """

    def __init__(self, delay: Delay) -> None:
        self._delay = delay
        self.cpu_s: list[float] = []
        self.waits: list[float] = []
        self.of_host: dict[str, list[float]] = {}
        self._start = (0.0, 0)

    def start(self) -> None:
        self._start = self._now()

    def stop(self, iterations: int = 1) -> None:
        cpu_s, waits = self._now()
        self.cpu_s.append((cpu_s - self._start[0]) / iterations)
        self.waits.append((waits - self._start[1]) / iterations)

    def note(self, **of_host: float) -> None:
        for name, value in of_host.items():
            self.of_host.setdefault(name, []).append(value)

    def signals(self) -> dict[str, list[float]]:
        return {"cpu_s": self.cpu_s, "waits": self.waits, **self.of_host}

    def _now(self) -> tuple[float, int]:
        return HostClock.process_time() - self._delay.awake_s, resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw


SHORTEST_S, FIRST_S, LONGEST_S = 50e-6, 1e-3, 20e-3
"""Seconds of the idle kernel: the shortest, the first, before any is learned, and the longest. An iteration that takes
longer to enqueue keeps the device busy itself."""

TRIES = 3
"""Fewest warm-up iterations on CUDA, in which :class:`BusyStream` learns how long its kernel has to be."""

_MARGIN = 3.0
_SHRINK = 0.5
_GROWTH = 4.0  # after the warm-up: a loop may begin to wait only then
_CALIBRATION_CYCLES = 1_000_000  # half a millisecond at 2 GHz
_AGREES = 1.05
_NOTICED_S = 0.05
_MOST_CALIBRATIONS = 200


class BusyStream:
    """A kernel that idles on the device until the host has enqueued an iteration.

    Without it the first event lands on an idle stream, and a kernel of 10 us that takes the host 40 us to enqueue reads
    50 us. Its length is learned from iteration to iteration. If the iteration waits for the device, or takes the host
    too long, no length is enough: no kernel is enqueued, and the host's time is included. That is decided once, after a
    warm-up of at least :data:`TRIES` iterations, so that a series includes the host in all of its values or in none.

    ``occupy`` enqueues the kernel for so many seconds.
    """

    def __init__(self, occupy: Callable[[float], None]) -> None:
        self._occupy = occupy
        self._hold_s = FIRST_S
        self._most_s = LONGEST_S
        self._least_s = math.inf

    def hold(self, iterations: int = 1) -> None:
        if self._hold_s:
            self._occupy(min(LONGEST_S, self._hold_s * iterations))

    def learn(self, host_s: float, *, was_enough: bool) -> None:
        """Choose the next length, after an iteration that took the host ``host_s`` seconds to enqueue."""
        if was_enough:
            self._least_s = min(self._least_s, host_s)
        if not self._hold_s:
            return
        if was_enough:
            wanted_s = max(SHORTEST_S, _SHRINK * self._hold_s, _MARGIN * host_s)
        elif self._least_s < math.inf:
            wanted_s = max(2 * self._hold_s, _MARGIN * host_s)
        else:  # the longest shows whether any length is enough
            wanted_s = LONGEST_S
        self._hold_s = min(self._most_s, wanted_s)

    def end_warmup(self, iterations: int = 1) -> None:
        """End the warm-up: decide whether further iterations, ``iterations`` per timing, are preceded by a kernel."""
        self._hold_s *= self._least_s * iterations < LONGEST_S
        self._most_s = min(LONGEST_S, _GROWTH * self._hold_s)


def stream_occupier() -> Callable[[float], None]:
    """A function that enqueues a kernel of so many seconds on the current stream."""
    rate = _rate_of(torch.cuda.current_device())
    return lambda seconds: occupy_stream(int(rate * seconds))


@functools.cache
def _rate_of(device: int) -> float:
    del device
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)

    def kernel_s(cycles: int) -> float:
        begin.record()
        occupy_stream(cycles)
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1e3

    return cycles_per_s(kernel_s)


def cycles_per_s(kernel_s: Callable[[int], float]) -> float:
    """Cycles per second of the device at work: an idle card counts at a sixth of that at first.

    Kernels run until two in a row agree, and at least for as long as an idle card needs to speed up; of two that never
    agree the faster counts. ``kernel_s`` runs a kernel of so many cycles and returns its seconds; the first call also
    loads it.
    """
    worked_s, before_s = 0.0, math.inf
    for _ in range(_MOST_CALIBRATIONS):
        last_s = kernel_s(_CALIBRATION_CYCLES)
        worked_s += last_s
        shorter_s, longer_s = sorted((before_s, last_s))
        if worked_s >= _NOTICED_S and longer_s <= _AGREES * shorter_s:
            break
        before_s = last_s
    return _CALIBRATION_CYCLES / shorter_s


def recorded() -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


LEFT_SHARE, LEFT_S = 0.05, 20e-6
"""How long a device may still work after its timing ended: this share of the timed seconds, or these seconds."""


class Stopwatch(Protocol):
    """Times the code between the calls of :meth:`start` and :meth:`stop`."""

    def start(self, iterations: int = 1) -> None:
        """Start a timing of so many iterations. Preparations are not timed."""

    def stop(self) -> float:
        """Seconds per iteration; the mean if there are several."""

    def end_warmup(self, iterations: int = 1) -> None:
        """End the warm-up: every further value is measured in the same way, with so many iterations each."""


class HostStopwatch:
    def __init__(self, delay: Delay) -> None:
        self._delay = delay
        self._mark = delay.mark()
        self._start = 0.0
        self._iterations = 1

    def start(self, iterations: int = 1) -> None:
        self._iterations = iterations
        self._mark = self._delay.mark()
        self._start = HostClock.perf_counter()

    def stop(self, apart_s: float = 0.0) -> float:
        if self._delay.share:
            self._delay.wait(self._mark, apart_s=apart_s)
        return (HostClock.perf_counter() - self._start - apart_s) / self._iterations

    def end_warmup(self, iterations: int = 1) -> None:
        """Does nothing: the host measures in one way only."""


class DeviceStopwatch:
    """Times the device's work by events on its current stream. The meter notes the host's share.

    ``align`` enqueues an operation that ends on all ranks' devices together, ``occupy`` an idle kernel of so many
    seconds. A delay is such a kernel after the timed work: a share of the iteration before, as nobody waits for this
    one to end.

    Work on a stream that the current one does not wait for is in no event. So the warm-up waits for the whole device
    after each timing, and once more to measure a wait without work.
    """

    def __init__(self, meter: Meter, align: Callable[[], None], occupy: Callable[[float], None], delay: Delay) -> None:
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
        within_s = self._delay.waited_s - self._mark[1]
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

    def end_warmup(self, iterations: int = 1) -> None:
        self._busy.end_warmup(iterations)
        left_s, self._left_s = self._left_s, None
        if left_s and all(left > max(LEFT_S, LEFT_SHARE * took) for left, took in left_s):
            left, took = min(left_s)
            raise RecordingError(
                f"the device's time is {format_quantity(took, 's')}, but the device continues for "
                f"{format_quantity(left, 's')}: work on a stream that the current one does not wait for is not timed. "
                "Wanted at the end of an iteration: torch.cuda.current_stream().wait_stream(the other stream), or the "
                "wait() of a collective that is async_op=True"
            )


def _synchronized() -> float:
    start = HostClock.perf_counter()
    torch.cuda.synchronize()
    return HostClock.perf_counter() - start


class Steps(Protocol):
    """Times the steps of a training; ``times``: seconds of each."""

    times: list[float]

    def begin(self) -> None:
        """Begin a step."""

    def pause(self) -> None:
        """Note that the step enqueues nothing more, before the plugin itself waits for the device."""

    def end(self, apart_s: float, *, ends_block: bool) -> None:
        """End a step, without ``apart_s`` seconds. ``ends_block``: what follows must not overlap with device work."""


class HostSteps:
    def __init__(self, meter: Meter, delay: Delay) -> None:
        self.times: list[float] = []
        self._meter = meter
        self._watch = HostStopwatch(delay)

    def begin(self) -> None:
        self._meter.start()
        self._watch.start()

    def pause(self) -> None:
        """Does nothing, as nothing is enqueued."""

    def end(self, apart_s: float, *, ends_block: bool) -> None:
        del ends_block
        self.times.append(self._watch.stop(apart_s))
        self._meter.stop()


class DeviceSteps:
    """Steps in blocks: the host waits for the device at the end of a block, whose steps all get their mean time."""

    def __init__(self, meter: Meter, synchronize: Callable[[], None], delay: Delay) -> None:
        self.times: list[float] = []
        self._meter = meter
        self._delay = delay
        self._mark = delay.mark()
        self._synchronize = synchronize
        self._block: list[tuple[float, float, torch.cuda.Event]] = []
        """Per step: when the host had enqueued it, the seconds that took, and an event at its end on the device."""
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
        self._block.append((now, now - self._step_start, recorded()))
        self._is_enqueued = True

    def end(self, apart_s: float, *, ends_block: bool) -> None:
        if not self._is_enqueued:
            self.pause()
        self._meter.stop()  # before our own wait, which spins
        self._apart_s += apart_s
        if not ends_block:
            return
        self._synchronize()
        self._delay.wait(self._mark, apart_s=self._apart_s)
        step_s = (HostClock.perf_counter() - self._block_start - self._apart_s) / len(self._block)
        for at, host_s, event in self._block:
            done_s = self._began.elapsed_time(event) / 1e3
            self._meter.note(host_s=host_s, lead_s=max(0.0, done_s - (at - self._block_start)))
            self.times.append(step_s)
        self._block.clear()
