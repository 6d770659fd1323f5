"""What is said of ranks that are still there after SIGKILL, with a driver that is made up."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import pytest

from pytest_distbench.launch.site import evidence, processes


class NVMLError(Exception):
    pass


class Driver(ModuleType):
    """Two GPUs, of which the second one has fallen off the bus."""

    NVMLError = NVMLError

    def __init__(self, *, is_there: bool = True) -> None:
        super().__init__("pynvml")
        self.is_there = is_there

    def nvmlInit(self) -> None:  # noqa: N802 NVML's name
        if not self.is_there:
            raise NVMLError("Driver Not Loaded")

    def nvmlShutdown(self) -> None:  # noqa: N802
        pass

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        if index == 1:
            raise NVMLError("GPU is lost")
        return index

    def nvmlDeviceGetComputeRunningProcesses(self, handle: int) -> list[SimpleNamespace]:  # noqa: N802
        del handle
        return [
            SimpleNamespace(pid=7, usedGpuMemory=3 * 2**30),
            SimpleNamespace(pid=8, usedGpuMemory=None),
            SimpleNamespace(pid=9, usedGpuMemory=2**30),
        ]


@pytest.fixture(autouse=True)
def kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """It keeps process 7 in the driver; 6 has gone."""
    monkeypatch.setattr(processes, "is_alive", {6: False, 7: True}.__getitem__)
    monkeypatch.setattr(processes, "state", {7: "D"}.__getitem__)
    monkeypatch.setitem(sys.modules, "pynvml", Driver())


def test_a_rank_that_the_kernel_keeps_is_named_with_the_gpu_memory_it_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    assert evidence.tell_stuck({0: 6, 1: 7}, after_s=25.2, on_gpu=True) == {
        1: "rank 1 (pid 7) is still there 25 s after it was killed: state D, the kernel waits for a device or a file "
        "system, and holds 3 GiB of GPU memory; ps -o pid,stat,wchan 7 shows when it has gone"
    }

    assert "GPU memory" not in evidence.tell_stuck({1: 7}, after_s=25.2, on_gpu=False)[1]

    assert evidence.gpu_memory([7, 8]) == {7: 3 * 2**30}

    monkeypatch.setitem(sys.modules, "pynvml", Driver(is_there=False))

    assert "state D" in evidence.tell_stuck({1: 7}, after_s=25.2, on_gpu=True)[1]
