"""How long a run will take, before it begins: by what its tests took before, by baselines, or as tests say."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated

import msgspec

from pytest_distbench.records.choices import ELASTIC_BASELINE_LAUNCHES
from pytest_distbench.records.record import Record
from pytest_distbench.store.baselines import BaselineStore

USUAL_LAUNCHES = 6
"""Launches of a case of which an update knows no more than that it scatters: 5 to 10, and 5 of most."""

LOADING_S = 5.0
"""Until the launcher has loaded torch, where nobody has seen it yet."""

KEPT_RUNS = 3
"""Of each sort of run: one that another job disturbed does not decide alone."""

_UPDATE = "update"

_Seconds = Annotated[float, msgspec.Meta(ge=0)]


class Took(Record, frozen=True, kw_only=True):
    """What a test took in earlier runs, waiting for others apart, and for the launcher to load torch."""

    launch_s: _Seconds
    """One launch of each of its cases."""
    more_s: _Seconds
    """Each further launch of all of them, with the pause before it."""
    fewest: int = USUAL_LAUNCHES
    """Launches that an update makes of them, as far as is known without one."""
    runs: dict[str, list[_Seconds]] = {}
    """Seconds of the whole test in the last runs, by :func:`sort_of_run`, the latest last."""

    def seconds(self, launches: int | None) -> float:
        """What it will take with so many launches; None: with as many as an update needs."""
        if known := self.runs.get(sort_of_run(launches)):
            return statistics.median(known)
        usual = self.runs.get(sort_of_run(1))
        beside = max(0.0, statistics.median(usual) - self.launch_s) if usual else 0.0
        return beside + self.launch_s + self.more_s * ((self.fewest if launches is None else launches) - 1)


class History(Record, frozen=True, kw_only=True):
    """What tests took on this machine, by :attr:`Awaited.name`; and what the launcher took to load torch."""

    start_s: _Seconds = LOADING_S
    tests: dict[str, Took] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Awaited:
    """A test that will be measured.

    Attributes:
        name: its full name, which a renamed test has not, and what else decides how long it takes.
        test: path and function.
        case_id: its id.
        backend: of its process groups.
        launches: of each of its cases, unless an answer is open; None: as many as an update needs.
        is_elastic: its launches are elastic jobs.
        takes_s: what it says of itself: seconds in a run with one launch a case.
    """

    name: str
    test: str
    case_id: str
    backend: str
    launches: int | None = 1
    is_elastic: bool = False
    takes_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """What is known of a run.

    Attributes:
        tests: seconds of each test that will be measured, by name; those of which nothing is known as long as the
            others, or 0 where nothing is known of any.
        unknown: of how many nothing is known.
        elsewhere: how many are known from another class of machines only.
        start_s: until the first can begin.
    """

    tests: Mapping[str, float] = field(default_factory=dict)
    unknown: int = 0
    elsewhere: int = 0
    start_s: float = 0.0

    @property
    def seconds(self) -> float | None:
        """All of it takes; None: nothing is known of any test."""
        return self.start_s + sum(self.tests.values()) if self.unknown < len(self.tests) else None


def sort_of_run(launches: int | None) -> str:
    """Runs of one sort make as many launches of a test, if nothing is open."""
    return _UPDATE if launches is None else str(launches)


def estimate(store: BaselineStore, awaited: Iterable[Awaited], history: History, *, launcher: str) -> Estimate:
    """Add up what is known of each test: from its last runs here, its baseline here, itself, or a baseline elsewhere.

    Args:
        store: of this class of machines; those of others in its folder are asked last.
        awaited: the tests that will be measured.
        history: of earlier runs.
        launcher: that will start the ranks.

    Raises:
        StoredFileError: a baseline cannot be read.
    """
    known: dict[str, float | None] = {}
    elsewhere = 0
    others = [BaselineStore(store.folder, name) for name in store.platforms() if name != store.platform]
    for test in awaited:
        took = history.tests.get(test.name) or _of_baseline(store, test, launcher) or _of_itself(test)
        if took is None:
            took = next(filter(None, (_of_baseline(other, test, launcher) for other in others)), None)
            elsewhere += took is not None
        known[test.name] = None if took is None else took.seconds(test.launches)
    told = [seconds for seconds in known.values() if seconds is not None]
    usual = statistics.median(told) if told else 0.0
    return Estimate(
        tests={name: usual if seconds is None else seconds for name, seconds in known.items()},
        unknown=len(known) - len(told),
        elsewhere=elsewhere,
        start_s=history.start_s,
    )


def _of_itself(test: Awaited) -> Took | None:
    if test.takes_s is None:
        return None
    fewest = ELASTIC_BASELINE_LAUNCHES if test.is_elastic else USUAL_LAUNCHES
    return Took(launch_s=test.takes_s, more_s=test.takes_s, fewest=fewest)


def _of_baseline(store: BaselineStore, test: Awaited, launcher: str) -> Took | None:
    """What the stored cases of a test tell; None where nothing is stored that does."""
    entries = [
        entry
        for entry in store.entries(test.test, test_ids=[test.case_id]).values()
        if entry.conditions.backend == test.backend and entry.conditions.launcher == launcher
    ]
    launch_s = sum(entry.launch_s for entry in entries if entry.launch_s is not None)
    if not launch_s:
        return None
    stored = max((len(metric.launches) for entry in entries for metric in entry.metrics.values()), default=1)
    return Took(launch_s=launch_s, more_s=launch_s, fewest=stored)
