"""What the doctor makes of GPUs."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from pytest_distbench.commands.doctor import gpus


def test_a_gpu_with_other_processes_and_held_clocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """By NVIDIA's binding with a device made up: there is none here."""
    import pynvml

    answers = {
        "Init": None,
        "Shutdown": None,
        "SystemGetDriverVersion": "570.1",
        "DeviceGetCount": 1,
        "DeviceGetHandleByIndex": "handle",
        "DeviceGetUUID": "GPU-0",
        "DeviceGetName": "NVIDIA H200",
        "DeviceGetMemoryInfo": SimpleNamespace(used=2**30, total=2**37),
        "DeviceGetTemperature": 88,
        "DeviceGetComputeRunningProcesses": [SimpleNamespace(pid=4711)],
        "DeviceGetCurrentClocksThrottleReasons": pynvml.nvmlClocksThrottleReasonHwThermalSlowdown,
        "DeviceGetMaxMigDeviceCount": 0,
        "DeviceGetPersistenceMode": pynvml.NVML_FEATURE_ENABLED,
    }
    for name, answer in answers.items():
        monkeypatch.setattr(pynvml, f"nvml{name}", lambda *arguments, answer=answer: answer)
    found = list(gpus.gpus({}))

    assert [f.level for f in found] == ["ok", "ok", "warn", "warn"]
    assert "NVIDIA H200, 1 GiB of 128 GiB in use, 88 C" in found[1].found
    assert "pid 4711" in found[2].found
    assert "temperature (hardware)" in found[3].found
