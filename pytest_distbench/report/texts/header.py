"""The lines before the first test: what is measured on what, against which baselines, and how long it will take.

That is known by what tests took before, or by the launches of their baselines.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pytest_distbench.machine.gpus import Gpus
from pytest_distbench.records.environment import Environment
from pytest_distbench.releases import __version__
from pytest_distbench.store.baselines import BaselineStore


@dataclass(frozen=True, slots=True, kw_only=True)
class Awaited:
    """A test that will be measured.

    Attributes:
        name: its full name, which a renamed test has not, and what else decides how long it takes.
        test: path and function.
        case_id: its id.
        backend: of its process groups.
        launches: of each of its cases; None: as many as an update needs.
    """

    name: str
    test: str
    case_id: str
    backend: str
    launches: int | None = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """What is known of a run.

    Attributes:
        tests: how many will be measured.
        seconds: what all of them take, those of which nothing is known as long as the others; None: nothing is known.
        unknown: of how many nothing is known.
        elsewhere: how many are known from another class of machines only.
    """

    tests: int
    seconds: float | None
    unknown: int = 0
    elsewhere: int = 0


def estimate(
    store: BaselineStore, awaited: Sequence[Awaited], ran: Mapping[str, Sequence[float]], *, launcher: str
) -> Estimate:
    """Add up what is known of each test: its last runs here, by its name, its baseline here, or one elsewhere."""
    known: list[float] = []
    elsewhere = 0
    others = [BaselineStore(store.folder, name) for name in store.platforms() if name != store.platform]
    for test in awaited:
        seconds = statistics.median(ran[test.name]) if ran.get(test.name) else _launches_s([store], test, launcher)
        if seconds is None and (seconds := _launches_s(others, test, launcher)) is not None:
            elsewhere += 1
        if seconds is not None:
            known.append(seconds)
    unknown = len(awaited) - len(known)
    seconds = sum(known) + unknown * statistics.median(known) if known else None
    return Estimate(tests=len(awaited), seconds=seconds, unknown=unknown, elsewhere=elsewhere)


def _launches_s(stores: Iterable[BaselineStore], test: Awaited, launcher: str) -> float | None:
    for store in stores:
        entries = [
            entry
            for entry in store.entries(test.test, test_ids=[test.case_id]).values()
            if entry.conditions.backend == test.backend and entry.conditions.launcher == launcher
        ]
        if launch_s := sum(entry.launch_s or 0.0 for entry in entries):
            stored = max((len(metric.launches) for entry in entries for metric in entry.metrics.values()), default=1)
            return launch_s * (stored if test.launches is None else test.launches)
    return None


def duration_text(found: Estimate, *, long_forms: int) -> str:
    left = f"{long_forms} long form{'s are' if long_forms != 1 else ' is'} left out (--distbench-full)"
    told = [left] if long_forms else []
    count = f"{found.tests} test{'s' * (found.tests != 1)}"
    if found.seconds is not None:
        told.insert(0, f"{count}, about {about(found.seconds)}")
        if found.elsewhere:
            told[0] += ", as on other machines"
        if found.unknown:
            told[0] += f"; {found.unknown} of them never timed, and taken for as long as the others"
    elif found.unknown:
        told.insert(0, f"{count}; the first run tells how long that takes")
    return "; ".join(told)


def about(seconds: float) -> str:
    """A duration nobody knows exactly: ``40 s``, ``2.5 min``, ``12 min``."""
    if seconds < 90:
        return f"{max(1.0, seconds):.0f} s"
    minutes = seconds / 60
    return f"{minutes:.0f} min" if minutes >= 5 else f"{minutes:.1f} min"


def header_lines(
    environment: Environment,
    store: BaselineStore,
    *,
    world_sizes: Sequence[int],
    gpus: Gpus,
    backend: str,
    launcher: str,
    update: str,
    against: str,
    control: str = "",
    duration: str = "",
) -> list[str]:
    """Two lines; one more in an update, where GPUs are missing that the machine has, and where the host is shared.

    No GPU is visible to a CPU run; ``update``, ``against``, ``control`` and ``duration`` may be empty.
    """
    sizes = ", ".join(map(str, world_sizes))
    count = len(gpus.visible)
    devices = f"{count} GPU{'s' * (count != 1)}" if count else f"{environment.cores} CPU cores"
    entries = sum(1 for _ in store.files())
    torch = environment.software["torch"]
    where = f"{backend}, {devices} ({environment.device}), torch {torch}, {launcher} launcher"
    first = f"distbench {__version__}: world size {sizes}, {where}"
    missing = [f"distbench: not used: {reason}" for reason in gpus.unreadable]
    missing += [f"distbench: note: {remark}" for remark in gpus.remarks]
    if environment.shares_host:
        missing.append("distbench: note: the host is shared (--distbench-share-host): CPU clocks are others' too")
    compared = f"baselines {store.folder / store.platform} ({entries} {'entry' if entries == 1 else 'entries'})"
    if against:
        compared = f"against {against}, in turns; nothing is compared with stored baselines"
    if control:
        compared += f"; a slowdown is planted in every case ({control}): nothing is judged or stored"
    lines = [first, *missing, f"distbench: {compared}"]
    if duration:
        lines.append(f"distbench: {duration}")
    if update:
        lines.append(f"distbench: update={update}; baselines will be written")
    return lines
