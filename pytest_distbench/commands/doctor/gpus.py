"""Checks of the GPUs: driver, devices, who uses them, and what holds their clocks down. Through NVML, no torch."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from pytest_distbench.commands.doctor.finding import Finding
from pytest_distbench.machine import hardware
from pytest_distbench.units import format_bytes


def gpus(variables: Mapping[str, str]) -> Iterator[Finding]:
    """Driver, devices, who uses them, and what holds their clocks down."""
    import pynvml as nvml

    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        yield Finding("note", "GPU", f"none: {error}", "--gpu cannot run here; everything else runs on the CPU")
        return
    try:
        yield Finding("ok", "NVIDIA driver", str(nvml.nvmlSystemGetDriverVersion()))
        handles = hardware.device_handles(nvml)
        uuids = [str(nvml.nvmlDeviceGetUUID(handle)) for handle in handles]
        setting = variables.get("CUDA_VISIBLE_DEVICES")
        visible = hardware.visible_devices(setting, uuids)
        if len(visible) < len(uuids):
            found = f"{len(visible)} of {len(uuids)}, CUDA_VISIBLE_DEVICES={setting!r}"
            yield Finding("note" if visible else "warn", "visible GPUs", found)
        for index in visible:
            yield from _gpu(nvml, index, handles[index])
    finally:
        nvml.nvmlShutdown()


def _gpu(nvml: Any, index: int, handle: Any) -> Iterator[Finding]:
    subject = f"GPU {index}"
    used = nvml.nvmlDeviceGetMemoryInfo(handle)
    text = f"{nvml.nvmlDeviceGetName(handle)}, {format_bytes(used.used)} of {format_bytes(used.total)} in use"
    with contextlib.suppress(nvml.NVMLError):
        text += f", {nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)} C"
    yield Finding("ok", subject, text)
    with contextlib.suppress(nvml.NVMLError):
        if pids := [p.pid for p in nvml.nvmlDeviceGetComputeRunningProcesses(handle)]:
            yield Finding("warn", subject, f"in use by pid {', '.join(map(str, pids))}", "end them, or use another GPU")
    with contextlib.suppress(nvml.NVMLError, AttributeError):
        reasons = nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)
        if held := [name for bit, name in _throttles(nvml) if reasons & bit]:
            yield Finding("warn", subject, f"clocks held down: {', '.join(held)}", "let it cool; check power and fans")
    with contextlib.suppress(nvml.NVMLError):
        if nvml.nvmlDeviceGetPersistenceMode(handle) == nvml.NVML_FEATURE_DISABLED:
            yield Finding("note", subject, "persistence mode off: the first launch waits", "sudo nvidia-smi -pm 1")


def _throttles(nvml: Any) -> list[tuple[int, str]]:
    return [
        (nvml.nvmlClocksThrottleReasonSwThermalSlowdown, "temperature (software)"),
        (nvml.nvmlClocksThrottleReasonHwThermalSlowdown, "temperature (hardware)"),
        (nvml.nvmlClocksThrottleReasonHwPowerBrakeSlowdown, "power brake"),
        (nvml.nvmlClocksThrottleReasonSwPowerCap, "power cap"),
    ]
