"""Simulated AMD GPUs: a module ``amdsmi`` that describes the cards of a host as amdsmi 7.0 does.

:mod:`support.nvml` has the hosts, and puts this in its place.
"""

from __future__ import annotations

from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from support.nvml import Card, Nvml

XGMI_GBIT_PER_S = 512
"""Rate of a link of MI300X: 16 lanes of 32 Gbit/s."""
_STATUS = {"NO_PERMISSION": "NO_PERM", "GPU_IS_LOST": "AMDGPU_RESTART_ERR", "NOT_SUPPORTED": "NOT_SUPPORTED"}


class AmdSmiException(Exception):
    pass


def _error(trouble: str) -> AmdSmiException:
    return AmdSmiException(f"Error code:\n\t1 | AMDSMI_STATUS_{_STATUS.get(trouble, trouble)} - in words")


def amdsmi(nvml: Nvml) -> ModuleType:
    """The module, of the host that the simulated driver has."""

    def initialise() -> None:
        if nvml.host.trouble:
            raise _error(nvml.host.trouble)

    def current(card: Card) -> Card:
        now = next((other for other in nvml.host.cards if other.uuid == card.uuid), None)
        if now is None or now.trouble:
            raise _error(now.trouble if now else "NOT_FOUND")
        return now

    def supported(value: Any) -> Any:
        if value is None:
            raise _error("NOT_SUPPORTED")
        return value

    def asic(card: Card) -> dict[str, Any]:
        major, minor = current(card).capability
        return {
            "market_name": card.name,
            "asic_serial": f"0x{card.uuid.removeprefix('GPU-').upper()}",
            "num_compute_units": card.cores,
            "target_graphics_version": f"gfx{major}{minor:x}2",
        }

    def clock(card: Card, kind: str) -> dict[str, Any]:
        state = nvml.state(current(card))
        now, most = (state.sm_mhz, card.max_mhz) if kind == "GFX" else (state.memory_mhz, "N/A")
        return {"clk": now, "min_clk": 132, "max_clk": most, "clk_locked": False, "clk_deep_sleep": "N/A"}

    def violations(card: Card) -> dict[str, Any]:
        held = nvml.state(current(card)).held
        reasons = {"ppt_pwr": "SwPowerCap", "socket_thrm": "SwThermalSlowdown", "prochot_thrm": "HwThermalSlowdown"}
        found: dict[str, Any] = {f"active_{name}": reason in held for name, reason in reasons.items()}
        return {**found, "active_vr_thrm": False, "active_hbm_thrm": "N/A"}

    def links(card: Card) -> dict[str, Any]:
        addresses = {other.uuid: bdf(other) for other in nvml.host.cards}
        found = [
            {"bdf": addresses[end], "max_bandwidth": XGMI_GBIT_PER_S, "link_type": 2} for end in current(card).nvlinks
        ]
        unused = {"bdf": "0000:00:00.0", "max_bandwidth": 0, "link_type": 0}
        return {"num_links": len(found), "links": [*found, unused]}

    def bdf(card: Card) -> str:
        return f"0000:{card.bus:02x}:00.0"

    def processes(card: Card) -> list[dict[str, Any]]:
        state = nvml.state(current(card))
        return [
            {"name": "N/A", "pid": pid, "memory_usage": {"vram_mem": state.bytes_of.get(pid, 0)}}
            for pid in state.processes
        ]

    module: Any = ModuleType("amdsmi")
    module.AmdSmiException = AmdSmiException
    module.AmdSmiClkType = SimpleNamespace(GFX="GFX", MEM="MEM")
    module.AmdSmiMemoryType = SimpleNamespace(VRAM="VRAM")
    module.AmdSmiLinkType = SimpleNamespace(AMDSMI_LINK_TYPE_XGMI=2)
    module.AmdSmiTemperatureType = SimpleNamespace(JUNCTION="JUNCTION")
    module.AmdSmiTemperatureMetric = SimpleNamespace(CURRENT="CURRENT")
    module.amdsmi_init = initialise
    module.amdsmi_shut_down = lambda: None
    module.amdsmi_get_processor_handles = lambda: [*nvml.host.cards]
    module.amdsmi_get_gpu_asic_info = asic
    module.amdsmi_get_gpu_device_bdf = lambda card: bdf(current(card))
    module.amdsmi_get_gpu_enumeration_info = lambda card: {"hip_id": [*nvml.host.cards].index(current(card))}
    module.amdsmi_get_gpu_memory_total = lambda card, kind: supported(current(card).memory_bytes)
    module.amdsmi_get_gpu_memory_usage = lambda card, kind: nvml.state(current(card)).used_bytes
    module.amdsmi_get_pcie_info = lambda card: {
        "pcie_static": dict(zip(("pcie_interface_version", "max_pcie_width"), current(card).pcie, strict=True))
    }
    module.amdsmi_get_power_cap_info = lambda card: {
        name: "N/A" if watts is None else int(watts * 1e6)
        for name, watts in (
            ("power_cap", current(card).power_limit_w),
            ("default_power_cap", card.default_power_limit_w),
        )
    }
    module.amdsmi_get_power_info = lambda card: {
        "current_socket_power": "N/A",
        "average_socket_power": nvml.state(current(card)).power_w,
    }
    module.amdsmi_get_clock_info = clock
    module.amdsmi_get_temp_metric = lambda card, sensor, metric: nvml.state(current(card)).temperature_c
    module.amdsmi_get_gpu_activity = lambda card: {"gfx_activity": round(100 * nvml.state(current(card)).utilisation)}
    module.amdsmi_get_violation_status = violations
    module.amdsmi_get_gpu_process_list = processes
    module.amdsmi_get_gpu_driver_info = lambda card: {"driver_version": nvml.host.driver}
    module.amdsmi_get_link_metrics = links
    module.amdsmi_is_P2P_accessible = lambda card, other: other.uuid in current(card).reads
    return module
