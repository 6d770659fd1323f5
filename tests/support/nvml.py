"""Simulated GPUs: an NVML that describes a host from a table, so that what reads the driver is tested without one.

``with simulated(HOSTS["8xH100"]): ...`` puts a host in the place of the driver, in this process. As a pytest plugin,
``-p support.nvml`` does so for a whole run, with the host that ``DISTBENCH_NVML`` names. A host of your own is a
:class:`Host`; the rows of :data:`HOSTS` are examples.

A GPU's ``states`` are a timeline: (seconds, state from then on). The counters add up what slows a GPU down in them.
What a host does not describe is *not supported*, as on a card that lacks it.

PYTEST_DONT_REWRITE: there is no assertion here, and pytest would warn where a conftest imports from it first.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pynvml
import pytest

from pytest_distbench.machine import gpus
from support.amd import amdsmi

VARIABLE = "DISTBENCH_NVML"

_MIB = 2**20

SWITCH = "switch"
"""Other end of an NVLink: a switch that joins all GPUs at it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """How a GPU fares: ``held`` holds its clocks down; of a process there is the share of time, and its memory."""

    sm_mhz: int = 1980
    memory_mhz: int = 2619
    temperature_c: int = 55
    power_w: float = 450.0
    utilisation: float = 1.0
    held: tuple[str, ...] = ()
    used_bytes: int = 2**30
    processes: Mapping[int, float] = field(default_factory=dict)
    bytes_of: Mapping[int, int] = field(default_factory=dict)


IDLE = State(sm_mhz=345, temperature_c=30, power_w=70.0, utilisation=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """A MIG slice; its place is the numbers of its GPU instance and compute instance."""

    profile: str
    uuid: str
    place: tuple[int, int]
    memory_bytes: int = 9984 * _MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """A GPU, as sold and as configured; None is not reported, and ``lacks`` are functions without ``nvmlDevice``.

    ``trouble`` is the error that it answers with; ``is_mute``: only its first answer has it. NVLinks lead to
    :data:`SWITCH` or to the UUID of a GPU; ``routes`` has NVML's number for the path between two, else 40.
    """

    name: str
    uuid: str
    bus: int
    trouble: str = ""
    is_mute: bool = False
    mig: tuple[Slice, ...] | None = None
    nvlinks: tuple[str, ...] = ()
    nvlink: int = 6
    nvlink_mbps: int | None = None
    reads: tuple[str, ...] = ()
    routes: Mapping[str, int] = field(default_factory=dict)
    pcie: tuple[int, int] = (5, 16)
    memory_bytes: int | None = 81559 * _MIB
    cores: int = 16896
    capability: tuple[int, int] = (9, 0)
    max_mhz: int = 1980
    power_limit_w: float | None = 700.0
    default_power_limit_w: float | None = 700.0
    set_mhz: int | None = None
    ecc: bool | None = True
    persistence: bool | None = True
    lacks: frozenset[str] = frozenset()
    states: Mapping[float, State] = field(default_factory=lambda: {0.0: IDLE})

    @property
    def address(self) -> str:
        return f"00000000:{self.bus:02X}:00.0"


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """A machine as NVML sees it, or amdsmi where the maker is AMD; ``trouble`` is why that cannot be used at all."""

    cards: Sequence[Card] = ()
    trouble: str = ""
    driver: str = "570.124.06"
    cuda: int = 12080
    maker: str = "NVIDIA"


def h100s(count: int) -> list[Card]:
    """GPUs of one HGX board: 18 NVLinks each, to switches."""
    return [
        Card(name="NVIDIA H100 80GB HBM3", uuid=f"GPU-{i:04d}aaaa", bus=0x10 + i, nvlinks=(SWITCH,) * 18)
        for i in range(count)
    ]


def mi300xs(count: int) -> list[Card]:
    """GPUs of one board, each with a link of XGMI to every other."""
    uuids = [f"GPU-{0xA0 + number:016x}" for number in range(count)]
    return [
        Card(
            name="AMD Instinct MI300X", uuid=uuid, bus=0x05 + 0x10 * number, memory_bytes=196592 * _MIB,
            nvlinks=tuple(other for other in uuids if other != uuid), reads=tuple(uuids), cores=304, capability=(9, 4),
            max_mhz=2100, power_limit_w=750.0, default_power_limit_w=750.0,
        )
        for number, uuid in enumerate(uuids)
    ]  # fmt: skip


def _in_trouble(cards: Sequence[Card], numbers: Sequence[int], trouble: str, *, is_mute: bool = False) -> list[Card]:
    return [replace(c, trouble=trouble, is_mute=is_mute) if i in numbers else c for i, c in enumerate(cards)]


def _cut(cards: Sequence[Card]) -> list[Card]:
    """The host with MIG on, and two slices per GPU."""
    return [
        replace(
            card,
            mig=tuple(
                Slice(profile="1g.10gb", uuid=f"MIG-{number}{'ab'[piece]}", place=(7 + piece, 0)) for piece in (0, 1)
            ),
            nvlinks=(),
        )
        for number, card in enumerate(cards)
    ]


_RTX_3060 = Card(
    name="NVIDIA GeForce RTX 3060",
    uuid="GPU-3060",
    bus=1,
    pcie=(4, 16),
    cores=3584,
    capability=(8, 6),
    max_mhz=2100,
    memory_bytes=12288 * _MIB,
)
_RTX_4090 = Card(
    name="NVIDIA GeForce RTX 4090",
    uuid="GPU-4090",
    bus=2,
    pcie=(4, 16),
    cores=16384,
    capability=(8, 9),
    max_mhz=3105,
    memory_bytes=24564 * _MIB,
)


def _rtx_3090s(*, links: int) -> list[Card]:
    uuids = ("GPU-3090a", "GPU-3090b")
    return [
        Card(
            name="NVIDIA GeForce RTX 3090",
            uuid=uuid,
            bus=1 + i,
            pcie=(4, 8),
            nvlinks=(uuids[1 - i],) * links,
            nvlink=5,
            routes={uuids[1 - i]: 30},
            memory_bytes=24576 * _MIB,
        )
        for i, uuid in enumerate(uuids)
    ]


_L40S = [f"GPU-40{i}" for i in range(4)]

HOSTS: dict[str, Host] = {
    "no driver": Host(trouble="LIBRARY_NOT_FOUND"),
    "driver not loaded": Host(trouble="DRIVER_NOT_LOADED"),
    "driver and library differ": Host(trouble="LIB_RM_VERSION_MISMATCH"),
    "no GPU": Host(),
    "H200": Host(cards=[Card(name="NVIDIA H200", uuid="GPU-h200", bus=1, memory_bytes=143771 * _MIB)]),
    "8xH100": Host(cards=h100s(8)),
    "8xH100, four forbidden": Host(cards=_in_trouble(h100s(8), (0, 1, 2, 3), "NO_PERMISSION")),
    "8xH100, one lost": Host(cards=_in_trouble(h100s(8), (5,), "GPU_IS_LOST")),
    "8xH100, one mute": Host(cards=_in_trouble(h100s(8), (5,), "GPU_IS_LOST", is_mute=True)),
    "8xH100, capped": Host(cards=[replace(card, power_limit_w=500.0) for card in h100s(8)]),
    "2xH100, the last first": Host(cards=h100s(2)[::-1]),
    "H100 in MIG": Host(cards=_cut(h100s(1))),
    "8xH100 in MIG": Host(cards=_cut(h100s(8))),
    "H100 and one in MIG": Host(cards=[*h100s(1), *_cut(h100s(2)[1:])]),
    "H100 in MIG without slices": Host(cards=[replace(h100s(1)[0], mig=(), nvlinks=())]),
    "RTX 3060 and 4090": Host(cards=[_RTX_3060, _RTX_4090]),
    "2xRTX 3090": Host(cards=_rtx_3090s(links=0)),
    "2xRTX 3090, bridged": Host(cards=_rtx_3090s(links=4)),
    "4xL40S": Host(
        cards=[
            Card(
                name="NVIDIA L40S",
                uuid=uuid,
                bus=1 + i,
                pcie=(4, 16),
                reads=tuple(u for u in _L40S if u != uuid),
                routes={_L40S[i ^ 1]: 10},
                memory_bytes=46068 * _MIB,
            )
            for i, uuid in enumerate(_L40S)
        ]
    ),
    "8xMI300X": Host(cards=mi300xs(8), driver="6.12.12", maker="AMD"),
    "8xMI300X, one lost": Host(cards=_in_trouble(mi300xs(8), (5,), "GPU_IS_LOST"), maker="AMD"),
    "amdgpu not loaded": Host(trouble="DRIVER_NOT_LOADED", maker="AMD"),
    "GB10": Host(
        cards=[
            Card(
                name="NVIDIA GB10", uuid="GPU-gb10", bus=1, memory_bytes=None, power_limit_w=None, ecc=None,
                default_power_limit_w=None, lacks=frozenset({"GetUtilizationRates", "GetViolationStatus"}),
            )
        ]
    ),
}  # fmt: skip
"""Hosts by name: what machines were seen to look like, and what can go wrong with them."""


class Nvml:
    """The simulated driver of one host, and the host's clock; a test may exchange ``host`` and ``seconds``."""

    def __init__(self, host: Host) -> None:
        start = time.monotonic()
        self.host = host
        self.seconds: Callable[[], float] = lambda: time.monotonic() - start

    def answer(self, name: str, *arguments: Any) -> Any:
        """Answer the function ``nvmlDevice<name>``, or raise NVMLError as NVML would."""
        if name == "GetCount":
            return len(self.host.cards)
        if name == "GetHandleByIndex":
            return self._enter(self.host.cards[arguments[0]])
        if name == "GetHandleByUUID":
            return self._find(arguments[0])
        device, *others = arguments
        card = next((card for card in self.host.cards if card.uuid == device[0].uuid), None)
        if card is None:
            raise _error("GPU_IS_LOST")
        device = (card, *device[1:])
        if card.trouble:
            raise _error(card.trouble)
        table = _OF_SLICES if len(device) > 1 else _OF_CARDS
        if name not in table or name in card.lacks:
            raise _error("NOT_SUPPORTED")
        found = table[name](self, *device, *others)
        if found is None:
            raise _error("NOT_SUPPORTED")
        return found

    def state(self, card: Card) -> State:
        """How a GPU fares now."""
        return card.states[max((moment for moment in card.states if moment <= self.seconds()), default=0.0)]

    def held_ns(self, card: Card, reasons: Sequence[str]) -> int:
        """Nanoseconds for which one of these reasons has slowed it down."""
        now, moments = self.seconds(), sorted(card.states)
        ends = [*moments[1:], max(now, *moments)]
        held = (
            max(0.0, min(end, now) - moment)
            for moment, end in zip(moments, ends, strict=True)
            if not set(reasons).isdisjoint(card.states[moment].held)
        )
        return int(sum(held) * 1e9)

    def _enter(self, card: Card) -> tuple[Card]:
        if card.trouble and not card.is_mute:
            raise _error(card.trouble)
        return (card,)

    def _find(self, uuid: str) -> tuple[Card] | tuple[Card, Slice]:
        for card in self.host.cards:
            if card.uuid == uuid:
                return self._enter(card)
            for piece in card.mig or ():
                if piece.uuid == uuid:
                    return card, piece
        raise _error("NOT_FOUND")


@contextlib.contextmanager
def simulated(host: Host) -> Iterator[Nvml]:
    """Put a host in the place of the driver, for this process."""
    nvml = Nvml(host)
    if host.maker == "AMD":
        with (
            mock.patch.dict(sys.modules, {"amdsmi": amdsmi(nvml)}),
            mock.patch.object(gpus, "hip_version", return_value="7.0"),
        ):
            yield nvml
        return

    def connect() -> None:
        if nvml.host.trouble:
            raise _error(nvml.host.trouble)

    functions: dict[str, Callable[..., Any]] = {
        "nvmlInit": connect,
        "nvmlShutdown": lambda: None,
        "nvmlSystemGetDriverVersion": lambda: nvml.host.driver,
        "nvmlSystemGetCudaDriverVersion": lambda: nvml.host.cuda,
    }
    prefix = "nvmlDevice"
    for name in (name for name in vars(pynvml) if name.startswith(prefix)):
        short = name.removeprefix(prefix)
        functions[name] = lambda *arguments, short=short: nvml.answer(short, *arguments)
    with mock.patch.dict(vars(pynvml), functions):
        yield nvml


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Install the driver for the whole run, as a plugin."""
    if name := os.environ.get(VARIABLE, ""):
        if name not in HOSTS:
            raise pytest.UsageError(f"{VARIABLE}: there is no simulated host {name!r}; known are {', '.join(HOSTS)}")
        stack = contextlib.ExitStack()
        stack.enter_context(simulated(HOSTS[name]))
        config.add_cleanup(stack.close)


def _error(name: str) -> Exception:
    found: Exception = pynvml.NVMLError(getattr(pynvml, f"NVML_ERROR_{name}"))
    return found


def _link(nvml: Nvml, card: Card, link: int, found: Callable[[str], Any]) -> Any:
    del nvml
    if link >= len(card.nvlinks):
        raise _error("INVALID_ARGUMENT")
    return found(card.nvlinks[link])


def _remote(nvml: Nvml, end: str) -> Any:
    addresses = {card.uuid: card.address for card in nvml.host.cards}
    return SimpleNamespace(busId=addresses.get(end, "00000000:FF:00.0"))


def _clock(nvml: Nvml, card: Card, kind: int) -> int:
    state = nvml.state(card)
    return {pynvml.NVML_CLOCK_SM: state.sm_mhz, pynvml.NVML_CLOCK_MEM: state.memory_mhz}[kind]


def _set_frequency(card: Card, clock: int) -> int | None:
    chosen = clock == pynvml.NVML_CLOCK_ID_APP_CLOCK_TARGET and card.set_mhz is not None
    return card.set_mhz if chosen else card.max_mhz


def _held(state: State) -> int:
    return sum(getattr(pynvml, f"nvmlClocksThrottleReason{name}") for name in state.held)


def _at_work(state: State) -> list[Any]:
    if not state.processes:
        raise _error("NOT_FOUND")
    return [SimpleNamespace(pid=pid, smUtil=round(100 * share)) for pid, share in state.processes.items()]


def _field(card: Card, number: int) -> Any:
    values = {}
    if card.nvlink_mbps is not None:
        values[pynvml.NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON] = card.nvlink_mbps
    code = pynvml.NVML_SUCCESS if number in values else pynvml.NVML_ERROR_NOT_SUPPORTED
    value = values.get(number, 0)
    return SimpleNamespace(fieldId=number, nvmlReturn=code, value=SimpleNamespace(ullVal=value, uiVal=value))


def _milliwatts(watts: float | None) -> int | None:
    return None if watts is None else round(1000 * watts)


_HELD_BY = {
    pynvml.NVML_PERF_POLICY_POWER: ("SwPowerCap",),
    pynvml.NVML_PERF_POLICY_THERMAL: ("SwThermalSlowdown", "HwThermalSlowdown"),
}

_OF_CARDS: dict[str, Callable[..., Any]] = {
    "GetName": lambda nvml, card: card.name,
    "GetUUID": lambda nvml, card: card.uuid,
    "GetPciInfo": lambda nvml, card: SimpleNamespace(busId=card.address),
    "GetMemoryInfo": lambda nvml, card: (
        None
        if card.memory_bytes is None
        else SimpleNamespace(total=card.memory_bytes, used=nvml.state(card).used_bytes)
    ),
    "GetCudaComputeCapability": lambda nvml, card: card.capability,
    "GetNumGpuCores": lambda nvml, card: card.cores,
    "GetMaxClockInfo": lambda nvml, card, kind: card.max_mhz,
    "GetMaxPcieLinkGeneration": lambda nvml, card: card.pcie[0],
    "GetMaxPcieLinkWidth": lambda nvml, card: card.pcie[1],
    "GetCurrentEccMode": lambda nvml, card: None if card.ecc is None else int(card.ecc),
    "GetPersistenceMode": lambda nvml, card: None if card.persistence is None else int(card.persistence),
    "GetPowerManagementLimit": lambda nvml, card: _milliwatts(card.power_limit_w),
    "GetPowerManagementDefaultLimit": lambda nvml, card: _milliwatts(card.default_power_limit_w),
    "GetMigMode": lambda nvml, card: [int(card.mig is not None)] * 2,
    "GetMaxMigDeviceCount": lambda nvml, card: 7 if card.mig is not None else 0,
    "GetMigDeviceHandleByIndex": lambda nvml, card, number: (
        (card, card.mig[number]) if number < len(card.mig or ()) else None
    ),
    "GetNvLinkState": lambda nvml, card, link: _link(nvml, card, link, lambda end: 1),
    "GetNvLinkVersion": lambda nvml, card, link: _link(nvml, card, link, lambda end: card.nvlink),
    "GetNvLinkRemoteDeviceType": lambda nvml, card, link: _link(nvml, card, link, lambda end: 2 * (end == SWITCH)),
    "GetNvLinkRemotePciInfo": lambda nvml, card, link: _link(nvml, card, link, lambda end: _remote(nvml, end)),
    "GetP2PStatus": lambda nvml, card, other, kind: 0 if other[0].uuid in card.reads else 3,
    "GetTopologyCommonAncestor": lambda nvml, card, other: card.routes.get(other[0].uuid, 40),
    "GetClockInfo": _clock,
    "GetClock": lambda nvml, card, kind, clock: _set_frequency(card, clock),
    "GetTemperature": lambda nvml, card, sensor: nvml.state(card).temperature_c,
    "GetPowerUsage": lambda nvml, card: _milliwatts(nvml.state(card).power_w),
    "GetUtilizationRates": lambda nvml, card: SimpleNamespace(gpu=round(100 * nvml.state(card).utilisation)),
    "GetCurrentClocksThrottleReasons": lambda nvml, card: _held(nvml.state(card)),
    "GetViolationStatus": lambda nvml, card, policy: SimpleNamespace(
        violationTime=nvml.held_ns(card, _HELD_BY.get(policy, ()))
    ),
    "GetFieldValues": lambda nvml, card, fields: [_field(card, number) for number in fields],
    "GetComputeRunningProcesses": lambda nvml, card: [
        SimpleNamespace(pid=pid, usedGpuMemory=nvml.state(card).bytes_of.get(pid)) for pid in nvml.state(card).processes
    ],
    "GetProcessUtilization": lambda nvml, card, since: _at_work(nvml.state(card)),
}
"""Answers of a GPU by the function's name without ``nvmlDevice``, or None if it does not support that."""

_OF_SLICES: dict[str, Callable[..., Any]] = {
    "GetName": lambda nvml, card, piece: f"{card.name} MIG {piece.profile}",
    "GetUUID": lambda nvml, card, piece: piece.uuid,
    "GetMemoryInfo": lambda nvml, card, piece: SimpleNamespace(total=piece.memory_bytes, used=2**20),
    "GetGpuInstanceId": lambda nvml, card, piece: piece.place[0],
    "GetComputeInstanceId": lambda nvml, card, piece: piece.place[1],
    "GetComputeRunningProcesses": lambda nvml, card, piece: [
        SimpleNamespace(pid=pid) for pid in nvml.state(card).processes
    ],
}
"""What a MIG slice answers."""
