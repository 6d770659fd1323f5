"""Environment of a launch: hardware, software and other load; and statements of the user.

A user states prices of machines by the hour, with date and source, and an experiment, which is printed under the
headings of reports 000 and 001.
"""

from __future__ import annotations

import datetime
import fnmatch
import math
from collections.abc import Mapping
from typing import Annotated, Literal

import msgspec

from pytest_distbench.records.record import Record, replace


class Gpu(Record, frozen=True, kw_only=True):
    """One CUDA device: a GPU, or a MIG slice of one. What the driver does not report is None or empty."""

    name: str  # of the product; a slice's has its profile: ``NVIDIA H100 80GB HBM3 MIG 1g.10gb``
    uuid: str
    index: int = 0  # as nvidia-smi counts; for a slice, that of its GPU
    pci: str = ""  # address on the bus: ``00000000:17:00.0``
    slice_of: str = ""  # UUID of the GPU that a MIG slice is part of
    memory_bytes: int | None = None
    capability: str = ""  # compute capability: ``9.0``
    pcie: str = ""  # the fastest link to the host that card and slot allow, generation and lanes: ``5x16``
    nvlinks: int = 0
    nvlink_bytes_per_s: float | None = None  # what one of them carries in each direction, by the data sheet
    ecc: bool | None = None
    persistence: bool | None = None  # whether the driver keeps it initialised while nobody uses it
    power_limit_w: float | None = None
    default_power_limit_w: float | None = None

    @property
    def label(self) -> str:
        return f"GPU {self.index}" if not self.slice_of else f"the MIG slice {self.uuid[:12]} of GPU {self.index}"

    @property
    def is_capped(self) -> bool:
        """Whether somebody has set its power limit below the default."""
        limit, default = self.power_limit_w, self.default_power_limit_w
        return limit is not None and default is not None and limit < default - 1


class GpuHost(Record, frozen=True, kw_only=True):
    driver: str
    cuda: str  # newest CUDA that this driver runs: ``12.8``
    cpu: str
    gpus: list[Gpu]  # visible to the run, in the order of the ranks
    links: list[list[str]] = []
    """Matrix of the links between GPUs: ``nvlink4x18``, ``pcie5x16-p2p NODE``; "" on the diagonal."""
    unreadable: list[str] = []  # other GPUs of this machine that the driver would not describe, and why


class GpuReport(Record, frozen=True, kw_only=True, omit_defaults=True):
    """One GPU during one launch, as the driver reported it; None where it reports nothing.

    A baseline has one for all GPUs and launches of its case, without name and looks: the slowest GPU counts.
    """

    label: str = ""  # ``GPU 3``
    uuid: str = ""
    looks: int = 0  # how often it was looked at while it worked; shares below refer to these looks
    sm_mhz: float | None = None  # median, while it worked
    memory_mhz: float | None = None  # median, while it worked
    temperature_c: float | None = None  # the highest
    power_w: float | None = None  # median, while it worked
    utilisation: float | None = None  # median, while it worked: share of the time in which a kernel ran, 0 to 1
    course: list[tuple[float, float]] = []  # seconds since the first look -> the same share, at each later look
    held: dict[str, float] = {}
    """Reason why the GPU's clocks were held down -> share of the time, 0 to 1; below 0.01 not in a baseline."""
    power_limit_w: float | None = None
    sm_limit_mhz: float | None = None  # the clock it is set to; None: it is not set, or the driver does not report it
    others: list[str] = []  # processes of others that computed on it, or may have: ``python (pid 4711)``
    by_mps: bool = False  # kernels came through the MPS server, which other users may share
    host_cpu: str = ""  # product name of its host's CPU, which is no part of the platform


SHORTEST_WINDOW_S = 0.05  # below this the 10 ms ticks of the system's CPU accounting say nothing about other processes


class Load(Record, frozen=True, kw_only=True):
    """Use of this host's CPUs during a part of a launch. *Own* are all processes that the launch has started."""

    wall_s: float
    cpus: int
    busy_s: float
    """CPU seconds used on these CPUs by all processes, and by other virtual machines on the same hardware."""
    stolen_s: float = 0.0  # part of ``busy_s`` that was taken from this virtual machine
    own_s: float  # CPU seconds of the own processes, on whatever CPU
    ran_s: float = 0.0
    """CPU seconds of the own threads, as far as they were visible at the end; 0 if the system does not report them."""
    waited_s: float = 0.0  # seconds in which these threads were runnable, and had no CPU

    @property
    def foreign_cores(self) -> float | None:
        """Cores that other processes kept busy, or None if the stretch is too short."""
        if self.wall_s < SHORTEST_WINDOW_S:
            return None
        return max(0.0, (self.busy_s - self.own_s) / self.wall_s)

    @property
    def _longer(self) -> float | None:
        if self.wall_s < SHORTEST_WINDOW_S or self.ran_s <= 0.0:
            return None
        return (self.ran_s + self.waited_s) / self.ran_s

    @property
    def foreign_wanted(self) -> float | None:
        """Cores that other processes wanted: those they used, times the factor by which own threads had to wait.

        However many processes want two cores, they use no more than two.
        """
        if self._longer is None or self.foreign_cores is None:
            return None
        return self.foreign_cores * self._longer

    @property
    def crowding(self) -> float | None:
        """Factor by which other processes prolonged the own work, 1 if they did not, or None if unknown.

        Threads that compute take ``(ran + waited) / ran`` times as long as they would without a wait. If the own
        threads alone want more CPUs than there are, they wait for each other: others are not charged for that part. Nor
        can the whole have been delayed by more than all waits together, which is little if most of it was sleep.
        """
        longer = self._longer
        if longer is None:
            return None
        wanted = max(self.own_s, self.ran_s) * longer / self.wall_s
        by_waits = longer / max(1.0, wanted / self.cpus)
        at_most = self.wall_s / (self.wall_s - self.waited_s) if self.waited_s < self.wall_s else math.inf
        there = self.cpus * self.wall_s
        by_theft = there / (there - self.stolen_s) if self.stolen_s < there else 1.0
        return max(1.0, min(by_waits, at_most)) * by_theft


class End(Record, frozen=True, kw_only=True):
    """End of one process below a guardian, with what it and its children used."""

    code: int = 0  # below 0 it is a signal's
    timed_out: bool = False
    wall_s: float = 0.0
    cpu_s: float = 0.0
    load: Load | None = None
    peak_memory_bytes: int = 0  # of the largest of its processes; 0: not known
    delayed_s: float = 0.0  # seconds for which an injected slowdown stopped it


SETTINGS = frozenset(
    {
        "autocast",
        "conv_precision",
        "cudnn_benchmark",
        "cudnn_deterministic",
        "deterministic",
        "lower_precision",
        "matmul_precision",
        "rnn_precision",
    }
)
"""Parts of ``software`` that the code under test chooses. Another choice is reported and excuses nothing: the numbers
are judged as ever, while numbers under other versions are not compared."""


def computes_in_float32(software: Mapping[str, str]) -> bool:
    """Whether a training is known to compute in float32 alone; False if that was not recorded."""
    precisions = [software.get(f"{operation}_precision", "ieee") for operation in ("conv", "matmul", "rnn")]
    return (
        software.get("autocast") == "off" and software.get("lower_precision") == "none" and set(precisions) == {"ieee"}
    )


class Environment(Record, frozen=True, kw_only=True):
    """Hardware and software of a launch, without host names and secrets."""

    platform: str  # the hardware that baselines are keyed by
    device: str  # product name of the GPU, or of the CPU
    cores: int  # CPU cores this process may use
    software: dict[str, str]
    """Versions that can change a result: python, torch, numpy; the library of the backend mpi; for GPUs cuda, nccl,
    cudnn and the driver; and :data:`SETTINGS`."""
    system: dict[str, str] = {}
    """What it ran on: OS, kernel, firmware and the machine's product name. Described, and compared with nothing."""
    variables: dict[str, str] = {}  # environment variables on the allow-list
    shares_gpu: bool = False
    """Several ranks ran on one GPU: the numbers describe no hardware, and are compared with nothing."""
    shares_host: bool = False
    """Other runs may have measured on this host at the same time, on other GPUs: they share its CPUs."""
    gpu_host: GpuHost | None = None  # the GPUs, their links and their host, or None for a run on the CPU


Term = Literal["regular", "preemptible"]  # how a machine is rented: until it is given back, or until its owner wants it

TERMS: tuple[Term, ...] = ("regular", "preemptible")


_Amount = Annotated[float, msgspec.Meta(ge=0, le=1e12)]
_Count = Annotated[int, msgspec.Meta(ge=1)]
_Text = Annotated[str, msgspec.Meta(min_length=1)]


class Price(Record, frozen=True, kw_only=True):
    """Price by the hour, in the currency of its list, for each rental term."""

    regular: _Amount | None = None
    preemptible: _Amount | None = None

    def __post_init__(self) -> None:
        if not self.per_hour:
            raise ValueError(f"Expected a price, {' or '.join(TERMS)}, got neither")

    @property
    def per_hour(self) -> dict[Term, float]:
        return {term: price for term in TERMS if (price := getattr(self, term)) is not None}


class Machine(Price, frozen=True, kw_only=True):
    """Kind of machine that nodes are rented as."""

    name: str = ""  # as its owner calls it: ``n1-standard-4``
    ranks_per_node: _Count  # so many share a node, and its price
    platforms: Annotated[list[_Text], msgspec.Meta(min_length=1)] = msgspec.field(default_factory=lambda: ["*"])
    """Platforms of the runs that count as this machine; ``*`` matches anything."""
    accelerator: str | None = None  # of a node, by its name in the list; its price is not part of the machine's
    accelerators_per_node: _Count | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.accelerator is None) != (self.accelerators_per_node is None):
            raise ValueError("Expected `accelerator` and `accelerators_per_node` together, got one of them")

    def nodes(self, ranks: int) -> int:
        return -(-ranks // self.ranks_per_node)

    def cost(self, term: Term, *, ranks: int, seconds: float) -> float | None:
        """Nodes times hours times the hourly price (MLBench's cost of an experiment), or None without a price."""
        price = self.per_hour.get(term)
        return None if price is None else self.nodes(ranks) * seconds / 3600 * price

    def whole(self, name: str, accelerators: Mapping[str, Price]) -> Machine:
        """The machine with its accelerators, priced for each term that both have."""
        if self.accelerator is None or self.accelerators_per_node is None:
            return replace(self, name=name)
        if (each := accelerators.get(self.accelerator)) is None:
            known = ", ".join(accelerators) or "none"
            raise ValueError(f"Expected an `accelerator` of {known}, got {self.accelerator!r}")
        own, number = self.per_hour, self.accelerators_per_node
        found = {term: own[term] + number * price for term, price in each.per_hour.items() if term in own}
        if not found:
            raise ValueError(f"Expected an `accelerator` with a price that is {' or '.join(own)}, as the machine's")
        return replace(self, name=name, **{term: found.get(term) for term in TERMS})


class Prices(Record, frozen=True, kw_only=True):
    """Price list as a user writes it."""

    currency: Annotated[str, msgspec.Meta(pattern="^[A-Z]{3}$")]  # of all prices, as ISO 4217 spells it: ``USD``
    date: datetime.date  # on which they were read
    source: _Text
    per: Literal["hour"] = "hour"
    accelerator: dict[str, Price] = {}
    listed: Annotated[dict[str, Machine], msgspec.Meta(min_length=1)] = msgspec.field(name="machine")

    def __post_init__(self) -> None:
        tomorrow = datetime.datetime.now(tz=datetime.UTC).date() + datetime.timedelta(days=1)
        if self.date > tomorrow:  # it is today already where the day begins earlier than here
            raise ValueError(f"Expected a `date` on which the prices were read, got {self.date}")
        for name, machine in self.listed.items():
            try:
                machine.whole(name, self.accelerator)
            except ValueError as error:
                raise ValueError(f"{error} - at `$.machine[{name}]`") from None

    @property
    def machines(self) -> list[Machine]:
        return [machine.whole(name, self.accelerator) for name, machine in self.listed.items()]

    def machine(self, platform: str) -> Machine | None:
        named = (m for m in self.machines if any(fnmatch.fnmatchcase(platform, known) for known in m.platforms))
        return next(named, None)


class Experiment(Record, frozen=True, kw_only=True, omit_defaults=True):
    statements: dict[str, dict[str, str]] = {}
    """Pattern of test names (:mod:`fnmatch`; empty for all) -> statements by key, some of which have a heading of
    report 001. If several patterns match a test, the later one counts, key by key."""
    planned: dict[str, str] = {}  # value that a row of the environment is to get: ``torch`` -> ``2.15``

    def stated(self, test: str) -> dict[str, str]:
        found: dict[str, str] = {}
        for of, fields in self.statements.items():
            if not of or any(fnmatch.fnmatchcase(known, of) for known in (test, test.rpartition("::")[2])):
                found |= fields
        return found
