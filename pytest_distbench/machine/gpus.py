"""The GPUs that ranks may use, as the driver tells of them without torch, and why others are not among them.

The driver is asked through NVML, or by its questions (``machine/amd.py``): what one device cannot or may not say does
not silence the others. GPUs are joined by
NVLink, of a generation and with a number of links, or by PCIe, with and without peer access.

Which devices CUDA sees, in which order, is said by CUDA_VISIBLE_DEVICES, MIG and CUDA_DEVICE_ORDER. The reading of the
variable is that of torch (``torch.cuda._parse_visible_devices``), against which tests check it; the rules for MIG are
those of NVIDIA's MIG User Guide: one slice at most, and none but it where there is one.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pytest_distbench.errors import DistbenchError
from pytest_distbench.records.environment import Gpu
from pytest_distbench.records.record import replace
from pytest_distbench.releases import hip_version

_WHY_NO_DRIVER = {
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
    """The NVIDIA driver cannot be asked; the message says why, and what to do. It is absent, or in trouble."""

    def __init__(self, message: str, *, is_absent: bool) -> None:
        super().__init__(message)
        self.is_absent = is_absent


class Driver:
    """A driver of GPUs: NVIDIA's. Another maker's is a subclass, which answers the same questions.

    Attributes:
        maker: of the GPUs.
        tool: the maker's command for them.
        sets_power: its arguments that set a power limit.
        variables: those by which users choose among GPUs, in the order in which they are read.
        may_count_otherwise: what ranks see may have other numbers than here; UUIDs in the last variable are certain.
        binding: pynvml, for its numbers and errors.
    """

    maker = "NVIDIA"
    tool, sets_power = "nvidia-smi", "-pl"
    may_count_otherwise = True
    variables: tuple[str, ...] = ("CUDA_VISIBLE_DEVICES",)

    def __init__(self, binding: Any) -> None:
        self.binding = binding

    def ask(self, name: str, *arguments: Any) -> Any:
        """The answer of ``nvmlDevice<name>``; None where device, driver or binding have none, or may not give it."""
        try:
            return self.demand(name, *arguments)
        except (self.binding.NVMLError, AttributeError):
            return None

    def demand(self, name: str, *arguments: Any) -> Any:
        """The same answer.

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
        """The answer of ``nvmlSystem<name>``, or None if there is none."""
        try:
            return getattr(self.binding, f"nvmlSystem{name}")()
        except self.binding.NVMLError:
            return None

    def place(self, handle: Any, gpu: Gpu) -> tuple[int, str]:
        """Where a GPU stands in the order in which CUDA counts them."""
        del handle
        return 0, gpu.pci

    def choose(self, cards: Sequence[Gpu], cut: Cut, variables: Mapping[str, str]) -> Choice:
        """The devices that are visible by the variables, in CUDA's order, and why no more are."""
        return choose(cards, cut, variables.get(VARIABLE))

    def setting(self, variables: Mapping[str, str]) -> str:
        """What the user has set to choose among GPUs, as a clause."""
        told = [f"{name} is {variables[name]!r}" for name in self.variables if name in variables]
        return (
            ", ".join(told) or f"{' and '.join(self.variables)} {'is' if len(self.variables) == 1 else 'are'} not set"
        )

    def port(self, handle: Any) -> Port:
        """A GPU's NVLinks, those that are up."""
        port = Port(kind="nvlink")
        field = getattr(self.binding, "NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON", None)
        [told] = (self.ask("GetFieldValues", handle, [field]) if field is not None else None) or [None]
        is_told = told is not None and told.nvmlReturn == self.binding.NVML_SUCCESS
        wire_bytes_per_s = 1e6 * told.value.uiVal if is_told else math.inf  # more than what it carries
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


@contextlib.contextmanager
def connect() -> Iterator[Driver]:
    """The driver, for as long as it is needed: the one that torch is built for. Loads no torch, makes no context."""
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
        raise DriverError(Driver(pynvml).words(error, _WHY_NO_DRIVER), is_absent=is_absent) from None
    try:
        yield Driver(pynvml)
    finally:
        with contextlib.suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()


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
_LINK = re.compile(r"(nvlink|pcie|xgmi)(\d*)x(\d+)")


@dataclass(kw_only=True)
class Port:
    """One GPU's links to others, those that are up.

    Attributes:
        kind: ``nvlink`` or ``xgmi``.
        generation: of NVLink; 0: not known.
        to_switch: links to switches, and through them to all GPUs there.
        to_gpu: links by the address of the GPU at their other end.
        bytes_per_s: what one of them carries in each direction; None where that is not known.
    """

    kind: str
    generation: int = 0
    to_switch: int = 0
    to_gpu: dict[str, int] = field(default_factory=dict)
    bytes_per_s: float | None = None

    @property
    def count(self) -> int:
        return self.to_switch + sum(self.to_gpu.values())


def read_links(driver: Driver, handles: Sequence[Any], pcie: Sequence[str]) -> list[list[str]]:
    """The matrix of what joins each pair; empty on the diagonal. A GPU's own link to the host is told as ``5x16``."""
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
    """The different kinds of link in a matrix, without routes, PCIe last: what a hardware class is told by."""
    found = {link.partition(" ")[0] for row in links for link in row if link}
    return sorted(found, key=lambda kind: (kind.startswith("pcie"), kind))


def peak_bytes_per_s(gpus: Sequence[Gpu], links: Sequence[Sequence[str]]) -> float | None:
    """What each of some GPUs can send to the others, in one direction; of different ones the slowest counts.

    None where they are joined in different ways, by what has no known speed, or there is one alone.
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


def pci_address(info: Any) -> str:
    text = getattr(info, "busId", "")
    return (text.decode(errors="replace") if isinstance(text, bytes) else str(text)).lower()


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpus:
    """What the driver shows of this machine's GPUs.

    Attributes:
        visible: what ranks may use, in the order in which CUDA numbers them.
        count: GPUs of the machine that the driver describes, visible or not.
        remarks: why no more of them are visible than are, as far as the user's setting or MIG is why; clauses.
        unreadable: which GPUs it does not describe, and why: a sentence for each reason.
        is_absent: there is no driver; else one that fails is in trouble.
        maker: of the GPUs: NVIDIA or AMD.
        tool: the maker's command for them.
        setting: which of them the user has chosen, as a clause.
        cuda: the newest CUDA that the driver runs.
        links: what joins the visible ones, see :class:`~pytest_distbench.records.environment.GpuHost`.
        variables: for the ranks, so that CUDA sees there what is visible here, in the same order.
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
    told = {} if is_certain or not visible or not is_by_number else {VARIABLE: ",".join(gpu.uuid for gpu in visible)}
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
        variables={ORDER: order, **told},
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


[VARIABLE] = Driver.variables
ORDER = "CUDA_DEVICE_ORDER"
PCI_ORDER = "PCI_BUS_ID"

_ENDS = "the list ends there"
_NOT_CUT = (
    "GPU {0}: MIG is on and it has no slice: sudo nvidia-smi mig -i {0} -lgip lists profiles, and -cgi PROFILE -C "
    "makes a slice; sudo nvidia-smi -i {0} -mig 0 turns MIG off"
)

_NUMBER = re.compile(r"\s*([+-]?\d+)", re.ASCII)
_OLD_SLICE = re.compile(r"MIG-(GPU-[^/]+)/(\d+)/(\d+)")


Cut = Mapping[str, Mapping[tuple[int, int], Gpu]]
"""GPUs on which MIG is on, so that CUDA does not offer them whole, by UUID.

Of each the slices, by (GPU instance, compute instance), in the driver's order.
"""

Choice = tuple[list[Gpu], list[str]]
"""What is visible, in the order in which CUDA numbers it, and why no more of what the user has named is."""


def choose(cards: Sequence[Gpu], cut: Cut, setting: str | None) -> Choice:
    """The devices that are visible by the value of :data:`VARIABLE`, if it is set."""
    if setting is not None and setting.startswith("MIG-"):
        # The first name alone counts, in today's spelling or in that of drivers before 470.
        name, comma, _ = setting.partition(",")
        fitting = [piece for pieces in cut.values() for piece in pieces.values() if piece.uuid.startswith(name)]
        if (old := _OLD_SLICE.fullmatch(name)) is not None and any(card.uuid == old[1] for card in cards):
            fitting = [*filter(None, [cut.get(old[1], {}).get((int(old[2]), int(old[3])))])]
        if len(fitting) != 1:
            return [], [f"{VARIABLE}: {_why_not_one(name, len(fitting))}"]
        return fitting, [f"{VARIABLE}: of several MIG slices the first alone counts"] if comma else []
    chosen, why = (list(cards), "") if setting is None else listed(cards, setting)
    remarks = [f"{VARIABLE}: {why}"] if why else []
    for card in chosen:
        if pieces := cut.get(card.uuid):
            return [next(iter(pieces.values()))], remarks
    remarks += [_NOT_CUT.format(card.index) for card in chosen if card.uuid in cut]
    return [card for card in chosen if card.uuid not in cut], remarks


def listed(cards: Sequence[Gpu], setting: str) -> tuple[list[Gpu], str]:
    """By numbers, as C's strtoul reads them, or by UUIDs or the beginnings of such, as the first is.

    Up to the first that names none or several. Twice the same: none at all.
    """
    by_uuid = setting.startswith("GPU-")
    names: list[str] = []
    why = ""
    for part in setting.split(","):
        number = _NUMBER.match(part)
        name = part if by_uuid else str(int(number[1]) if number else -1)
        if name in names:
            return [], f"{name} is named twice, and then there is none"
        if not name.startswith("GPU-" if by_uuid else tuple("0123456789")):
            what = "UUID such as the first" if by_uuid else "number of a GPU"
            why = f"{part!r} is no {what}; {_ENDS}" if setting.strip() else "it is empty, which hides all"
            break
        names.append(name)
    chosen: list[Gpu] = []
    for name in names:
        if by_uuid:
            fitting = [card for card in cards if card.uuid.startswith(name)]
        else:
            fitting = [*cards[int(name) : int(name) + 1]]
        if len(fitting) != 1:
            none = f"there is no GPU {name} of {len(cards)} that count from 0"
            return chosen, f"{_why_not_one(name, len(fitting)) if by_uuid else none}; {_ENDS}"
        if fitting[0] in chosen:
            return [], f"{name} names one twice, and then there is none"
        chosen += fitting
    return chosen, why


def _why_not_one(name: str, count: int) -> str:
    return f"{count} devices have a UUID that begins with {name}" if count else f"no device has the UUID {name}"
