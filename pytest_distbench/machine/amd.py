"""AMD's GPUs, as ROCm's package amdsmi describes them, by the questions that NVML answers.

It follows the interface of amdsmi 7.0, and what torch reads of it; it was run with simulated GPUs alone.
"""

from __future__ import annotations

import contextlib
import io
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pynvml

from pytest_distbench.machine.driver import Driver, DriverError, Port
from pytest_distbench.machine.visible import Choice, Cut, listed
from pytest_distbench.records.environment import Gpu

_CODES = {
    "NO_PERM": "NO_PERMISSION",
    "NOT_FOUND": "NOT_FOUND",
    "BUSY": "IN_USE",
    "DRIVER_NOT_LOADED": "DRIVER_NOT_LOADED",
    "AMDGPU_RESTART_ERR": "GPU_IS_LOST",
}
"""amdsmi's statuses -> NVML's errors of the same meaning."""
_WHY_NO_GPU = {
    "NO_PERMISSION": "this process may not use it: a container or a job scheduler has given it to others, or the user "
    "is not in the groups render and video",
    "NOT_FOUND": "the driver knows it no more; see dmesg, and reset it or reboot: sudo amd-smi reset --gpureset",
    "GPU_IS_LOST": "the driver could not restart it; see dmesg, and reboot",
    "IN_USE": "it is in use",
}
_NO_AMDSMI = (
    "this torch is built for ROCm, and the Python package amdsmi cannot be imported ({}): install that of your ROCm, "
    "pip install /opt/rocm/share/amd_smi; a container needs docker run --device=/dev/kfd --device=/dev/dri"
)
_NO_DRIVER = (
    "amdsmi cannot reach the AMD driver ({}): sudo modprobe amdgpu; a container needs docker run --device=/dev/kfd "
    "--device=/dev/dri"
)
_TARGET = re.compile(r"gfx(\d+)([0-9a-f])[0-9a-f]")


class AmdDriver(Driver):
    """Answers NVML's questions by amdsmi's functions; *not supported* if it has no answer."""

    maker = "AMD"
    tool, sets_power = "amd-smi", "set --power-cap"
    may_count_otherwise = False
    variables = "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", *Driver.variables
    """HIP's and CUDA's variables number the GPUs that ROCR's leaves. CUDA's is read if HIP's is not set."""

    def __init__(self, amdsmi: Any) -> None:
        super().__init__(pynvml)
        self._amdsmi = amdsmi
        self._handles = amdsmi.amdsmi_get_processor_handles()

    def demand(self, name: str, *arguments: Any) -> Any:
        match name:
            case "GetCount":
                return len(self._handles)
            case "GetHandleByIndex":
                return self._handles[arguments[0]]
            case "GetHandleByUUID":
                same = [handle for handle in self._handles if self.ask("GetUUID", handle) == arguments[0]]
                return same[0] if same else self._fail("NOT_FOUND")
        if name not in _ANSWERS:
            self._fail("NOT_SUPPORTED")
        try:
            found = _ANSWERS[name](self._amdsmi, *arguments)
        except self._amdsmi.AmdSmiException as error:
            status = re.search(r"AMDSMI_STATUS_(\w+)", str(error))
            self._fail(_CODES.get(status[1] if status else "", "UNKNOWN"), error)
        except (AttributeError, KeyError, TypeError, ValueError):  # of another release, or "N/A" for a number
            self._fail("NOT_SUPPORTED")
        return self._fail("NOT_SUPPORTED") if found in (None, "N/A") else found

    def explain(self, error: Exception) -> str:
        return self.words(error, _WHY_NO_GPU, who="amdsmi", said=error.__cause__)

    def system(self, name: str) -> Any:
        if name != "GetDriverVersion" or not self._handles:
            return None
        return self.ask("Get driver", self._handles[0])

    def place(self, handle: Any, gpu: Gpu) -> tuple[int, str]:
        """Sort key by which HIP orders the GPUs: HIP's number if amdsmi knows it (ROCm 6.4), then the PCI address."""
        found = self.ask("Get HIP number", handle)
        return (0 if found is None else int(found), gpu.pci)

    def choose(self, cards: Sequence[Gpu], cut: Cut, variables: Mapping[str, str]) -> Choice:
        del cut
        of_rocr, of_hip, of_cuda = self.variables
        remarks = []
        for name in (of_rocr, of_hip if of_hip in variables else of_cuda):
            if name in variables:
                cards, why = listed(cards, variables[name])
                remarks += [f"{name}: {why}"] if why else []
        return [*cards], remarks

    def port(self, handle: Any) -> Port:
        links = self.ask("Get links", handle) or []
        speeds = [link["max_bandwidth"] for link in links if link["max_bandwidth"]]  # Gbit/s
        others = Counter(link["bdf"].lower() for link in links)
        return Port(kind="xgmi", to_gpu=dict(others), bytes_per_s=min(speeds) * 1e9 / 8 if speeds else None)

    def _fail(self, name: str, cause: Exception | None = None) -> Any:
        raise pynvml.NVMLError(getattr(pynvml, f"NVML_ERROR_{name}")) from cause


@contextlib.contextmanager
def connect_amd() -> Iterator[AmdDriver]:
    """Connect to the driver for as long as it is needed.

    Raises:
        DriverError: no amdsmi, or no driver.
    """
    try:
        with contextlib.redirect_stdout(io.StringIO()):  # where it finds no library it prints that, and raises KeyError
            import amdsmi  # type: ignore[import-not-found]
    except Exception as error:  # noqa: BLE001 whatever it does where it does not fit
        raise DriverError(_NO_AMDSMI.format(f"{type(error).__name__}: {error}"), is_absent=True) from None
    try:
        amdsmi.amdsmi_init()
        driver = AmdDriver(amdsmi)
    except amdsmi.AmdSmiException as error:
        raise DriverError(_NO_DRIVER.format(" ".join(str(error).split())), is_absent=False) from None
    try:
        yield driver
    finally:
        with contextlib.suppress(amdsmi.AmdSmiException):
            amdsmi.amdsmi_shut_down()


def _capability(target: str) -> tuple[int, int] | None:
    """Compute capability as torch has it: ``gfx90a`` -> 9.0, ``gfx942`` -> 9.4; the last digit is the stepping."""
    found = _TARGET.fullmatch(target)
    return (int(found[1]), int(found[2], 16)) if found else None


def _frequency(smi: Any, handle: Any, kind: int) -> Any:
    kinds = {pynvml.NVML_CLOCK_SM: smi.AmdSmiClkType.GFX, pynvml.NVML_CLOCK_MEM: smi.AmdSmiClkType.MEM}
    return smi.amdsmi_get_clock_info(handle, kinds[kind])


def _memory(smi: Any, handle: Any) -> Any:
    vram = smi.AmdSmiMemoryType.VRAM
    total, used = smi.amdsmi_get_gpu_memory_total(handle, vram), smi.amdsmi_get_gpu_memory_usage(handle, vram)
    return SimpleNamespace(total=total, used=used)


def _power(smi: Any, handle: Any) -> Any:
    answer = smi.amdsmi_get_power_info(handle)
    watts = [answer[name] for name in ("current_socket_power", "average_socket_power") if answer[name] != "N/A"]
    return 1000 * watts[0] if watts else None


def _held(smi: Any, handle: Any) -> int:
    answer = smi.amdsmi_get_violation_status(handle)
    reasons = {
        "SwPowerCap": ["active_ppt_pwr"],
        "SwThermalSlowdown": ["active_socket_thrm", "active_vr_thrm", "active_hbm_thrm"],
        "HwThermalSlowdown": ["active_prochot_thrm"],
    }
    active = [name for name, flags in reasons.items() if any(answer[flag] is True for flag in flags)]
    return sum(getattr(pynvml, f"nvmlClocksThrottleReason{name}") for name in active)


def _links(smi: Any, handle: Any) -> Any:
    answer = smi.amdsmi_get_link_metrics(handle)
    is_xgmi = smi.AmdSmiLinkType.AMDSMI_LINK_TYPE_XGMI
    return [link for link in answer["links"][: answer["num_links"]] if link["link_type"] == is_xgmi]


def _processes(smi: Any, handle: Any) -> Any:
    found = smi.amdsmi_get_gpu_process_list(handle)
    return [SimpleNamespace(pid=p["pid"], usedGpuMemory=p["memory_usage"]["vram_mem"]) for p in found]


_ANSWERS: dict[str, Callable[..., Any]] = {
    "GetName": lambda smi, card: smi.amdsmi_get_gpu_asic_info(card)["market_name"],
    # As torch, HIP_VISIBLE_DEVICES and ROCR_VISIBLE_DEVICES spell it.
    "GetUUID": lambda smi, card: f"GPU-{smi.amdsmi_get_gpu_asic_info(card)['asic_serial'][2:].lower()}",
    "GetPciInfo": lambda smi, card: SimpleNamespace(busId=smi.amdsmi_get_gpu_device_bdf(card)),
    "GetMemoryInfo": _memory,
    "GetCudaComputeCapability": lambda smi, card: _capability(
        smi.amdsmi_get_gpu_asic_info(card)["target_graphics_version"]
    ),
    "GetNumGpuCores": lambda smi, card: smi.amdsmi_get_gpu_asic_info(card)["num_compute_units"],
    "GetMaxPcieLinkGeneration": lambda smi, card: smi.amdsmi_get_pcie_info(card)["pcie_static"][
        "pcie_interface_version"
    ],
    "GetMaxPcieLinkWidth": lambda smi, card: smi.amdsmi_get_pcie_info(card)["pcie_static"]["max_pcie_width"],
    # From microwatts to milliwatts.
    "GetPowerManagementLimit": lambda smi, card: smi.amdsmi_get_power_cap_info(card)["power_cap"] // 1000,
    "GetPowerManagementDefaultLimit": lambda smi, card: (
        smi.amdsmi_get_power_cap_info(card)["default_power_cap"] // 1000
    ),
    "GetPowerUsage": _power,
    "GetMaxClockInfo": lambda smi, card, kind: _frequency(smi, card, kind)["max_clk"],
    "GetClockInfo": lambda smi, card, kind: _frequency(smi, card, kind)["clk"],
    "GetTemperature": lambda smi, card, sensor: smi.amdsmi_get_temp_metric(
        card, smi.AmdSmiTemperatureType.JUNCTION, smi.AmdSmiTemperatureMetric.CURRENT
    ),
    "GetUtilizationRates": lambda smi, card: SimpleNamespace(
        gpu=int(smi.amdsmi_get_gpu_activity(card)["gfx_activity"])
    ),
    "GetCurrentClocksThrottleReasons": _held,
    "GetComputeRunningProcesses": _processes,
    "GetP2PStatus": lambda smi, card, other, kind: int(not smi.amdsmi_is_P2P_accessible(card, other)),
    "Get links": _links,
    "Get HIP number": lambda smi, card: smi.amdsmi_get_gpu_enumeration_info(card)["hip_id"],
    "Get driver": lambda smi, card: smi.amdsmi_get_gpu_driver_info(card)["driver_version"],
}
"""Name of NVML's function without ``nvmlDevice`` -> amdsmi's answer. Names with a space are no functions of NVML."""
