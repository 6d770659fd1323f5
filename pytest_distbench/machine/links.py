"""How GPUs are joined: NVLink, its generation and number of links, or PCIe, with and without peer access; how fast."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from pytest_distbench.machine.nvml import Driver
from pytest_distbench.records.gpu import Gpu

_MOST_LINKS = 36
_GENERATIONS = {1: 1, 2: 2, 3: 2, 4: 3, 5: 3, 6: 4, 7: 5, 8: 6}
"""NVML's number of an NVLink version -> its generation: 2.0 and 2.2 are of one, 3.0 and 3.1 of another."""
_SWITCH = 2
"""NVML's number of a device type: the link leads to a switch, and through it to all GPUs at it."""
_CAPABLE_OF_READING = 0
_CAPABLE = 0
_ROUTES = {0: "", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
"""What lies between two GPUs on PCIe, in nvidia-smi's words: a bridge, several, the host's, the node's, two nodes'."""


_NVLINK_BYTES_PER_S = {1: 20e9, 2: 25e9, 3: 25e9, 4: 25e9, 5: 50e9, 6: 100e9}
"""NVLink's generation -> what one link carries in each direction, by the data sheets of P100, V100, A100, H100, B200
and Rubin: half of the bidirectional rate over the number of links. A bridge may be slower, which NVML tells."""
_PCIE_BYTES_PER_S = {1: 0.25e9, 2: 0.5e9, 3: 0.985e9, 4: 1.969e9, 5: 3.938e9, 6: 7.563e9}
"""PCIe's generation -> what one lane carries in each direction, behind its line code (PCI-SIG)."""
_LINK = re.compile(r"(nvlink|pcie)(\d+)x(\d+)")


class Port:
    """One GPU's NVLinks, those that are up."""

    def __init__(self, driver: Driver, handle: Any) -> None:
        self.generation = 0
        self.to_switch = 0
        self.to_gpu: dict[str, int] = {}
        """Links by the address of the GPU at their other end."""
        self.told_bytes_per_s = _told_speed(driver, handle)
        """The rate of the wire, which is more than what it carries."""
        for link in range(_MOST_LINKS):
            if not driver.ask("GetNvLinkState", handle, link):
                continue
            version = driver.ask("GetNvLinkVersion", handle, link) or 0
            self.generation = max(self.generation, _GENERATIONS.get(version, 0))
            if driver.ask("GetNvLinkRemoteDeviceType", handle, link) == _SWITCH:
                self.to_switch += 1
            elif (remote := driver.ask("GetNvLinkRemotePciInfo", handle, link)) is not None:
                address = pci_address(remote)
                self.to_gpu[address] = self.to_gpu.get(address, 0) + 1

    @property
    def count(self) -> int:
        """Links that are up."""
        return self.to_switch + sum(self.to_gpu.values())

    @property
    def bytes_per_s(self) -> float | None:
        """What one of them carries in each direction; None where that is not known."""
        usual = _NVLINK_BYTES_PER_S.get(self.generation)
        return usual if usual is None or not self.told_bytes_per_s else min(usual, self.told_bytes_per_s)

    def links_to(self, other: Port, address: str) -> int:
        """How many of them lead to another GPU, directly or through switches."""
        return self.to_gpu.get(address, 0) or min(self.to_switch, other.to_switch)


def read_links(driver: Driver, handles: Sequence[Any], pcie: Sequence[str]) -> list[list[str]]:
    """The matrix of what joins each pair; empty on the diagonal. A GPU's own link to the host is told as ``5x16``."""
    ports = [Port(driver, handle) for handle in handles]
    addresses = [pci_address(driver.ask("GetPciInfo", handle)) for handle in handles]

    def link(a: int, b: int) -> str:
        if a == b:
            return ""
        if count := ports[a].links_to(ports[b], addresses[b]):
            return f"nvlink{ports[a].generation or ''}x{count}"
        status = driver.ask("GetP2PStatus", handles[a], handles[b], _CAPABLE_OF_READING)
        slower = min(filter(None, (pcie[a], pcie[b])), key=_speed, default="")
        kind = f"pcie{slower}{'-p2p' if status == _CAPABLE else ''}"
        return f"{kind} {_ROUTES.get(driver.ask('GetTopologyCommonAncestor', handles[a], handles[b]), '')}".strip()

    return [[link(a, b) for b in range(len(handles))] for a in range(len(handles))]


def kinds(links: Sequence[Sequence[str]]) -> list[str]:
    """The different kinds of link in a matrix, without routes, NVLink first: what a hardware class is told by."""
    found = {link.partition(" ")[0] for row in links for link in row if link}
    return sorted(found, key=lambda kind: (not kind.startswith("nvlink"), kind))


def peak_bytes_per_s(gpus: Sequence[Gpu], links: Sequence[Sequence[str]]) -> float | None:
    """What each of some GPUs can send to the others, in one direction; of different ones the slowest counts.

    Returns:
        None where they are joined in different ways, by what has no known speed, or there is one alone.
    """
    count = len(gpus)
    found = [[_LINK.match(link) for b, link in enumerate(row[:count]) if a != b] for a, row in enumerate(links[:count])]
    if count < 2 or len(found) < count or any(link is None for row in found for link in row):
        return None
    rows = [[link for link in row if link is not None] for row in found]
    peaks: list[float | None] = []
    if {link[1] for row in rows for link in row} == {"nvlink"}:
        for gpu, row in zip(gpus, rows, strict=True):
            one = gpu.nvlink_bytes_per_s
            peaks.append(None if one is None else one * min(gpu.nvlinks, sum(int(link[3]) for link in row)))
    elif {link[1] for row in rows for link in row} == {"pcie"}:
        for link in (link for row in rows for link in row):
            one = _PCIE_BYTES_PER_S.get(int(link[2]))
            peaks.append(None if one is None else one * int(link[3]))
    known = [peak for peak in peaks if peak]
    return min(known) if known and len(known) == len(peaks) else None


def _told_speed(driver: Driver, handle: Any) -> float:
    """Bytes per second of a wire of its NVLinks; 0 where the driver does not tell."""
    field = getattr(driver.binding, "NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON", None)
    [told] = (driver.ask("GetFieldValues", handle, [field]) if field is not None else None) or [None]
    return 1e6 * told.value.uiVal if told is not None and told.nvmlReturn == driver.binding.NVML_SUCCESS else 0.0


def pci_address(info: Any) -> str:
    """The address in NVML's answer, in lower case; empty where there is none."""
    text = getattr(info, "busId", "")
    return (text.decode(errors="replace") if isinstance(text, bytes) else str(text)).lower()


def _speed(pcie: str) -> float:
    generation, _, lanes = pcie.partition("x")
    return float(2 ** int(generation) * int(lanes))
