"""BusyStream: the device is kept busy while the host enqueues what is measured, so that the clock sees the device."""

from __future__ import annotations

from collections.abc import Callable

import torch

from pytest_distbench.worker.torch_internals import occupy_stream

SHORTEST_S, LONGEST_S = 50e-6, 20e-3
"""A longer one than this costs more time than it tells: what takes so long to enqueue keeps the device busy itself."""

_MARGIN = 3.0
"""The host is not equally fast each time."""
_SHRINK = 0.5
_STRIKES = 3
_CALIBRATION_CYCLES = 1_000_000


class BusyStream:
    """A kernel that runs idly until the host has enqueued an iteration.

    Without it the first event of an iteration lands on an idle stream, and a kernel of 10 us that takes the host 40 us
    to enqueue reads 50 us. How long it has to be is learned from iteration to iteration. Where the iteration itself
    waits for the device no length is enough: then it is given up, and the host's time is part of what is measured.

    Args:
        occupy: enqueues the kernel, for so many seconds.
    """

    def __init__(self, occupy: Callable[[float], None]) -> None:
        self._occupy = occupy
        self._hold_s = SHORTEST_S
        self._iterations = 1
        self._strikes = 0

    def hold(self, iterations: int = 1) -> None:
        """Enqueue it, for so many iterations in one breath."""
        self._iterations = iterations
        if self._hold_s:
            self._occupy(self._hold_s * iterations)

    def learn(self, host_s: float, *, was_enough: bool) -> None:
        """Choose the next length.

        Args:
            host_s: that the host needed to enqueue an iteration.
            was_enough: the stream was still busy then.
        """
        longest_s = LONGEST_S / self._iterations
        if was_enough:
            self._strikes = 0
            self._hold_s = min(longest_s, max(SHORTEST_S, _SHRINK * self._hold_s, _MARGIN * host_s))
            return
        self._strikes += self._hold_s >= longest_s
        longer = min(longest_s, max(2 * self._hold_s, _MARGIN * host_s))
        self._hold_s = longer if self._hold_s and self._strikes < _STRIKES else 0.0


def stream_occupier() -> Callable[[float], None]:
    """What enqueues a kernel of so many seconds on the current stream. Measures once how fast the device counts."""
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    occupy_stream(_CALIBRATION_CYCLES)  # the first of its kind is loaded
    begin.record()
    occupy_stream(_CALIBRATION_CYCLES)
    end.record()
    end.synchronize()
    cycles_per_s = _CALIBRATION_CYCLES / (begin.elapsed_time(end) / 1e3)
    return lambda seconds: occupy_stream(int(cycles_per_s * seconds))
