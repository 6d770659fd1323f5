"""How GPUs are joined: NVLink, its generation and number of links, or PCIe, with and without peer access."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pytest_distbench.machine.nvml import Driver

_MOST_LINKS = 36
_GENERATIONS = {1: 1, 2: 2, 3: 2, 4: 3, 5: 3, 6: 4, 7: 5, 8: 6}
"""NVML's number of an NVLink version -> its generation: 2.0 and 2.2 are of one, 3.0 and 3.1 of another."""
_SWITCH = 2
"""NVML's number of a device type: the link leads to a switch, and through it to all GPUs at it."""
_CAPABLE_OF_READING = 0
_CAPABLE = 0
_ROUTES = {0: "", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
"""What lies between two GPUs on PCIe, in nvidia-smi's words: a bridge, several, the host's, the node's, two nodes'."""


class Port:
    """One GPU's NVLinks, those that are up.

    Args:
        driver: that is asked.
        handle: of the GPU.
    """

    def __init__(self, driver: Driver, handle: Any) -> None:
        self.generation = 0
        self.to_switch = 0
        self.to_gpu: dict[str, int] = {}
        """Links by the address of the GPU at their other end."""
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

    def links_to(self, other: Port, address: str) -> int:
        """How many of them lead to another GPU, directly or through switches."""
        return self.to_gpu.get(address, 0) or min(self.to_switch, other.to_switch)


def read_links(driver: Driver, handles: Sequence[Any], pcie: Sequence[str]) -> list[list[str]]:
    """The matrix of what joins each pair; empty on the diagonal.

    Args:
        driver: that is asked.
        handles: of the GPUs.
        pcie: generation and lanes of each one's link to the host: ``5x16``; empty: unknown.
    """
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


def pci_address(info: Any) -> str:
    """The address in NVML's answer, in lower case; empty where there is none."""
    text = getattr(info, "busId", "")
    return (text.decode(errors="replace") if isinstance(text, bytes) else str(text)).lower()


def _speed(pcie: str) -> float:
    generation, _, lanes = pcie.partition("x")
    return float(2 ** int(generation) * int(lanes))
