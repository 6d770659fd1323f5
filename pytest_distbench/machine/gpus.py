"""GPUs that ranks may use, by the driver and without torch, and why others are not among them.

A device that does not answer does not silence the others. GPUs are joined by NVLink or XGMI, with a number of links, or
by PCIe, with and without peer access.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pytest_distbench.machine.driver import WHY_NO_DRIVER, Driver, DriverError, pci_address
from pytest_distbench.machine.visible import ORDER, PCI_ORDER, VARIABLE
from pytest_distbench.records.environment import Gpu
from pytest_distbench.records.record import replace
from pytest_distbench.releases import hip_version


@contextlib.contextmanager
def connect() -> Iterator[Driver]:
    """Connect to the driver that torch is built for, as long as it is needed. Loads no torch, makes no context."""
    if hip_version():
        from pytest_distbench.machine.amd import connect_amd

        with connect_amd() as driver:
            yield driver
        return
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        is_absent = error.value == pynvml.NVML_ERROR_LIBRARY_NOT_FOUND
        raise DriverError(Driver(pynvml).words(error, WHY_NO_DRIVER), is_absent=is_absent) from None
    try:
        yield Driver(pynvml)
    finally:
        with contextlib.suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()


_CAPABLE_OF_READING = 0
_CAPABLE = 0
_ROUTES = {0: "", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
"""Route between two GPUs on PCIe, in nvidia-smi's words: a bridge, several, the host's, the node's, two nodes'."""


_PCIE_BYTES_PER_S = {1: 0.25e9, 2: 0.5e9, 3: 0.985e9, 4: 1.969e9, 5: 3.938e9, 6: 7.563e9}
"""PCIe's generation -> bytes/s of a lane per direction, behind its line code (PCI-SIG)."""
_LINK = re.compile(r"(nvlink|pcie|xgmi)(\d*)x(\d+)")


def read_links(driver: Driver, handles: Sequence[Any], pcie: Sequence[str]) -> list[list[str]]:
    """Read the matrix of links between GPUs, "" on the diagonal; ``pcie``: each GPU's link to the host, ``5x16``."""
    ports = [driver.port(handle) for handle in handles]
    addresses = [pci_address(driver.ask("GetPciInfo", handle)) for handle in handles]

    def speed(kind: str) -> float:
        generation, _, lanes = kind.partition("x")
        return float(2 ** int(generation) * int(lanes))

    def link(a: int, b: int) -> str:
        if a == b:
            return ""
        # directly, or through switches
        if count := ports[a].to_gpu.get(addresses[b], 0) or min(ports[a].to_switch, ports[b].to_switch):
            return f"{ports[a].kind}{ports[a].generation or ''}x{count}"
        status = driver.ask("GetP2PStatus", handles[a], handles[b], _CAPABLE_OF_READING)
        slower = min(filter(None, (pcie[a], pcie[b])), key=speed, default="")
        kind = f"pcie{slower}{'-p2p' if status == _CAPABLE else ''}"
        return f"{kind} {_ROUTES.get(driver.ask('GetTopologyCommonAncestor', handles[a], handles[b]), '')}".strip()

    return [[link(a, b) for b in range(len(handles))] for a in range(len(handles))]


def kinds(links: Sequence[Sequence[str]]) -> list[str]:
    """Kinds of link in a matrix, such as ``nvlink4x18``, each once, PCIe last: part of a platform's name."""
    found = {link.partition(" ")[0] for row in links for link in row if link}
    return sorted(found, key=lambda kind: (kind.startswith("pcie"), kind))


def peak_bytes_per_s(gpus: Sequence[Gpu], links: Sequence[Sequence[str]]) -> float | None:
    """Bytes/s that the slowest GPU can send to the others in one direction.

    None if they are joined in different ways or at unknown speed, or there is one alone.
    """
    count = len(gpus)
    rows = [[_LINK.match(link) for b, link in enumerate(row[:count]) if a != b] for a, row in enumerate(links[:count])]
    found = [[link.groups() for link in row if link is not None] for row in rows]
    if count < 2 or len(found) < count or any(len(row) < count - 1 for row in found):
        return None
    peaks: list[float] = []
    joined_by = {kind for row in found for kind, _, _ in row}
    if joined_by in ({"nvlink"}, {"xgmi"}):
        for gpu, row in zip(gpus, found, strict=True):
            peaks.append((gpu.nvlink_bytes_per_s or 0.0) * min(gpu.nvlinks, sum(int(n) for *_, n in row)))
    elif joined_by == {"pcie"}:
        peaks = [_PCIE_BYTES_PER_S.get(int(generation or 0), 0.0) * int(n) for row in found for _, generation, n in row]
    return min(peaks, default=0.0) or None


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpus:
    """GPUs of this machine as the driver describes them.

    Attributes:
        visible: GPUs that ranks may use, in the order in which CUDA numbers them.
        count: number of GPUs that the driver describes, visible or not.
        remarks: why GPUs are not visible, if the user's setting or MIG is the reason; clauses.
        unreadable: sentences on GPUs that the driver does not describe, one per reason.
        failure: why the driver did not answer, or "".
        is_absent: whether there is no driver; False for one that fails.
        maker: maker of the GPUs: NVIDIA or AMD.
        tool: the maker's command-line tool.
        setting: which GPUs the user has chosen, as a clause.
        cuda: the newest version of CUDA that the driver runs.
        links: matrix of the links between visible GPUs, as in ``GpuHost`` of ``records/environment.py``.
        variables: environment of ranks, in which CUDA sees the visible GPUs in the same order.
    """

    visible: tuple[Gpu, ...] = ()
    count: int = 0
    remarks: tuple[str, ...] = ()
    unreadable: tuple[str, ...] = ()
    failure: str = ""
    is_absent: bool = False
    maker: str = ""
    tool: str = ""
    setting: str = ""
    driver: str = ""
    cuda: str = ""
    links: tuple[tuple[str, ...], ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)

    @property
    def platform(self) -> str:
        """Name of the platform: product, what joins several GPUs, and a power limit below the default."""
        names = dict.fromkeys(gpu.name for gpu in self.visible)
        capped = [gpu.power_limit_w for gpu in self.visible if gpu.is_capped and gpu.power_limit_w is not None]
        power = [f"{min(capped):.0f}w"] if capped else []
        return "-".join(["-and-".join(map(slug, names)), *kinds(self.links), *power])


def read_gpus(variables: Mapping[str, str]) -> Gpus:
    """Ask the driver. Nothing is raised: what does not answer is in the result."""
    try:
        with connect() as driver:
            try:
                return _read(driver, variables)
            except driver.binding.NVMLError as error:
                return Gpus(failure=driver.explain(error))
    except DriverError as error:
        return Gpus(failure=str(error), is_absent=error.is_absent)


def misplaced(leased: Sequence[Gpu], used: Sequence[str]) -> str:
    """A sentence about the first rank that did not compute on its leased GPU, or ""."""
    for rank, (gpu, uuid) in enumerate(zip(leased, used, strict=False)):
        ours, theirs = (text.lower().removeprefix("gpu-") for text in (gpu.uuid, uuid))
        by_hip = ours.encode().hex()  # torch spells the letters of HIP's UUIDs as bytes
        if uuid and not gpu.slice_of and ours != theirs and by_hip != theirs.replace("-", ""):
            return f"rank {rank} computed on the GPU {uuid}, and {gpu.uuid} is leased and named; name GPUs by UUID"
    return ""


def slug(name: str) -> str:
    return re.sub(r"[^a-z0-9.]+", "-", name.lower()).strip("-.") or "unknown"


def _read(driver: Driver, variables: Mapping[str, str]) -> Gpus:
    cards: list[Gpu] = []
    speeds: dict[str, int] = {}
    places: dict[str, tuple[int, str]] = {}
    cut: dict[str, dict[tuple[int, int], Gpu]] = {}
    silent: dict[str, list[str]] = {}
    for index in range(driver.demand("GetCount")):
        try:
            handle = driver.demand("GetHandleByIndex", index)
            cards.append(_card(driver, handle, index))
        except driver.binding.NVMLError as error:
            silent.setdefault(driver.explain(error), []).append(str(index))
            continue
        places[cards[-1].uuid] = driver.place(handle, cards[-1])
        sm_mhz = driver.ask("GetMaxClockInfo", handle, driver.binding.NVML_CLOCK_SM) or 0
        speeds[cards[-1].uuid] = (driver.ask("GetNumGpuCores", handle) or 0) * sm_mhz
        mode = driver.ask("GetMigMode", handle)
        if mode is not None and mode[0] == 1:
            cut[cards[-1].uuid] = dict(_slices(driver, handle, cards[-1]))
    in_order = sorted(cards, key=lambda gpu: places[gpu.uuid])
    order, setting = variables.get(ORDER, PCI_ORDER), variables.get(VARIABLE)
    if order != PCI_ORDER:
        in_order.sort(key=lambda gpu: -speeds[gpu.uuid])
    visible, remarks = driver.choose(in_order, cut, variables)
    handles = [driver.demand("GetHandleByUUID", gpu.uuid) for gpu in visible] if len(visible) > 1 else []
    # What makes CUDA see in the ranks what we see here: the order of the bus, unless the user has chosen one. Numbers
    # can mean something else to CUDA than to us where it orders different products by their speed, where it leaves out
    # GPUs that the driver does not describe, and where MIG is on: there the ranks are given UUIDs.
    cuda = int(driver.system("GetCudaDriverVersion") or 0)
    is_certain = (order == PCI_ORDER or len({gpu.name for gpu in cards}) <= 1) and not silent and not cut
    is_certain = is_certain or not driver.may_count_otherwise
    is_by_number = setting is None or not setting.startswith(("GPU-", "MIG-"))
    named = {} if is_certain or not visible or not is_by_number else {VARIABLE: ",".join(gpu.uuid for gpu in visible)}
    return Gpus(
        visible=tuple(visible),
        count=len(cards),
        remarks=tuple(remarks),
        unreadable=tuple(f"GPU {', '.join(indices)}: {why}" for why, indices in silent.items()),
        maker=driver.maker,
        tool=driver.tool,
        setting=driver.setting(variables),
        driver=str(driver.system("GetDriverVersion") or ""),
        cuda=f"{cuda // 1000}.{cuda % 1000 // 10}" if cuda else "",
        links=tuple(map(tuple, read_links(driver, handles, [gpu.pcie for gpu in visible]))),
        variables={ORDER: order, **named},
    )


def _card(driver: Driver, handle: Any, index: int) -> Gpu:
    memory = driver.ask("GetMemoryInfo", handle)
    capability = driver.ask("GetCudaComputeCapability", handle)
    generation, lanes = driver.ask("GetMaxPcieLinkGeneration", handle), driver.ask("GetMaxPcieLinkWidth", handle)
    port = driver.port(handle)
    ecc, persistence = driver.ask("GetCurrentEccMode", handle), driver.ask("GetPersistenceMode", handle)
    return Gpu(
        name=str(driver.demand("GetName", handle)),
        uuid=str(driver.demand("GetUUID", handle)),
        index=index,
        pci=pci_address(driver.ask("GetPciInfo", handle)),
        memory_bytes=_bytes(memory),
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
        described = replace(gpu, name=str(name), uuid=str(uuid), slice_of=gpu.uuid, nvlinks=0, nvlink_bytes_per_s=None)
        yield (place[0], place[1]), replace(described, memory_bytes=_bytes(memory))


def _bytes(memory: Any) -> int | None:
    return None if memory is None else int(memory.total)


def _watts(milliwatts: int | None) -> float | None:
    return None if milliwatts is None else milliwatts / 1000
