"""Made-up streams on a made-up clock of the host: what a clock of ours reads, to the microsecond, on any machine."""

from __future__ import annotations

import itertools
import time

import pytest
import torch

from pytest_distbench.testing import streams

TICK_S = 1e-7
"""That the host needs to look at its clock."""
CYCLES_PER_S = 1e9


class VirtualCuda:
    """One device, and one host whose time passes only where it is said to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        patch = monkeypatch.setattr
        patch(time, "perf_counter", self._look)
        patch(time, "sleep", self.compute)
        patch(streams, "CALLS", [])
        patch(streams, "STREAMS", [])
        self.device = streams.Device()
        patch(streams, "DEVICE", self.device)
        patch(torch.cuda, "Event", streams.Event)
        patch(torch.cuda, "CUDAGraph", streams.CUDAGraph)
        patch(torch.cuda, "graph", streams.capture)
        patch(torch.cuda, "synchronize", streams.synchronize)
        patch(torch.cuda, "_sleep", lambda cycles: self.device.enqueue(cycles / CYCLES_PER_S))

    def _look(self) -> float:
        self.now += TICK_S
        return self.now

    def compute(self, seconds: float) -> None:
        """The host is busy with something else than the device."""
        self.now += seconds

    def launch(self, seconds: float) -> None:
        """Enqueue a kernel."""
        self.device.enqueue(seconds)

    def counts(self) -> dict[str, int]:
        """How often what was called that the stand-in counts."""
        return {name: len(list(group)) for name, group in itertools.groupby(sorted(streams.CALLS))}
