"""BusyStream: the device is kept busy while the host enqueues what is measured, so that the clock sees the device."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import torch

from pytest_distbench.worker.torch_internals import occupy_stream

SHORTEST_S, FIRST_S, LONGEST_S = 50e-6, 1e-3, 20e-3
"""A longer one than this costs more time than it tells: what takes so long to enqueue keeps the device busy itself. The
first is not yet chosen by what the host needs."""

TRIES = 3
"""Warm-up iterations that decide: the first length, and where that is not enough the longest one twice. A host that was
interrupted in one of them decides nothing."""

_MARGIN = 3.0
"""The host is not equally fast each time."""
_SHRINK = 0.5
_GROWTH = 4.0
"""After the warm-up it becomes at most so many times as long: a loop may begin to wait only then."""
_CALIBRATION_CYCLES = 1_000_000
"""Of a kernel whose time tells how fast the device counts: half a millisecond at 2 GHz."""
_AGREES = 1.05
_NOTICED_S = 0.05
_MOST_CALIBRATIONS = 200


class BusyStream:
    """A kernel that runs idly until the host has enqueued an iteration.

    Without it the first event of an iteration lands on an idle stream, and a kernel of 10 us that takes the host 40 us
    to enqueue reads 50 us. How long it has to be is learned from iteration to iteration. Where the iteration itself
    waits for the device, or takes the host longer than is worth waiting for, no length is enough: then there is none,
    and the host's time is part of what is measured. That is decided once, at the end of a warm-up of at least
    :data:`TRIES` iterations: values with the host in them, and others without, would be no series.

    What occupies it is given, and enqueues the kernel for so many seconds.
    """

    def __init__(self, occupy: Callable[[float], None]) -> None:
        self._occupy = occupy
        self._hold_s = FIRST_S
        self._most_s = LONGEST_S
        self._least_s = math.inf

    def hold(self, iterations: int = 1) -> None:
        """Enqueue it, for so many iterations in one breath."""
        if self._hold_s:
            self._occupy(min(LONGEST_S, self._hold_s * iterations))

    def learn(self, host_s: float, *, was_enough: bool) -> None:
        """Choose the next length, after an iteration that the host needed so long to enqueue."""
        if was_enough:
            self._least_s = min(self._least_s, host_s)
        if not self._hold_s:
            return
        if was_enough:
            wanted_s = max(SHORTEST_S, _SHRINK * self._hold_s, _MARGIN * host_s)
        elif self._least_s < math.inf:
            wanted_s = max(2 * self._hold_s, _MARGIN * host_s)
        else:  # the longest tells whether any length is enough
            wanted_s = LONGEST_S
        self._hold_s = min(self._most_s, wanted_s)

    def settle(self, iterations: int = 1) -> None:
        """The warm-up is over: decide for the rest whether there is one: where it was enough once.

        So many iterations follow in one breath.
        """
        self._hold_s *= self._least_s * iterations < LONGEST_S
        self._most_s = min(LONGEST_S, _GROWTH * self._hold_s)


def stream_occupier() -> Callable[[float], None]:
    """What enqueues a kernel of so many seconds on the current stream."""
    rate = _rate_of(torch.cuda.current_device())
    return lambda seconds: occupy_stream(int(rate * seconds))


@functools.cache
def _rate_of(device: int) -> float:
    """How fast the current device counts: found out once in a process."""
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
    """How fast the device counts when it works: a card that was idle counts at a sixth of its clock at first.

    Kernels run one after the other until two agree, and no earlier than an idle card needs to notice that it has work;
    of two that never agree the faster counts.

    Args:
        kernel_s: runs a kernel of so many cycles, and returns the seconds it took. The first one of all is also loaded.
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
