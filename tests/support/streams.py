"""Simulated streams of a device: each has the moment until which it is busy, on the host's clock. Without torch."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

CALLS: list[str] = []
"""What was asked of the device, in order, that has to come in an order."""

_SPIN_S = 1e-3
"""The host spins for the end of a wait, as CUDA does for all of it: what is left of a longer one it sleeps."""


STREAMS: list[Stream] = []
"""Streams of this process, the default one first."""


class Stream:
    """Kernels one after the other."""

    def __init__(self, *_: object, **__: object) -> None:
        self.busy_until = 0.0
        STREAMS.append(self)

    def add(self, seconds: float) -> float:
        """A kernel begins when those before it are over; returns when it will end, on ``time.perf_counter``."""
        self.busy_until = max(self.busy_until, time.perf_counter()) + seconds
        return self.busy_until

    def query(self) -> bool:
        return self.busy_until <= time.perf_counter()

    def synchronize(self) -> None:
        wait_until(self.busy_until)

    def wait_event(self, event: Event) -> None:
        self.busy_until = max(self.busy_until, event.at or 0.0)

    def wait_stream(self, stream: Stream) -> None:
        self.busy_until = max(self.busy_until, stream.busy_until)


class Event:
    """A moment on a stream."""

    def __init__(self, *_: object, **__: object) -> None:
        self.at: float | None = None

    def record(self, stream: Stream | None = None) -> None:
        self.at = (stream or DEVICE.current).add(0.0)

    def query(self) -> bool:
        return (self.at or 0.0) <= time.perf_counter()

    def synchronize(self) -> None:
        wait_until(self.at or 0.0)

    def wait(self, stream: Stream | None = None) -> None:
        (stream or DEVICE.current).wait_event(self)

    def elapsed_time(self, end: Event) -> float:
        """Milliseconds."""
        if self.at is None or end.at is None:
            raise ValueError("Both events must be recorded before calculating elapsed time.")
        return (end.at - self.at) * 1e3


class CUDAGraph:
    """What was enqueued while it was captured; a replay enqueues all of it at once."""

    def __init__(self, *_: object, **__: object) -> None:
        self.kernels: list[float] = []

    def replay(self) -> None:
        CALLS.append("replay")
        DEVICE.current.add(sum(self.kernels))

    def reset(self) -> None:
        self.kernels.clear()


class Device:
    """What this process knows of its device."""

    def __init__(self) -> None:
        self.is_initialized = False
        self.index = 0
        self.current = Stream()
        self.captured: CUDAGraph | None = None
        self.failures: list[tuple[float, Exception]] = []
        self.allocated_bytes = self.peak_bytes = 0

    def enqueue(self, seconds: float, failure: Exception | None = None) -> None:
        if self.captured is not None:
            self.captured.kernels.append(seconds)
            return
        end = self.current.add(seconds)
        if failure is not None:
            self.failures.append((end, failure))


DEVICE = Device()
"""The device of this process."""


def wait_until(moment: float) -> None:
    """Let the host wait until a moment; then raise what failed on the device. RuntimeError if a graph is captured."""
    if DEVICE.captured is not None:
        raise RuntimeError("CUDA error: operation not permitted when stream is capturing")
    while (left := moment - time.perf_counter()) > 0:
        if left > _SPIN_S:
            time.sleep(left - _SPIN_S)
    for end, failure in DEVICE.failures:
        if end <= time.perf_counter():
            raise failure


def synchronize(device: object = None) -> None:
    del device
    CALLS.append("synchronize")
    DEVICE.is_initialized = True
    wait_until(max(stream.busy_until for stream in STREAMS))


@contextlib.contextmanager
def capture(graph: CUDAGraph, *_: object, **__: object) -> Iterator[None]:
    """What is enqueued inside goes into the graph."""
    synchronize()
    CALLS.append("begin capture")
    DEVICE.captured = graph
    try:
        yield
    finally:
        DEVICE.captured = None
        CALLS.append("end capture")
