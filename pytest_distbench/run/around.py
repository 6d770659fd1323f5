"""What happens around every launch, whatever it runs: the table of it, and the one place that all launches pass.

A conftest or a plugin adds what should happen by one row: ``AROUND["mine"] = Mine``. Networks are looked at before and
after each launch. The same ranks on fewer hosts are another measurement; with more ranks than this host has cores what
they compute counts, and their clocks are only shown; ranks with a CPU quota have a control group each, from before they
start until they have ended.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pytest_distbench.errors import AroundUnavailable, ExtensionError, blame, expect, show
from pytest_distbench.launch.starters import LAUNCHERS, Engine, Hosting, LauncherKind
from pytest_distbench.machine.locks import find_controller, remove, throttled
from pytest_distbench.machine.network import Lab
from pytest_distbench.records.case import CPUS, NODES, OVERSUBSCRIBED
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.metric import CPU_THROTTLED, NETWORK_RATE, NETWORK_ROUND_TRIP, Measurement, Scalar
from pytest_distbench.records.network import NETWORK, Network, Passage, rank_hosts
from pytest_distbench.records.plan import LaunchPlan, LaunchRequest
from pytest_distbench.records.record import replace
from pytest_distbench.run.gpus import GpusAround, UtilisationAround
from pytest_distbench.run.kinds import Around, Witness, kind_of
from pytest_distbench.run.request import Settings
from pytest_distbench.units import format_seconds

CLOSE = 0.1
"""By this fraction a probe may miss the rate that was wanted: a probe is short, and this machine may be busy."""
_LATE_S = 0.001
"""And by this, besides a quarter, the round trip: a relay and a busy machine keep packets a while."""
_LATE_SHARE = 0.25
_TRIES = 4
_PAYLOAD = {False: 1448 / 1514, True: 1398 / 1514}
"""Of what an Ethernet carries with packets of 1500 bytes the share that is no header of Ethernet, IP and TCP; with an
overlay, of those of VXLAN besides."""


@dataclass(frozen=True, slots=True)
class Carried(Witness):
    """One launch, or one pair of launches: what the network carried before it, and after."""

    before: Sequence[Passage] = ()
    after: list[Passage] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    hosts: Sequence[str] = ()
    facts: Mapping[str, str] = field(default_factory=dict)

    def describe(self, record: LaunchRecord) -> LaunchRecord:
        """With what the probes found: of each way the worse of two, as information."""
        record = replace(record, remarks=[*record.remarks, *self.remarks], hosts=[*self.hosts] or record.hosts)
        if record.outcome != "passed":
            return record
        found = []
        for first, second in zip(self.before, self.after or self.before, strict=True):
            at: dict[str, Scalar] = {"from_host": first.source, "to_host": first.target}
            rate, trip = min(first.rate, second.rate), max(first.round_trip_s, second.round_trip_s)
            found += [self._probed(NETWORK_RATE, "B/s", rate / 8, at), self._probed(NETWORK_ROUND_TRIP, "s", trip, at)]
        return replace(record, measurements=[*record.measurements, *found])

    def _probed(self, name: str, unit: str, value: float, at: dict[str, Scalar]) -> Measurement:
        return Measurement(
            name=name, unit=unit, better="info", value=value, ranks=1, reduce="rank0", at=at, facts=dict(self.facts)
        )


class NetworkAround(Around):
    """The networks of a run: each is made for its first launch, and stays for the others."""

    def __init__(self) -> None:
        self._labs: dict[Path, Lab] = {}

    @contextlib.contextmanager
    def during(self, plan: LaunchPlan, hosting: Hosting) -> Iterator[Carried]:
        """Have the network there that the plan's ranks enter. The sides of a pair have it in common: they take turns.

        Raises:
            AroundUnavailable: there can be none here, or it does not carry what was wanted.
        """
        del hosting
        if plan.network is None or not plan.network_place:
            yield Carried()
            return
        hosts = rank_hosts(plan.network, plan.world_size)
        lab, before = self._ready(plan.network, hosts[-1] + 1, Path(plan.network_place))
        names = [f"host{host}" for host in hosts] if hosts[-1] else []
        carried = Carried(before=before, facts={"made_by": lab.made_by}, hosts=names)
        yield carried
        try:
            carried.after.extend(lab.probe())
        except AroundUnavailable as error:  # what became of the launch counts all the same
            carried.remarks.append(f"the network after it: {error}")
        carried.remarks.extend(f"the network after it: {missed}" for missed in misses(plan.network, carried.after))

    def conditions(self, request: LaunchRequest) -> Mapping[str, str]:
        return {} if request.network is None else {NETWORK: request.network.text}

    def close(self) -> None:
        labs, self._labs = self._labs, {}
        for lab in labs.values():
            lab.close()

    def _ready(self, network: Network, hosts: int, folder: Path) -> tuple[Lab, Sequence[Passage]]:
        """A network that carries what is wanted, and what it carries: that of the launch before, or a new one."""
        known = self._labs.pop(folder, None)
        if known is not None and known.is_there and folder.exists():
            with contextlib.suppress(AroundUnavailable):  # something has become of it: another one is as wanted
                before = _expect(known)
                self._labs[folder] = known
                return known, before
        if known is not None:
            known.close()
        self._labs[folder] = made = Lab(network, hosts, folder)
        return made, _expect(made)


def _expect(lab: Lab) -> Sequence[Passage]:
    """What it carries, which is what was wanted in one of some tries."""
    for _ in range(_TRIES):
        found = lab.probe()
        if not (missed := misses(lab.network, found)):
            return found
    raise AroundUnavailable(
        f"network {lab.network.text}: {missed[0]}, in the best of {_TRIES} probes. This machine does not carry it, or "
        "other work keeps it busy: choose a lower rate, or a longer delay"
    )


def misses(network: Network, found: Sequence[Passage]) -> list[str]:
    """Where a network is not what was wanted, in words; where packets are lost TCP has no rate or time of its own."""
    told = []
    wanted = 0.0 if network.loss else network.rate * _PAYLOAD[network.overlay]
    most_s = math.inf if network.loss else 2 * network.delay_s * (1 + _LATE_SHARE) + _LATE_S
    for passage in found:
        way = f"host {passage.source} to host {passage.target}"
        if wanted and abs(passage.rate / wanted - 1) > CLOSE:
            told.append(f"{way} carries {_megabits(passage.rate)} Mbit/s by TCP, wanted {_megabits(wanted)}")
        if not 2 * network.delay_s <= passage.round_trip_s <= most_s:
            trip, least = format_seconds(passage.round_trip_s), format_seconds(2 * network.delay_s)
            told.append(f"{way} and back takes {trip}, wanted {least} to {format_seconds(most_s)}")
    return told


def _megabits(rate: float) -> str:
    return f"{rate / 1e6:.0f}" if rate >= 1e9 else f"{rate / 1e6:.4g}"


def network_place(request: LaunchRequest, hosting: Hosting, directory: Path) -> str:
    """Folder of the links to the hosts of a launch, below a folder of the run; empty: no network is made for it."""
    network = request.network
    if network is None or network.label or hosting.hosts != "one":
        return ""
    return str(directory / "networks" / f"{network.text}-of-{request.world_size}")


class LayoutAround(Around):
    def __init__(self, launcher: LauncherKind, engine: Engine | None = None) -> None:
        self._hosting = launcher
        layout: Callable[..., Sequence[int]] = launcher.layout or (lambda ranks, *, on_gpus: [ranks])
        self._layout = functools.cache(layout if engine is None else functools.partial(layout, engine=engine))

    def conditions(self, request: LaunchRequest) -> Mapping[str, str]:
        """The hosts and the ranks on each, ``2x4``, where there are several hosts.

        Raises:
            ConfigurationError: there are too few.
        """
        if kind_of(request.work).hosted_by(self._hosting) is not self._hosting:
            return {}
        layout = self._layout(request.work.processes(request.world_size), on_gpus=request.device == "cuda")
        return {NODES: layout_text(layout)} if len(layout) > 1 else {}


def layout_text(layout: Sequence[int]) -> str:
    return "+".join(f"{len([*hosts])}x{ranks}" for ranks, hosts in itertools.groupby(layout))


@dataclass(frozen=True, slots=True)
class Crowd(Witness):
    is_oversubscribed: bool

    def describe(self, record: LaunchRecord) -> LaunchRecord:
        """With what scatters from launch to launch as information, if ranks had to share cores."""
        if not self.is_oversubscribed:
            return record
        shown = [replace(m, better="info") if m.is_noisy else m for m in record.measurements]
        return replace(record, measurements=shown)


class OversubscribedAround(Around):
    @contextlib.contextmanager
    def during(self, plan: LaunchPlan, hosting: Hosting) -> Iterator[Crowd]:
        """Nothing is done."""
        del hosting
        yield Crowd(plan.cores is not None)

    def conditions(self, request: LaunchRequest) -> Mapping[str, str]:
        """The cores that there were."""
        return {} if request.cores is None else {OVERSUBSCRIBED: f"{request.cores}-cores"}


@dataclass(frozen=True, slots=True)
class Limited(Witness):
    """One launch, or one pair of launches: how often the quota stopped each rank, and the groups that could not go."""

    throttled: list[float] = field(default_factory=list)
    left: list[str] = field(default_factory=list)

    def describe(self, record: LaunchRecord) -> LaunchRecord:
        """With whether the quota bit, of the rank that it stopped most seldom: information."""
        told = [f"{group} is still there: a process that its rank has started did not end" for group in self.left]
        record = replace(record, remarks=[*record.remarks, *told])
        if not self.throttled or record.outcome != "passed":
            return record
        bit = Measurement(
            name=CPU_THROTTLED,
            unit="",
            better="info",
            value=min(self.throttled),
            ranks=len(self.throttled),
            reduce="min",
        )
        return replace(record, measurements=[*record.measurements, bit])


class QuotaAround(Around):
    @contextlib.contextmanager
    def during(self, plan: LaunchPlan, hosting: Hosting) -> Iterator[Limited]:
        """Make the groups that the plan names, and remove them.

        The sides of a pair have them in common, rank by rank: they take turns.

        Raises:
            AroundUnavailable: they cannot be made here.
        """
        del hosting
        seen = Limited()
        with contextlib.ExitStack() as stack:
            if plan.cpus is not None and plan.cpu_groups:
                controller = find_controller()
                controller.remove_stale()
                for group in map(Path, plan.cpu_groups):
                    stack.callback(_take_away, group, seen)
                    controller.make(group, plan.cpus)
            yield seen

    def conditions(self, request: LaunchRequest) -> Mapping[str, str]:
        return {} if request.cpus is None else {CPUS: f"{request.cpus:g}"}


def _take_away(group: Path, seen: Limited) -> None:
    with contextlib.suppress(OSError):  # it could not be made
        seen.throttled.append(throttled(group))
    if not remove(group):
        seen.left.append(str(group))


def rank_groups(request: LaunchRequest, hosting: Hosting) -> list[str]:
    """The control group of each rank of a launch; none without a quota, and for ranks that are made up.

    Raises:
        AroundUnavailable: this system has none.
    """
    if request.cpus is None or hosting.hosts == "none":
        return []
    controller = find_controller()
    return [str(controller.group(rank)) for rank in range(request.work.processes(request.world_size))]


@dataclass(frozen=True, slots=True, kw_only=True)
class AroundSetup:
    """What a row is made of.

    Attributes:
        on_progress: shows one line while something is waited for.
    """

    settings: Settings
    on_progress: Callable[[str], None]


AROUND: dict[str, Callable[[AroundSetup], Around]] = {
    "gpus": lambda setup: GpusAround(setup.settings.gpus, on_progress=setup.on_progress),
    "utilisation": lambda setup: UtilisationAround(),
    OVERSUBSCRIBED: lambda setup: OversubscribedAround(),
    CPUS: lambda setup: QuotaAround(),
    NETWORK: lambda setup: NetworkAround(),
    NODES: lambda setup: LayoutAround(LAUNCHERS[setup.settings.launcher], setup.settings.engine),
}
"""By name; what comes first is outermost."""


class Surroundings:
    def __init__(self, setup: AroundSetup) -> None:
        self._all: dict[str, Around] = {}
        for name, make in AROUND.items():
            with blame(f"AROUND[{name!r}]"):
                self._all[name] = make(setup)

    @contextlib.contextmanager
    def during(self, plan: LaunchPlan, hosting: Hosting) -> Iterator[Callable[[LaunchRecord], LaunchRecord]]:
        """Do all of it while a launch runs. Gives what makes a record complete, once that is over."""
        with contextlib.ExitStack() as stack:
            seen = {name: stack.enter_context(around.during(plan, hosting)) for name, around in self._all.items()}

            def describe(record: LaunchRecord) -> LaunchRecord:
                for name, witness in reversed(seen.items()):
                    record = expect(LaunchRecord, witness.describe(record), f"AROUND[{name!r}]: describe")
                return record

            yield describe

    def conditions(self, request: LaunchRequest) -> dict[str, str]:
        found: dict[str, str] = {}
        for name, around in self._all.items():
            with blame(f"AROUND[{name!r}]"):
                given = dict(around.conditions(request))
            if not all(isinstance(text, str) for pair in given.items() for text in pair):
                wanted = "wanted texts by name, as {'cooling': 'low'}"
                raise ExtensionError(f"AROUND[{name!r}]: conditions gave {show(given)}; {wanted}")
            found |= given
        return found

    def close(self) -> None:
        with contextlib.ExitStack() as stack:
            for name, around in self._all.items():
                stack.callback(blame(f"AROUND[{name!r}]")(around.close))
