"""How long a run will take, before it begins: by what its tests took before, or by the launches of their baselines."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

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
    """What the launches of a test take by the first store that has some of them; None where none has."""
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
