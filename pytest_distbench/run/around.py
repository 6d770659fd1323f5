"""What happens around every launch, whatever it runs: the table of it, and the one place that all launches pass.

A conftest or a plugin adds what should happen by one row: ``AROUND["mine"] = Mine``. How busy GPUs and CPUs are is
looked at from pytest's process, so that no rank does it. Networks are looked at before and after each launch. The same
ranks on fewer hosts are another measurement; with more ranks than this host has cores what they compute counts, and
their clocks are only shown; ranks with a CPU quota have a control group each, from before they start until they ended.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_distbench.errors import AroundUnavailable, ExtensionError, blame, expect, show
from pytest_distbench.hosts.network import Lab
from pytest_distbench.launch.starters import LAUNCHERS, Engine, Hosting, LauncherKind
from pytest_distbench.machine.gpu_watch import PATIENCE_S, GpuWatch, await_memory, complaint, held_remark
from pytest_distbench.machine.gpus import Gpus, misplaced, peak_bytes_per_s
from pytest_distbench.machine.locks import find_controller, remove, throttled
from pytest_distbench.records.case import CPUS, NODES, OVERSUBSCRIBED
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.metric import CPU_THROTTLED, LINK_PEAK, NETWORK_RATE, NETWORK_ROUND_TRIP, Sample
from pytest_distbench.records.network import NETWORK, Network, Passage, rank_hosts
from pytest_distbench.records.plan import LaunchPlan, LaunchRequest
from pytest_distbench.records.record import replace
from pytest_distbench.run.kinds import Around, Describe, kind_of
from pytest_distbench.run.request import Settings
from pytest_distbench.units import GIGABYTE, format_seconds
from pytest_distbench.worker.load import busy_s, usable_cpus

_FIRST_PAUSE_S = 0.125
"""Between two looks; the system counts in ticks of 0.01 s."""
_MOST_LOOKS = 200
"""About so many of a launch are kept, however long it takes."""


class UtilisationAround(Around):
    def __init__(
        self, now: Callable[[], float] = time.monotonic, busy: Callable[[], float] = lambda: busy_s(usable_cpus())[0]
    ) -> None:
        self._now = now
        self._busy = busy

    @contextlib.contextmanager
    def during(self, plan: LaunchPlan, hosting: Hosting) -> Iterator[Describe]:
        """Look at this host's CPUs: seconds since it began -> their share that was busy since the look before."""
        del plan
        if hosting.hosts != "one":
            yield lambda record: record
            return
        course: list[tuple[float, float]] = []
        is_over = threading.Event()
        thread = threading.Thread(
            target=lambda: course.extend(self.looks(is_over.wait)), name="distbench-cpus", daemon=True
        )
        thread.start()
        try:
            yield lambda record: replace(record, cpu_course=course)
        finally:
            is_over.set()
            thread.join()

    def looks(self, wait: Callable[[float], bool]) -> Iterator[tuple[float, float]]:
        """Until waiting says that it is over: a moment, and the share that was busy since the one before."""
        cpus = len(usable_cpus() or ()) or os.cpu_count() or 1
        start = last = self._now()
        before = self._busy()
        is_over = False
        while not is_over:
            is_over = wait(max(_FIRST_PAUSE_S, (last - start) / (_MOST_LOOKS / 4)))
            now, busy = self._now(), self._busy()
            if now - last >= _FIRST_PAUSE_S / 2:
                yield round(now - start, 3), round(min(1.0, (busy - before) / ((now - last) * cpus)), 3)
                last, before = now, busy


_MARGIN_S = 1.0
"""To tell of a launch before somebody else ends its test."""


def devices(gpus: Gpus, world_size: int) -> list[int]:
    """CUDA device of each rank: one of its own, or shared evenly; none on the CPU."""
    count = len(gpus.visible)
    return [rank % count for rank in range(world_size)] if count else []


class GpusAround(Around):
    """How the GPUs fare meanwhile. After a failure it is waited until ended ranks have given their memory back."""

    def __init__(self, gpus: Gpus, *, on_progress: Callable[[str], None], patience_s: float = PATIENCE_S) -> None:
        self._gpus = gpus
        self._on_progress = on_progress
        self._patience_s = patience_s
        self._watch: GpuWatch | None = None

    @contextlib.contextmanager
    def during(self, plan: LaunchPlan, hosting: Hosting) -> Iterator[Describe]:
        if plan.device != "cuda" or not self._gpus.visible or hosting.hosts == "many":
            yield self._with_driver
            return
        watch = self._watch = self._watch or GpuWatch(self._gpus.visible)
        before = watch.memory_in_use(plan.world_size)
        with watch.during(plan.world_size) as witnesses:

            def describe(record: LaunchRecord) -> LaunchRecord:
                record = self._with_driver(record)
                lost = self._after_failure(watch, plan, before) if record.outcome == "failed" else []
                measurements = self._with_link_peak(record.measurements, plan)
                remarks = [*record.remarks, *lost]
                return replace(record, gpu_witnesses=witnesses, measurements=measurements, remarks=remarks)

            yield describe

    def _with_driver(self, record: LaunchRecord) -> LaunchRecord:
        """A launch with what no rank knows: the driver, and GPUs that are others than it was given."""
        driver = self._gpus.driver
        software = {**record.software, "driver": driver} if record.software and driver else record.software
        leased = [self._gpus.visible[device] for device in devices(self._gpus, len(record.gpus))]
        remarks = [*record.remarks, *filter(None, [misplaced(leased, record.gpus)])]
        return replace(record, software=software, remarks=remarks)

    def _after_failure(self, watch: GpuWatch, plan: LaunchPlan, before: Mapping[str, int]) -> list[str]:
        """What became of the GPUs, and of the memory on them that the ranks held: a remark on each that is not well."""
        self._on_progress("waiting for free GPU memory")
        patience_s = self._patience_s
        if plan.test_ends_at is not None:
            patience_s = max(0.0, min(patience_s, plan.test_ends_at - time.monotonic() - _MARGIN_S))
        held = await_memory(lambda: watch.memory_in_use(plan.world_size), before, patience_s=patience_s)
        kept = [held_remark(gpu, missing, watch.users(gpu), patience_s=patience_s) for gpu, missing in held.items()]
        return [*filter(None, [complaint()]), *kept]

    def _with_link_peak(self, measurements: list[Sample], plan: LaunchPlan) -> list[Sample]:
        """What was measured; the times of collectives with the peak of the links that they went over, where known."""
        ranks = self._gpus.visible[: plan.world_size]
        is_joined = len(ranks) == plan.world_size and not plan.shares_gpu
        peak = peak_bytes_per_s(ranks, self._gpus.links) if is_joined else None
        if peak is None:
            return measurements
        return [
            replace(m, facts={**m.facts, LINK_PEAK: peak / GIGABYTE}) if "busbw_factor" in m.facts else m
            for m in measurements
        ]

    def close(self) -> None:
        if self._watch is not None:
            self._watch.close()
            self._watch = None


CLOSE = 0.1
"""By this fraction a probe may miss the rate that was wanted: a probe is short, and this machine may be busy."""
_LATE_S = 0.001
"""And by this, besides a quarter, the round trip: a relay and a busy machine keep packets a while."""
_LATE_SHARE = 0.25
_TRIES = 4
_PAYLOAD = {False: 1448 / 1514, True: 1398 / 1514}
"""Of what an Ethernet carries with packets of 1500 bytes the share that is no header of Ethernet, IP and TCP; with an
overlay, of those of VXLAN besides."""


class NetworkAround(Around):
    """The networks of a run: each is made for its first launch, and stays for the others."""

    def __init__(self) -> None:
        self._labs: dict[Path, Lab] = {}

    @contextlib.contextmanager
    def during(self, plan: LaunchPlan, hosting: Hosting) -> Iterator[Describe]:
        """Have the network there that the plan's ranks enter. The sides of a pair have it in common: they take turns.

        Raises:
            AroundUnavailable: there can be none here, or it does not carry what was wanted.
        """
        del hosting
        if plan.network is None or not plan.network_place:
            yield lambda record: record
            return
        hosts = rank_hosts(plan.network, plan.world_size)
        lab, before = self._ready(plan.network, hosts[-1] + 1, Path(plan.network_place))
        names = [f"host{host}" for host in hosts] if hosts[-1] else []
        after: list[Passage] = []
        remarks: list[str] = []

        def describe(record: LaunchRecord) -> LaunchRecord:
            record = replace(record, remarks=[*record.remarks, *remarks], hosts=names or record.hosts)
            if record.outcome != "passed":
                return record
            found = _carried(before, after or before, made_by=lab.made_by)
            return replace(record, measurements=[*record.measurements, *found])

        yield describe
        try:
            after.extend(lab.probe())
        except AroundUnavailable as error:  # what became of the launch counts all the same
            remarks.append(f"the network after it: {error}")
        remarks.extend(f"the network after it: {missed}" for missed in misses(plan.network, after))

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
        f"network {lab.network.text}: {missed[0]}, in the best of {_TRIES} probes. This machine cannot simulate it, "
        f"or other work keeps it busy: choose a lower rate or a longer delay"
    )


def misses(network: Network, found: Sequence[Passage]) -> list[str]:
    """Where a network is not what was wanted, in words; where packets are lost TCP has no rate or time of its own."""
    told = []
    wanted = 0.0 if network.loss else network.rate * _PAYLOAD[network.overlay]
    most_s = math.inf if network.loss else 2 * network.delay_s * (1 + _LATE_SHARE) + _LATE_S
    for passage in found:
        way = f"host {passage.source} to host {passage.target}"
        if wanted and abs(passage.rate / wanted - 1) > CLOSE:
            told.append(f"{way} reaches {_megabits(passage.rate)} Mbit/s by TCP; wanted {_megabits(wanted)}")
        if not 2 * network.delay_s <= passage.round_trip_s <= most_s:
            trip, least = format_seconds(passage.round_trip_s), format_seconds(2 * network.delay_s)
            told.append(f"{way} and back takes {trip}; wanted {least} to {format_seconds(most_s)}")
    return told


def _carried(before: Sequence[Passage], after: Sequence[Passage], *, made_by: str) -> Iterator[Sample]:
    """What the probes of a network found before and after a launch: of each way the worse of two, as information."""
    for first, second in zip(before, after, strict=True):
        worse = {
            (NETWORK_RATE, "B/s"): min(first.rate, second.rate) / 8,
            (NETWORK_ROUND_TRIP, "s"): max(first.round_trip_s, second.round_trip_s),
        }
        for (name, unit), value in worse.items():
            yield Sample(
                name=name,
                unit=unit,
                better="info",
                value=value,
                ranks=1,
                reduce="rank0",
                at={"from_host": first.source, "to_host": first.target},
                facts={"made_by": made_by},
            )


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


class OversubscribedAround(Around):
    @contextlib.contextmanager
    def during(self, plan: LaunchPlan, hosting: Hosting) -> Iterator[Describe]:
        """Nothing is done. What scatters from launch to launch is information, if ranks had to share cores."""
        del hosting

        def describe(record: LaunchRecord) -> LaunchRecord:
            shown = [replace(m, better="info") if m.is_noisy else m for m in record.measurements]
            return replace(record, measurements=shown)

        yield (lambda record: record) if plan.cores is None else describe

    def conditions(self, request: LaunchRequest) -> Mapping[str, str]:
        """The cores that there were."""
        return {} if request.cores is None else {OVERSUBSCRIBED: f"{request.cores}-cores"}


class QuotaAround(Around):
    @contextlib.contextmanager
    def during(self, plan: LaunchPlan, hosting: Hosting) -> Iterator[Describe]:
        """Make the groups that the plan names, and remove them: with how often the quota stopped each rank.

        The sides of a pair have them in common, rank by rank: they take turns. That the quota bit is information, of
        the rank that it stopped most seldom.

        Raises:
            AroundUnavailable: they cannot be made here.
        """
        del hosting
        shares: list[float] = []
        left: list[str] = []

        def take_away(group: Path) -> None:
            with contextlib.suppress(OSError):  # it could not be made
                shares.append(throttled(group))
            if not remove(group):
                left.append(f"{group} is still there: a process that its rank started did not end")

        def describe(record: LaunchRecord) -> LaunchRecord:
            record = replace(record, remarks=[*record.remarks, *left])
            if not shares or record.outcome != "passed":
                return record
            value, ranks = min(shares), len(shares)
            bit = Sample(name=CPU_THROTTLED, unit="", better="info", value=value, ranks=ranks, reduce="min")
            return replace(record, measurements=[*record.measurements, bit])

        with contextlib.ExitStack() as stack:
            if plan.cpus is not None and plan.cpu_groups:
                controller = find_controller()
                controller.remove_stale()
                for group in map(Path, plan.cpu_groups):
                    stack.callback(take_away, group)
                    controller.make(group, plan.cpus)
            yield describe

    def conditions(self, request: LaunchRequest) -> Mapping[str, str]:
        return {} if request.cpus is None else {CPUS: f"{request.cpus:g}"}


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
    def during(self, plan: LaunchPlan, hosting: Hosting) -> Iterator[Describe]:
        """Do all of it while a launch runs. Gives what makes a record complete, once that is over."""
        with contextlib.ExitStack() as stack:
            seen = {name: stack.enter_context(around.during(plan, hosting)) for name, around in self._all.items()}

            def describe(record: LaunchRecord) -> LaunchRecord:
                for name, complete in reversed(seen.items()):
                    record = expect(LaunchRecord, complete(record), f"AROUND[{name!r}]: what it yields")
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
