"""Questions to a driver of GPUs, and NVIDIA's answers, through NVML; ``machine/amd.py`` has AMD's."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pytest_distbench.errors import DistbenchError
from pytest_distbench.machine.visible import VARIABLE, Choice, Cut, choose
from pytest_distbench.records.environment import Gpu

WHY_NO_DRIVER = {
    "LIB_RM_VERSION_MISMATCH": "the NVIDIA driver and its library have different versions, as after an update: "
    "reboot, or load the new kernel modules; restart a container",
    "DRIVER_NOT_LOADED": "the NVIDIA driver is not loaded: see dmesg, or run: sudo modprobe nvidia",
    "LIBRARY_NOT_FOUND": "there is no NVIDIA driver (libnvidia-ml.so.1 is not found); a container needs "
    "docker run --gpus all",
    "NO_PERMISSION": "this user may not talk to the NVIDIA driver: look at the rights of /dev/nvidiactl",
}
_WHY_NO_GPU = {
    "NO_PERMISSION": "this process may not use it (a container or a job scheduler has given it to others)",
    "GPU_IS_LOST": "lost: it has fallen off the bus; dmesg has its Xid, and it needs a reset or a reboot",
    "NOT_FOUND": "the driver knows it no more; dmesg has its Xid, and it needs a reset or a reboot",
    "RESET_REQUIRED": "it needs a reset: nvidia-smi --gpu-reset",
    "IN_USE": "it is in use, or in an exclusive mode",
}


class DriverError(DistbenchError):
    """The driver is absent, or does not answer; the text says why."""

    def __init__(self, message: str, *, is_absent: bool) -> None:
        super().__init__(message)
        self.is_absent = is_absent


_MOST_LINKS = 36
_GENERATIONS = {1: 1, 2: 2, 3: 2, 4: 3, 5: 3, 6: 4, 7: 5, 8: 6}
"""NVML's number of an NVLink version -> its generation: 2.0 and 2.2 are one, 3.0 and 3.1 another."""
_SWITCH = 2  # NVML's number of a device type: the link leads to a switch, and through it to all GPUs at it
_NVLINK_BYTES_PER_S = {1: 20e9, 2: 25e9, 3: 25e9, 4: 25e9, 5: 50e9, 6: 100e9}
"""NVLink's generation -> bytes/s of a link per direction (data sheets of P100, V100, A100, H100, B200 and Rubin: half
the bidirectional rate over the number of links). NVML may report a slower bridge."""


@dataclass(kw_only=True)
class Port:
    """The working links of one GPU to others.

    Attributes:
        kind: ``nvlink`` or ``xgmi``.
        generation: generation of NVLink, or 0.
        to_switch: number of links to switches, which lead to all GPUs at the switch.
        to_gpu: PCI address of the GPU at the other end -> number of links.
        bytes_per_s: bytes/s of one link in each direction, or None if unknown.
    """

    kind: str
    generation: int = 0
    to_switch: int = 0
    to_gpu: dict[str, int] = field(default_factory=dict)
    bytes_per_s: float | None = None

    @property
    def count(self) -> int:
        return self.to_switch + sum(self.to_gpu.values())


def pci_address(info: Any) -> str:
    text = getattr(info, "busId", "")
    return (text.decode(errors="replace") if isinstance(text, bytes) else str(text)).lower()


class Driver:
    """Connection to NVIDIA's GPU driver. For another maker's GPUs a subclass answers the same questions.

    Attributes:
        maker: maker of the GPUs.
        tool: the maker's command-line tool.
        sets_power: argument of ``tool`` that sets a power limit.
        variables: environment variables by which users choose GPUs, in the order in which they are read.
        may_count_otherwise: whether ranks may number GPUs differently, unless the last variable names them by UUID.
        binding: the module pynvml, for its constants and exceptions.
    """

    maker = "NVIDIA"
    tool, sets_power = "nvidia-smi", "-pl"
    may_count_otherwise = True
    variables: tuple[str, ...] = (VARIABLE,)

    def __init__(self, binding: Any) -> None:
        self.binding = binding

    def ask(self, name: str, *arguments: Any) -> Any:
        """Return the answer of ``nvmlDevice<name>``, or None if device, driver or binding give none."""
        try:
            return self.demand(name, *arguments)
        except (self.binding.NVMLError, AttributeError):
            return None

    def demand(self, name: str, *arguments: Any) -> Any:
        """Return the answer of ``nvmlDevice<name>``.

        Raises:
            NVMLError: there is none; :meth:`explain` says why.
        """
        return getattr(self.binding, f"nvmlDevice{name}")(*arguments)

    def explain(self, error: Exception) -> str:
        return self.words(error, _WHY_NO_GPU)

    def words(
        self, error: Exception, table: Mapping[str, str], *, who: str = "NVML", said: BaseException | None = None
    ) -> str:
        value = getattr(error, "value", None)
        for name, words in table.items():
            if value == getattr(self.binding, f"NVML_ERROR_{name}"):
                return words
        return f"{who} says: {' '.join(str(said or error).split())}"

    def system(self, name: str) -> Any:
        """Return the answer of ``nvmlSystem<name>``, or None."""
        try:
            return getattr(self.binding, f"nvmlSystem{name}")()
        except self.binding.NVMLError:
            return None

    def place(self, handle: Any, gpu: Gpu) -> tuple[int, str]:
        """Sort key of a GPU in the order in which CUDA numbers GPUs: here its PCI address."""
        del handle
        return 0, gpu.pci

    def choose(self, cards: Sequence[Gpu], cut: Cut, variables: Mapping[str, str]) -> Choice:
        """The devices visible by the variables, in CUDA's order, and why no more are."""
        return choose(cards, cut, variables.get(VARIABLE))

    def setting(self, variables: Mapping[str, str]) -> str:
        known = [f"{name} is {variables[name]!r}" for name in self.variables if name in variables]
        return (
            ", ".join(known) or f"{' and '.join(self.variables)} {'is' if len(self.variables) == 1 else 'are'} not set"
        )

    def port(self, handle: Any) -> Port:
        port = Port(kind="nvlink")
        field = getattr(self.binding, "NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON", None)
        [speed] = (self.ask("GetFieldValues", handle, [field]) if field is not None else None) or [None]
        is_known = speed is not None and speed.nvmlReturn == self.binding.NVML_SUCCESS
        wire_bytes_per_s = 1e6 * speed.value.uiVal if is_known else math.inf  # more than what it carries
        for link in range(_MOST_LINKS):
            if not self.ask("GetNvLinkState", handle, link):
                continue
            version = self.ask("GetNvLinkVersion", handle, link) or 0
            port.generation = max(port.generation, _GENERATIONS.get(version, 0))
            if self.ask("GetNvLinkRemoteDeviceType", handle, link) == _SWITCH:
                port.to_switch += 1
            elif (remote := self.ask("GetNvLinkRemotePciInfo", handle, link)) is not None:
                address = pci_address(remote)
                port.to_gpu[address] = port.to_gpu.get(address, 0) + 1
        usual = _NVLINK_BYTES_PER_S.get(port.generation)
        port.bytes_per_s = None if usual is None else min(usual, wire_bytes_per_s or math.inf)
        return port
