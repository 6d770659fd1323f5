"""The GPUs that ranks may use, read from the driver without torch, and why others are not among them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pytest_distbench.machine.links import Port, kinds, pci_address, read_links
from pytest_distbench.machine.nvml import Driver, DriverError, connect
from pytest_distbench.machine.visible import ORDER, PCI_ORDER, VARIABLE, Card, choose, in_order, is_by_number
from pytest_distbench.records.gpu import Gpu
from pytest_distbench.records.record import replace


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpus:
    """What the driver shows of this machine's GPUs.

    Attributes:
        visible: what ranks may use, in the order in which CUDA numbers them.
        count: GPUs of the machine that the driver describes, visible or not.
        remarks: why no more of them are visible than are, as far as the user's setting or MIG is why; clauses.
        unreadable: which GPUs it does not describe, and why: a sentence for each reason.
        failure: why the driver could not be asked at all; empty: it was.
        is_absent: there is no driver; else one that fails is in trouble.
        driver: its version.
        cuda: the newest CUDA it runs.
        links: what joins the visible ones, see :class:`~pytest_distbench.records.gpu.GpuHost`.
        variables: for the ranks, so that CUDA sees there what is visible here, in the same order.
    """

    visible: tuple[Gpu, ...] = ()
    count: int = 0
    remarks: tuple[str, ...] = ()
    unreadable: tuple[str, ...] = ()
    failure: str = ""
    is_absent: bool = False
    driver: str = ""
    cuda: str = ""
    links: tuple[tuple[str, ...], ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)

    @property
    def platform(self) -> str:
        """The hardware class: product, what joins several, and the power limit where it is below the default."""
        names = dict.fromkeys(gpu.name for gpu in self.visible)
        capped = [gpu.power_limit_w for gpu in self.visible if gpu.is_capped and gpu.power_limit_w is not None]
        power = [f"{min(capped):.0f}w"] if capped else []
        return "-".join(["-and-".join(map(slug, names)), *kinds(self.links), *power])


def read_gpus(variables: Mapping[str, str]) -> Gpus:
    """Ask the driver. Where it, or one of its GPUs, does not answer, the result says so; nothing is raised."""
    try:
        with connect() as driver:
            try:
                return _read(driver, variables)
            except driver.binding.NVMLError as error:
                return Gpus(failure=driver.explain(error))
    except DriverError as error:
        return Gpus(failure=str(error), is_absent=error.is_absent)


def misplaced(leased: Sequence[Gpu], used: Sequence[str]) -> str:
    """A sentence about the first rank that did not compute on the GPU that is leased for it; empty: there is none."""
    for rank, (gpu, uuid) in enumerate(zip(leased, used, strict=False)):
        ours, theirs = (text.lower().removeprefix("gpu-") for text in (gpu.uuid, uuid))
        if uuid and not gpu.slice_of and ours != theirs:
            return f"rank {rank} computed on the GPU {uuid}, and {gpu.uuid} is leased and named; name GPUs by UUID"
    return ""


def slug(name: str) -> str:
    """A product's name as a part of a folder's."""
    return re.sub(r"[^a-z0-9.]+", "-", name.lower()).strip("-.") or "unknown"


def _read(driver: Driver, variables: Mapping[str, str]) -> Gpus:
    cards: list[Card] = []
    silent: dict[str, list[str]] = {}
    for index in range(driver.demand("GetCount")):
        try:
            cards.append(_card(driver, index))
        except driver.binding.NVMLError as error:
            silent.setdefault(driver.explain(error), []).append(str(index))
    setting = variables.get(VARIABLE)
    choice = choose(in_order(cards, variables), setting)
    visible = choice.gpus
    handles = [driver.demand("GetHandleByUUID", gpu.uuid) for gpu in visible] if len(visible) > 1 else []
    return Gpus(
        visible=tuple(visible),
        count=len(cards),
        remarks=tuple(choice.remarks),
        unreadable=tuple(f"GPU {', '.join(indices)}: {why}" for why, indices in silent.items()),
        driver=driver.version,
        cuda=driver.newest_cuda,
        links=tuple(map(tuple, read_links(driver, handles, [gpu.pcie for gpu in visible]))),
        variables=_variables(variables, visible, cards, is_whole=not silent),
    )


def _variables(
    variables: Mapping[str, str], visible: Sequence[Gpu], cards: Sequence[Card], *, is_whole: bool
) -> dict[str, str]:
    """What makes CUDA see in the ranks what we see here.

    The order of the bus, unless the user has chosen one. Numbers can mean something else to CUDA than to us where it
    orders different products by their speed, where it leaves out GPUs that the driver does not describe, and where MIG
    is on: there the ranks are given UUIDs.
    """
    order = variables.get(ORDER, PCI_ORDER)
    is_certain = order == PCI_ORDER or len({card.gpu.name for card in cards}) <= 1
    is_certain = is_certain and is_whole and not any(card.is_cut for card in cards)
    if is_certain or not visible or not is_by_number(variables.get(VARIABLE)):
        return {ORDER: order}
    return {ORDER: order, VARIABLE: ",".join(gpu.uuid for gpu in visible)}


def _card(driver: Driver, index: int) -> Card:
    """One GPU."""
    handle = driver.demand("GetHandleByIndex", index)
    gpu = _describe(driver, handle, index, pci=pci_address(driver.ask("GetPciInfo", handle)))
    mode = driver.ask("GetMigMode", handle)
    is_cut = mode is not None and mode[0] == 1
    sm_mhz = driver.ask("GetMaxClockInfo", handle, driver.binding.NVML_CLOCK_SM) or 0
    return Card(
        gpu=gpu,
        is_cut=is_cut,
        slices=dict(_slices(driver, handle, gpu)) if is_cut else {},
        speed=float((driver.ask("GetNumGpuCores", handle) or 0) * sm_mhz),
    )


def _describe(driver: Driver, handle: Any, index: int, *, pci: str) -> Gpu:
    memory = driver.ask("GetMemoryInfo", handle)
    capability = driver.ask("GetCudaComputeCapability", handle)
    generation, lanes = driver.ask("GetMaxPcieLinkGeneration", handle), driver.ask("GetMaxPcieLinkWidth", handle)
    port = Port(driver, handle)
    ecc, persistence = driver.ask("GetCurrentEccMode", handle), driver.ask("GetPersistenceMode", handle)
    return Gpu(
        name=str(driver.demand("GetName", handle)),
        uuid=str(driver.demand("GetUUID", handle)),
        index=index,
        pci=pci,
        memory_bytes=int(memory.total) if memory is not None else None,
        capability=".".join(map(str, capability)) if capability else "",
        pcie=f"{generation}x{lanes}" if generation and lanes else "",
        nvlinks=port.count,
        nvlink_bytes_per_s=port.bytes_per_s,
        ecc=None if ecc is None else bool(ecc),
        persistence=None if persistence is None else bool(persistence),
        power_limit_w=_watts(driver.ask("GetPowerManagementLimit", handle)),
        default_power_limit_w=_watts(driver.ask("GetPowerManagementDefaultLimit", handle)),
    )


def _slices(driver: Driver, handle: Any, gpu: Gpu) -> Iterator[tuple[tuple[int, int], Gpu]]:
    for number in range(driver.ask("GetMaxMigDeviceCount", handle) or 0):
        piece = driver.ask("GetMigDeviceHandleByIndex", handle, number)  # the numbers have gaps
        name, uuid = (driver.ask(what, piece) if piece is not None else None for what in ("GetName", "GetUUID"))
        if name is None or uuid is None:
            continue
        place = tuple(driver.ask(f"Get{what}InstanceId", piece) or 0 for what in ("Gpu", "Compute"))
        memory = driver.ask("GetMemoryInfo", piece)
        described = replace(
            gpu,
            name=str(name),
            uuid=str(uuid),
            slice_of=gpu.uuid,
            memory_bytes=int(memory.total) if memory is not None else None,
            nvlinks=0,
            nvlink_bytes_per_s=None,
        )
        yield (place[0], place[1]), described


def _watts(milliwatts: int | None) -> float | None:
    return None if milliwatts is None else milliwatts / 1000
