"""Checks of the GPUs: driver, devices, who uses them, what holds their clocks down, and whether CUDA works.

All but the last through NVML, without torch; that one in a process of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping

from pytest_distbench.commands.doctor.finding import Finding, Level
from pytest_distbench.machine.gpu_watch import held_by, processes_on
from pytest_distbench.machine.gpus import Gpus, read_gpus
from pytest_distbench.machine.links import kinds
from pytest_distbench.machine.nvml import Driver, DriverError, connect
from pytest_distbench.machine.visible import VARIABLE
from pytest_distbench.records.gpu import Gpu
from pytest_distbench.units import format_bytes

_CUDA_TIMEOUT_S = 120.0
_USE_EVERY_DEVICE = """
import json, torch
names = []
for i in range(torch.cuda.device_count()):
    torch.ones(1024, device=f"cuda:{i}").sum().item()
    names.append(torch.cuda.get_device_name(i))
print(json.dumps([torch.version.cuda, names]))
"""


def use_every_device(variables: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Let torch compute on each CUDA device, in a process of its own; prints its CUDA and their names as JSON."""
    return subprocess.run(
        [sys.executable, "-c", _USE_EVERY_DEVICE],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=_CUDA_TIMEOUT_S,
        check=False,
    )


def gpus(
    variables: Mapping[str, str],
    *,
    use: Callable[[Mapping[str, str]], subprocess.CompletedProcess[str]] = use_every_device,
) -> Iterator[Finding]:
    """Driver, devices, who uses them, what holds their clocks down, and whether CUDA works."""
    found = read_gpus(variables)
    if found.failure:
        level: Level = "note" if found.is_absent else "warn"
        yield Finding(level, "GPU", f"none: {found.failure}", "--gpu cannot run here; everything else runs on the CPU")
        return
    yield Finding("ok", "NVIDIA driver", f"{found.driver}, for CUDA up to {found.cuda}")
    for reason in found.unreadable:
        yield Finding("warn", "GPU", reason, "the other GPUs can be used")
    for remark in found.remarks:
        yield Finding("warn", "visible GPUs", remark)
    setting = variables.get(VARIABLE)
    if not found.visible:
        given = "is not set" if setting is None else f"is {setting!r}"
        yield Finding("warn", "visible GPUs", f"none of {found.count}, {VARIABLE} {given}", "--gpu cannot run here")
        return
    if len(found.visible) < found.count or found.visible[0].slice_of:
        labels = ", ".join(gpu.label for gpu in found.visible)
        given = "not set" if setting is None else repr(setting)
        yield Finding("note", "visible GPUs", f"{labels}, {VARIABLE}: {given}")
    try:
        with connect() as driver:
            for gpu in found.visible:
                yield from _gpu(driver, gpu)
    except DriverError as error:
        yield Finding("warn", "GPU", str(error))
    if found.links:
        yield Finding("ok", "links", f"between GPUs: {', '.join(kinds(found.links))}")
    yield Finding("ok", "hardware class", found.platform)
    yield from _cuda(found, lambda: use({**variables, **found.variables}))


def _gpu(driver: Driver, gpu: Gpu) -> Iterator[Finding]:
    subject = f"GPU {gpu.index}"
    device = driver.ask("GetHandleByUUID", gpu.uuid)
    card = driver.ask("GetHandleByUUID", gpu.slice_of) if gpu.slice_of else device
    text = gpu.name
    if (memory := driver.ask("GetMemoryInfo", device)) is not None:
        text += f", {format_bytes(memory.used)} of {format_bytes(memory.total)} in use"
    if (degrees := driver.ask("GetTemperature", card, driver.binding.NVML_TEMPERATURE_GPU)) is not None:
        text += f", {degrees} C"
    yield Finding("ok", subject, text)
    if pids := processes_on(driver, device):
        yield Finding("warn", subject, f"in use by pid {', '.join(map(str, pids))}", "end them, or use another GPU")
    if held := sorted(held_by(driver, card)):
        yield Finding("warn", subject, f"clocks held down: {', '.join(held)}", "let it cool; check power and fans")
    if gpu.is_capped:
        text = f"power limit {gpu.power_limit_w:.0f} W, by default {gpu.default_power_limit_w:.0f} W"
        advice = "it is a hardware class of its own; sudo nvidia-smi -pl sets the limit"
        yield Finding("note", subject, text, advice)
    if gpu.persistence is False:
        yield Finding("note", subject, "persistence mode off: the first launch waits", "sudo nvidia-smi -pm 1")


def _cuda(found: Gpus, use: Callable[[], subprocess.CompletedProcess[str]]) -> Iterator[Finding]:
    """Whether torch computes on what the driver shows."""
    done = None
    try:
        done = use()
        version, names = json.loads(done.stdout.splitlines()[-1])
    except subprocess.TimeoutExpired:
        text = f"no answer within {_CUDA_TIMEOUT_S:.0f} s"
        yield Finding("fail", "CUDA", text, "see dmesg: a GPU in trouble blocks every process that touches it")
        return
    except (ValueError, IndexError, TypeError):
        assert done is not None
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        yield Finding("fail", "CUDA", f"does not work: {last[:200]}", "nvidia-smi, dmesg; a torch built for the driver")
        return
    shown = [gpu.name for gpu in found.visible]
    if version is None:
        advice = f"pip install a torch for CUDA {found.cuda} or older: https://pytorch.org/get-started/locally"
        yield Finding("fail", "CUDA", "this torch is built without it: --gpu cannot run", advice)
    elif names != shown:
        found_text = f"torch computes on {', '.join(names) or 'no GPU'}; the driver shows {', '.join(shown)}"
        yield Finding("warn", "CUDA", found_text, f"name the GPUs by UUID (nvidia-smi -L) in {VARIABLE}")
    else:
        yield Finding("ok", "CUDA", f"{version} computes on {len(names)} GPU{'s' * (len(names) != 1)}")
