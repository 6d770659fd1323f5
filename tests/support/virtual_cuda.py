"""Simulated streams and a simulated clock of the host: what a timing reads, to the microsecond, on any machine."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import pytest
import torch

from pytest_distbench.worker.clock import HostClock
from pytest_distbench.worker.clock.clocks import stream_occupier
from support import streams

P = ParamSpec("P")
T = TypeVar("T")

BEGIN = 1000.0
"""What the host's clock reads at first."""

TICK_S = 1e-7
"""Seconds that the host needs to read its clock."""
CYCLES_PER_S = 1e9


class VirtualCuda:
    """One device, and one host whose time passes only where it is said to, in the thread that made it.

    Threads that an earlier test left, as a watchdog, which takes a sleep that is none for a hang, keep theirs.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = BEGIN
        patch = monkeypatch.setattr
        look = _in_this_thread(self._look, time.perf_counter)
        patch(time, "perf_counter", look)
        patch(HostClock, "perf_counter", look)
        patch(time, "sleep", _in_this_thread(self.compute, time.sleep))
        patch(streams, "CALLS", [])
        patch(streams, "STREAMS", [])
        self.device = streams.Device()
        patch(streams, "DEVICE", self.device)
        patch(torch.cuda, "Event", streams.Event)
        patch(torch.cuda, "CUDAGraph", streams.CUDAGraph)
        patch(torch.cuda, "graph", streams.capture)
        patch(torch.cuda, "current_device", lambda: 0)
        patch(torch.cuda, "synchronize", streams.synchronize)
        patch(torch.cuda, "_sleep", lambda cycles: self.device.enqueue(cycles / CYCLES_PER_S))
        stream_occupier()  # how fast it counts is found out once in a process, in no loop that is tested
        self.now = BEGIN
        self.device.current.busy_until = 0.0

    def _look(self) -> float:
        self.now += TICK_S
        return self.now

    def compute(self, seconds: float) -> None:
        """The host is busy with something else than the device."""
        self.now += seconds

    def launch(self, seconds: float) -> None:
        self.device.enqueue(seconds)

    def counts(self) -> dict[str, int]:
        """Number of calls of what the simulation counts."""
        return {name: len(list(group)) for name, group in itertools.groupby(sorted(streams.CALLS))}


def _in_this_thread(simulated: Callable[P, T], real: Callable[P, T]) -> Callable[P, T]:
    here = threading.get_ident()

    def call(*arguments: P.args, **options: P.kwargs) -> T:
        return (simulated if threading.get_ident() == here else real)(*arguments, **options)

    return call
