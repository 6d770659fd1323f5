"""The table of kinds of launch, and the table of the code around every launch.

A kind says how launches are run, compared and judged. A new one is a record of its own, below
:class:`~pytest_distbench.records.plan.Work`, and a row: ``LAUNCH_KINDS[Mine] = LaunchKind(...)``.

A conftest or a plugin adds code around launches by a row: ``AROUND["mine"] = Mine``. pytest's process measures the
utilisation of GPUs and CPUs, so that no rank does it. Ranks with a CPU quota have a control group each. The same ranks
on fewer hosts are another case; the timings of more ranks than this host has cores are shown and not judged.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_distbench.errors import ConfigurationError, ExtensionError, blame, expect, show
from pytest_distbench.extensions import Table
from pytest_distbench.launch.controlled import launch_command
from pytest_distbench.launch.starters import LAUNCHERS, Hosting
from pytest_distbench.launch.supervise import Arm, Side, run_interleaved, supervise
from pytest_distbench.machine.gpu_watch import PATIENCE_S, GpuWatch, await_memory, complaint, held_remark
from pytest_distbench.machine.gpus import Gpus, misplaced, peak_bytes_per_s
from pytest_distbench.machine.locks import cpu_group, find_controller, make_group, remove, remove_stale, throttled
from pytest_distbench.records.case import CPUS, NODES, OVERSUBSCRIBED
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.metric import CPU_THROTTLED, LINK_PEAK, Sample
from pytest_distbench.records.plan import Command, LaunchPlan, LaunchRequest, Ranks, Work
from pytest_distbench.records.record import replace
from pytest_distbench.run.request import Settings
from pytest_distbench.units import GIGABYTE
from pytest_distbench.worker.load import busy_s, usable_cpus

Interleave = Callable[[Sequence[Arm]], list[LaunchRecord | None]]
"""Runs launches that are compared; None for those that were left out because one did not pass."""


def one_after_the_other(arms: Sequence[Arm]) -> list[LaunchRecord | None]:
    """Run launches that have no blocks to interleave, in a random order."""
    found: dict[int, LaunchRecord] = {}
    for index in random.sample(range(len(arms)), len(arms)):
        if all(record.outcome == "passed" for record in found.values()):
            plan, side = arms[index]
            found[index] = run_launch(plan, side)
    return [found.get(index) for index in range(len(arms))]


HERE = Hosting()  # of processes that run on this host, and import torch themselves


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchKind:
    """A kind of launch.

    Attributes:
        run: runs one launch, and returns its record even if it failed.
        interleave: runs launches that are compared.
        why_alone: why they cannot be interleaved, in a clause, or "".
        hosting: how it uses this host, or None for what the launcher of its ranks says.
        why_no_ranks: why its ranks cannot be profiled, attached to or faked, in a clause, or "".
        why_no_delay: why no slowdown can be injected into it, in a clause, or "".
        open_s: seconds, by default, after which an undecided case gets no more launches.
        most_open: the most launches of an undecided case, by default.
        most_stored: the most launches that an update stores, by default.
        launcher: (work, launcher of the run) -> name of the launcher in its baselines.
    """

    run: Callable[[LaunchPlan, Side], LaunchRecord]
    interleave: Interleave = one_after_the_other
    why_alone: str = ""
    hosting: Hosting | None = HERE
    why_no_ranks: str = ""
    why_no_delay: str = ""
    open_s: float = math.inf
    most_open: float = math.inf
    most_stored: float = math.inf
    launcher: Callable[[Any, str], str]

    def hosted_by(self, launcher: Hosting) -> Hosting:
        return launcher if self.hosting is None else self.hosting


LAUNCH_KINDS: Table[type[Work], LaunchKind] = Table(
    "launch kinds",
    {
        Ranks: LaunchKind(
            run=supervise,
            interleave=run_interleaved,
            hosting=None,
            launcher=lambda work, launcher: launcher,
        ),
        Command: LaunchKind(
            run=launch_command,
            why_no_ranks="a command starts its processes itself",
            launcher=lambda work, launcher: "command",
        ),
    },
)
"""Type of work -> kind of launch."""


def kind_of(work: Work) -> LaunchKind:
    """The row of the work of a launch, or :class:`ConfigurationError` if there is none."""
    if (kind := LAUNCH_KINDS.get(type(work))) is None:
        name, known = type(work).__name__, ", ".join(row.__name__ for row in LAUNCH_KINDS)
        raise ConfigurationError(
            f"LAUNCH_KINDS of pytest_distbench/run/kinds.py has no row for {name}; it has rows for {known}. Add it "
            f"where {name} is defined: LAUNCH_KINDS[{name}] = LaunchKind(...)"
        )
    return kind


def run_launch(plan: LaunchPlan, side: Side) -> LaunchRecord:
    return expect(LaunchRecord, kind_of(plan.work).run(plan, side), f"LAUNCH_KINDS[{type(plan.work).__name__}]: run")


Describe = Callable[[LaunchRecord], LaunchRecord]
"""Adds what was measured around a launch to its record; called for each launch of a pair."""


class Around:
    """Code around every launch of a run."""

    def ready(self, plan: LaunchPlan, hosting: Hosting, folder: Path) -> LaunchPlan:
        """Add to the plan of a launch what its ranks need."""
        del hosting, folder
        return plan

    @contextlib.contextmanager
    def during(self, plan: LaunchPlan, hosting: Hosting) -> Iterator[Describe]:
        """Run around a launch or a pair, whose plan is the candidate's; :class:`LauncherError` ends the launch."""
        del plan, hosting
        yield lambda record: record

    def conditions(self, request: LaunchRequest) -> Mapping[str, str]:
        """Conditions of a case that is launched so, by name: cases that differ in one are never compared."""
        del request
        return {}

    def close(self) -> None:
        """Release what it holds; another launch may follow."""


_FIRST_PAUSE_S = 0.125  # between two looks; the system counts in ticks of 0.01 s
_MOST_LOOKS = 200  # about so many of a launch are kept, however long it takes


class UtilisationAround(Around):
    def __init__(
        self, now: Callable[[], float] = time.monotonic, busy: Callable[[], float] = lambda: busy_s(usable_cpus())[0]
    ) -> None:
        self._now = now
        self._busy = busy

    @contextlib.contextmanager
    def during(self, plan: LaunchPlan, hosting: Hosting) -> Iterator[Describe]:
        """Record the utilisation of this host's CPUs: [(seconds since the start, share since the last sample)]."""
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
        """Yield (seconds, share of the CPUs that was busy) until ``wait`` returns True."""
        cpus = len(usable_cpus())
        start = last = self._now()
        before = self._busy()
        is_over = False
        while not is_over:
            is_over = wait(max(_FIRST_PAUSE_S, (last - start) / (_MOST_LOOKS / 4)))
            now, busy = self._now(), self._busy()
            if now - last >= _FIRST_PAUSE_S / 2:
                yield round(now - start, 3), round(min(1.0, (busy - before) / ((now - last) * cpus)), 3)
                last, before = now, busy


_MARGIN_S = 1.0  # to report on a launch before its test is ended from outside


def devices(gpus: Gpus, world_size: int) -> list[int]:
    """The CUDA device of each rank: one of its own, or shared evenly; [] on the CPU."""
    count = len(gpus.visible)
    return [rank % count for rank in range(world_size)] if count else []


class GpusAround(Around):
    """Watches the GPUs during a launch; after a failure it waits until ended ranks have released their memory."""

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
        ranks = self._gpus.visible[: plan.world_size]
        is_joined = len(ranks) == plan.world_size and not plan.shares_gpu
        with watch.during(plan.world_size) as seen:

            def describe(record: LaunchRecord) -> LaunchRecord:
                record = self._with_driver(record)
                remarks, measurements = list(record.remarks), list(record.measurements)
                if record.outcome == "failed":  # what became of the GPUs, and of the memory that the ranks held
                    self._on_progress("waiting for free GPU memory")
                    patience_s = self._patience_s
                    if plan.test_ends_at is not None:
                        patience_s = max(0.0, min(patience_s, plan.test_ends_at - time.monotonic() - _MARGIN_S))
                    held = await_memory(lambda: watch.memory_in_use(plan.world_size), before, patience_s=patience_s)
                    remarks += filter(None, [complaint()])
                    remarks += [held_remark(g, b, watch.users(g), patience_s=patience_s) for g, b in held.items()]
                peak = peak_bytes_per_s(ranks, self._gpus.links) if is_joined else None
                if peak is not None:  # of the links that collectives went over
                    for i, m in enumerate(measurements):
                        if "busbw_factor" in m.facts:
                            measurements[i] = replace(m, facts={**m.facts, LINK_PEAK: peak / GIGABYTE})
                return replace(record, gpu_reports=seen, measurements=measurements, remarks=remarks)

            yield describe

    def _with_driver(self, record: LaunchRecord) -> LaunchRecord:
        driver = self._gpus.driver
        software = {**record.software, "driver": driver} if record.software and driver else record.software
        leased = [self._gpus.visible[device] for device in devices(self._gpus, len(record.gpus))]
        remarks = [*record.remarks, *filter(None, [misplaced(leased, record.gpus)])]
        return replace(record, software=software, remarks=remarks)

    def close(self) -> None:
        if self._watch is not None:
            self._watch.close()
            self._watch = None


def layout_text(layout: Sequence[int]) -> str:
    return "+".join(f"{len([*hosts])}x{ranks}" for ranks, hosts in itertools.groupby(layout))


class QuotaAround(Around):
    def ready(self, plan: LaunchPlan, hosting: Hosting, folder: Path) -> LaunchPlan:
        """Name the control group of each rank that has a quota and is not simulated."""
        del folder
        if plan.cpus is None or hosting.hosts == "none":
            return plan
        controller = find_controller()
        return replace(plan, cpu_groups=[str(cpu_group(controller, rank)) for rank in range(plan.processes)])

    @contextlib.contextmanager
    def during(self, plan: LaunchPlan, hosting: Hosting) -> Iterator[Describe]:
        """Make and remove the control groups of a plan, and record how often the quota throttled the ranks.

        The sides of a pair share them, rank by rank, because they alternate. The share is that of the rank that was
        throttled least, and is not judged.
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
                remove_stale(find_controller())
                for group in map(Path, plan.cpu_groups):
                    stack.callback(take_away, group)
                    make_group(group, plan.cpus)
            yield describe


@dataclass(frozen=True, slots=True, kw_only=True)
class AroundSetup:
    """Arguments of the rows of :data:`AROUND`.

    Attributes:
        on_progress: shows one line during a wait.
    """

    settings: Settings
    on_progress: Callable[[str], None]


AROUND: Table[str, Callable[[AroundSetup], Around]] = Table(
    "around",
    {
        "gpus": lambda setup: GpusAround(setup.settings.gpus, on_progress=setup.on_progress),
        "utilisation": lambda setup: UtilisationAround(),
        CPUS: lambda setup: QuotaAround(),
    },
)
"""Name -> code around launches; the first row is outermost."""


class Surroundings:
    def __init__(self, setup: AroundSetup) -> None:
        self._settings = setup.settings
        layout = LAUNCHERS[setup.settings.launcher].layout
        self._layout = functools.cache(layout) if layout is not None else None
        self._all: dict[str, Around] = {}
        for name, make in AROUND.items():
            with blame(f"AROUND[{name!r}]"):
                self._all[name] = make(setup)

    def ready(self, plan: LaunchPlan, hosting: Hosting, folder: Path) -> LaunchPlan:
        """Add to a plan what its ranks need of each row; ``folder`` is that of the run."""
        for around in self._all.values():
            if isinstance(around, Around):  # one of a conftest may have nothing to add
                plan = around.ready(plan, hosting, folder)
        return plan

    @contextlib.contextmanager
    def during(self, plan: LaunchPlan, hosting: Hosting) -> Iterator[Describe]:
        """Run all rows around a launch, and yield the function that completes its record."""
        with contextlib.ExitStack() as stack:
            entered = {name: stack.enter_context(around.during(plan, hosting)) for name, around in self._all.items()}

            def describe(record: LaunchRecord) -> LaunchRecord:
                for name, complete in reversed(entered.items()):
                    record = expect(LaunchRecord, complete(record), f"AROUND[{name!r}]: what it yields")
                if plan.cores is None:
                    return record
                # Ranks had to share cores: what scatters from launch to launch is information.
                shown = [replace(m, better="info") if m.is_noisy else m for m in record.measurements]
                return replace(record, measurements=shown)

            yield describe

    def conditions(self, request: LaunchRequest) -> dict[str, str]:
        """The conditions of a case that come from the surroundings of its launches, by name.

        Raises:
            ConfigurationError: there are too few hosts for its ranks.
        """
        launcher, nodes = LAUNCHERS[self._settings.launcher], ""
        if self._layout is not None and kind_of(request.work).hosted_by(launcher) is launcher:
            processes, engine = request.work.processes(request.world_size), self._settings.engine
            layout = self._layout(processes, on_gpus=request.device == "cuda", engine=engine)
            # the hosts and the ranks on each, where there are several
            nodes = layout_text(layout) if len(layout) > 1 else ""
        found = {
            OVERSUBSCRIBED: "" if request.cores is None else f"{request.cores}-cores",
            CPUS: "" if request.cpus is None else f"{request.cpus:g}",
            **request.chosen,
            NODES: nodes,
        }
        found = {name: text for name, text in found.items() if text}
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
