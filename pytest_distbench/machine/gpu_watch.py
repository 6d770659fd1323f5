"""State of GPUs while ranks run on them: clocks, heat, power, memory that remains in use, and other users.

pytest's process looks, before, during and after a launch, through NVML: nothing runs in the ranks or on the GPU, and no
judged timing is taken in this process.
"""

from __future__ import annotations

import contextlib
import functools
import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import psutil

from pytest_distbench.machine.driver import Driver, DriverError
from pytest_distbench.machine.gpus import connect
from pytest_distbench.machine.hardware import cpu_name
from pytest_distbench.records.environment import Gpu, GpuReport
from pytest_distbench.records.kinds import median
from pytest_distbench.records.record import replace
from pytest_distbench.units import format_bytes, format_seconds

TEMPERATURE, POWER_CAP, POWER_BRAKE, HARDWARE = "temperature", "power cap", "power brake", "hardware slowdown"
_REASONS = {
    "SwThermalSlowdown": TEMPERATURE,
    "HwThermalSlowdown": TEMPERATURE,
    "SwPowerCap": POWER_CAP,
    "HwPowerBrakeSlowdown": POWER_BRAKE,
    "HwSlowdown": HARDWARE,
}
"""NVML's reasons why clocks of a GPU are held down -> ours. Idle GPUs, and clocks that somebody has set, have none."""
_COUNTERS = {"POWER": POWER_CAP, "THERMAL": TEMPERATURE}
"""NVML's counters of the time for which a GPU's clocks were held down -> our reasons."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.125, 1.0  # between two looks: short at first, for launches that are over soon
_LONGEST_LOOK_S = 5.0  # longest time for a look: the driver may not answer at all if a GPU is in trouble
_FIRST_NAMESPACE = "pid:[4026531836]"  # /proc/self/ns/pid outside of containers, where NVML's process ids are ours
_MPS_SERVER = "nvidia-cuda-mps"
"""Name of the MPS server, which computes for clients that are looked at themselves; the kernel keeps 15 letters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuState:
    """What the driver reports of one GPU at one moment; a field is None if the driver does not report it.

    Attributes:
        at: the moment, in CLOCK_MONOTONIC seconds.
        utilisation: share of the driver's last sampling period in which a kernel ran, 0 to 1.
        foreign: id of a process on the GPU -> whether it belongs to another run or user, None if unknown.
        by_mps: whether NVIDIA's MPS server computes on the GPU, for ranks and other clients.
        at_work: ids of processes whose kernels ran lately.
    """

    at: float
    sm_mhz: float | None = None
    memory_mhz: float | None = None
    temperature_c: float | None = None
    power_w: float | None = None
    utilisation: float | None = None
    held: frozenset[str] = frozenset()
    held_ns: dict[str, int] = field(default_factory=dict)
    foreign: dict[int, bool | None] = field(default_factory=dict)
    by_mps: bool = False
    at_work: frozenset[int] | None = None
    power_limit_w: float | None = None
    sm_limit_mhz: float | None = None


class GpuWatch:
    """Looks at some GPUs while launches run.

    The driver stays connected between launches: without persistence mode a GPU that nobody has open takes seconds.
    """

    def __init__(
        self,
        gpus: Sequence[Gpu],
        is_foreign: Callable[[int], bool | None] | None = None,
        name_of: Callable[[int], str] | None = None,
    ) -> None:
        self._gpus = gpus
        self._host_cpu = cpu_name()
        self._is_foreign, self._name_of = is_foreign or _is_foreign, name_of or _process_name
        """Functions of a process id: whether the process is foreign, or None if unknown; and its name, or ""."""
        self._stack = contextlib.ExitStack()
        self._driver: Driver | None = None
        self._handles: dict[str, tuple[Any, Any]] = {}
        with contextlib.suppress(DriverError):
            self._driver = self._stack.enter_context(connect())
            self._handles = {gpu.uuid: found for gpu in gpus if (found := _handles(self._driver, gpu))[0] is not None}

    @contextlib.contextmanager
    def during(self, count: int) -> Iterator[list[GpuReport]]:
        """Watch the first ``count`` GPUs; fills the list at the end, unless the driver is silent."""
        found: list[GpuReport] = []
        gpus = [gpu for gpu in self._gpus[:count] if gpu.uuid in self._handles]
        if not gpus:
            yield found
            return
        looks: dict[str, list[GpuState]] = {gpu.uuid: [] for gpu in gpus}
        has_begun, is_over = threading.Event(), threading.Event()

        def watch() -> None:
            self.look(looks)
            has_begun.set()
            pause_s = _FIRST_PAUSE_S
            while not is_over.wait(pause_s):
                self.look(looks)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
            self.look(looks)

        thread = threading.Thread(target=watch, name="distbench-gpus", daemon=True)
        thread.start()
        has_begun.wait(_LONGEST_LOOK_S)
        try:
            yield found
        finally:
            is_over.set()
            thread.join(_LONGEST_LOOK_S)
            found += [replace(summarise(gpu, list(looks[gpu.uuid])), host_cpu=self._host_cpu) for gpu in gpus]

    def look(self, looks: dict[str, list[GpuState]]) -> None:
        for uuid, seen in looks.items():
            seen.append(self._look(*self._handles[uuid], seen[-1].at if seen else None))

    def _look(self, card: Any, device: Any, since: float | None) -> GpuState:
        driver = self._driver
        assert driver is not None
        nvml = driver.binding
        there = processes_on(driver, device)
        servers = {pid for pid in there if self._name_of(pid).startswith(_MPS_SERVER)}
        use = driver.ask("GetUtilizationRates", card)
        power, limit = driver.ask("GetPowerUsage", card), driver.ask("GetPowerManagementLimit", card)
        counters = {
            ours: driver.ask("GetViolationStatus", card, getattr(nvml, f"NVML_PERF_POLICY_{name}", -1))
            for name, ours in _COUNTERS.items()
        }
        # The clock that somebody has set, where it is not the one that the card comes with.
        target = driver.ask("GetClock", card, nvml.NVML_CLOCK_SM, nvml.NVML_CLOCK_ID_APP_CLOCK_TARGET)
        default = driver.ask("GetClock", card, nvml.NVML_CLOCK_SM, nvml.NVML_CLOCK_ID_APP_CLOCK_DEFAULT)
        now = time.monotonic()
        within_s = _LONGEST_PAUSE_S if since is None else now - since
        at_work: frozenset[int] | None = None
        try:
            found = driver.demand("GetProcessUtilization", card, int((time.time() - within_s) * 1e6))
            at_work = frozenset(int(sample.pid) for sample in found if sample.smUtil > 0)
        except (nvml.NVMLError, AttributeError) as error:
            at_work = frozenset() if getattr(error, "value", None) == nvml.NVML_ERROR_NOT_FOUND else None
        return GpuState(
            at=now,
            sm_mhz=driver.ask("GetClockInfo", card, nvml.NVML_CLOCK_SM),
            memory_mhz=driver.ask("GetClockInfo", card, nvml.NVML_CLOCK_MEM),
            temperature_c=driver.ask("GetTemperature", card, nvml.NVML_TEMPERATURE_GPU),
            power_w=None if power is None else power / 1000,
            utilisation=None if use is None else use.gpu / 100,
            held=held_by(driver, card),
            held_ns={ours: int(found.violationTime) for ours, found in counters.items() if found is not None},
            foreign={pid: self._is_foreign(pid) for pid in there if pid not in servers},
            by_mps=bool(servers),
            at_work=at_work,
            power_limit_w=None if limit is None else limit / 1000,
            sm_limit_mhz=None if target is None or target == default else float(target),
        )

    def memory_in_use(self, count: int) -> dict[str, int]:
        """Label of a GPU -> bytes of its memory in use, for those of the first ``count`` GPUs that report it."""
        found: dict[str, int] = {}
        for gpu in self._gpus[:count]:
            if self._driver is not None and gpu.uuid in self._handles:
                memory = self._driver.ask("GetMemoryInfo", self._handles[gpu.uuid][1])
                found |= {} if memory is None else {gpu.label: int(memory.used)}
        return found

    def users(self, label: str) -> list[str]:
        driver = self._driver
        devices = [self._handles[gpu.uuid][1] for gpu in self._gpus if gpu.label == label and gpu.uuid in self._handles]
        return [_name(pid) for device in devices if driver is not None for pid in processes_on(driver, device)]

    def close(self) -> None:
        self._handles = {}
        self._stack.close()


def summarise(gpu: Gpu, looks: Sequence[GpuState]) -> GpuReport:
    """Summarise the looks at one GPU, from before to after a launch."""
    busy = [look for look in looks[1:] if look.utilisation is None or look.utilisation > 0]
    last = looks[-1] if looks else GpuState(at=0.0)
    # What held the clocks down -> share of the time: by what was seen, and by the counters, which miss nothing.
    held = {name: sum(name in look.held for look in busy) / len(busy) for look in busy for name in look.held}
    if len(looks) > 1:
        first = looks[0]
        for name, before in first.held_ns.items():
            share = (last.held_ns.get(name, before) - before) / 1e9 / max(1e-3, last.at - first.at)
            held[name] = max(held.get(name, 0.0), min(1.0, share))
    temperatures = [look.temperature_c for look in looks if look.temperature_c is not None]
    return GpuReport(
        label=gpu.label,
        uuid=gpu.uuid,
        looks=len(busy),
        sm_mhz=median(look.sm_mhz for look in busy),
        memory_mhz=median(look.memory_mhz for look in busy),
        temperature_c=max(temperatures, default=None),
        power_w=median(look.power_w for look in busy),
        utilisation=median(look.utilisation for look in busy),
        course=[(round(x.at - looks[0].at, 3), x.utilisation) for x in looks[1:] if x.utilisation is not None],
        held={name: round(share, 3) for name, share in sorted(held.items()) if share > 0},
        power_limit_w=last.power_limit_w,
        sm_limit_mhz=last.sm_limit_mhz,
        others=[_name(pid) for pid in _others(looks)],
        by_mps=any(look.by_mps for look in looks),
    )


def complaint() -> str:
    """The last line of ``nvidia-smi`` if a GPU is in trouble, or ""."""
    limit_s = _LONGEST_LOOK_S
    try:
        done = subprocess.run(
            ["nvidia-smi"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=limit_s, check=False
        )
    except subprocess.TimeoutExpired:
        return f"nvidia-smi does not answer within {limit_s:.0f} s: a GPU in trouble blocks who asks for it"
    except OSError:
        return ""
    said = done.stdout.strip().splitlines()
    return f"nvidia-smi: {said[-1].strip()}" if done.returncode and said else ""


def held_by(driver: Driver, handle: Any) -> frozenset[str]:
    bits = driver.ask("GetCurrentClocksThrottleReasons", handle) or 0
    known = ((getattr(driver.binding, f"nvmlClocksThrottleReason{name}", 0), ours) for name, ours in _REASONS.items())
    return frozenset(ours for bit, ours in known if bits & bit)


def processes_on(driver: Driver, handle: Any) -> list[int]:
    """Process ids that compute on a GPU, in the host's numbering."""
    return [int(process.pid) for process in driver.ask("GetComputeRunningProcesses", handle) or []]


def own_memory(uuid: str) -> int | None:
    """Bytes that this process uses on a GPU, its context and NCCL's buffers included, or None if unknown."""
    return memory_of(os.getpid(), uuid) if _sees_all_processes() else None


def memory_of(pid: int, uuid: str) -> int | None:
    with contextlib.suppress(DriverError), connect() as driver:
        device = driver.ask("GetHandleByUUID", uuid)
        found = driver.ask("GetComputeRunningProcesses", device) if device is not None else None
        return next((process.usedGpuMemory for process in found or [] if process.pid == pid), None)
    return None


def _handles(driver: Driver, gpu: Gpu) -> tuple[Any, Any]:
    device = driver.ask("GetHandleByUUID", gpu.uuid)
    return (driver.ask("GetHandleByUUID", gpu.slice_of) if gpu.slice_of else device), device


def _others(looks: Sequence[GpuState]) -> list[int]:
    """Ids of processes on the GPU, in several looks, that are not the ranks'.

    In a container NVML's ids cannot be looked up: there, a process that was present before and after the launch counts.
    """
    if not looks:
        return []
    stayed = looks[0].foreign.keys() & looks[-1].foreign.keys() if len(looks) > 1 else set()
    found = {pid for look in looks for pid, foreign in look.foreign.items() if foreign}
    found |= {pid for pid in stayed if looks[0].foreign[pid] is None}
    known = [look.at_work for look in looks if look.at_work is not None]
    return sorted(found.intersection(frozenset().union(*known)) if known else found)


def _is_foreign(pid: int) -> bool | None:
    """Whether a process is neither pytest nor its descendant; None if it has ended, or ids are of another namespace."""
    if not _sees_all_processes():
        return None
    try:
        return pid != os.getpid() and os.getpid() not in (parent.pid for parent in psutil.Process(pid).parents())
    except psutil.Error:  # it has ended meanwhile
        return None


@functools.cache
def _sees_all_processes() -> bool:
    try:
        return os.readlink("/proc/self/ns/pid") == _FIRST_NAMESPACE
    except OSError:
        return False


def _process_name(pid: int) -> str:
    if _sees_all_processes():
        with contextlib.suppress(psutil.Error):
            return psutil.Process(pid).name()
    return ""


def _name(pid: int) -> str:
    name = _process_name(pid)
    return f"{name} (pid {pid})" if name else f"pid {pid} of the host"


PATIENCE_S = 20.0  # how long the driver may take. Contexts of tens of GiB were seen to need several seconds
SLACK_BYTES = 2**28  # what other processes and the driver itself may take meanwhile
_PAUSE_S = 0.1


def await_memory(
    read: Callable[[], Mapping[str, int]],
    before: Mapping[str, int],
    *,
    patience_s: float = PATIENCE_S,
    monotonic: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> dict[str, int]:
    """Wait until GPUs have about as much memory as before; return GPU -> bytes still in use."""
    deadline = monotonic() + patience_s
    while True:
        now = read()
        held = {gpu: now[gpu] - used for gpu, used in before.items() if now.get(gpu, 0) > used + SLACK_BYTES}
        if not held or monotonic() >= deadline:
            return held
        sleep(_PAUSE_S)


def held_remark(gpu: str, held_bytes: int, users: list[str], *, patience_s: float = PATIENCE_S) -> str:
    whose = f"on it: {', '.join(users)}" if users else "no process is on it"
    return (
        f"{gpu} holds {format_bytes(held_bytes)} more than before the launch, {format_seconds(patience_s)} after its "
        f"ranks were ended; {whose}. The next launch may find too little memory"
    )
