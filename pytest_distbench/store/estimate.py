"""How long a run will take, before it begins: by what its tests took before, by baselines, or as tests say."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, NamedTuple

import msgspec

from pytest_distbench.judging.entry import FEWEST_LAUNCHES
from pytest_distbench.records.choices import ELASTIC_BASELINE_LAUNCHES
from pytest_distbench.records.record import Record
from pytest_distbench.store.baselines import BaselineStore
from pytest_distbench.store.files import FileKind

LOADING_S = 5.0
"""Until the launcher has loaded torch, where nobody has seen it yet."""

KEPT_RUNS = 3
"""Of each sort of run: one that another job disturbed does not decide alone."""

ONE_LAUNCH = "1"
"""The sort of a run that compares with stored baselines."""

_SCHEMA = 1

_Seconds = Annotated[float, msgspec.Meta(ge=0)]


class Span(NamedTuple):
    """Seconds of something that takes as long as its noise, or the machine's, makes it."""

    least: float
    most: float

    @property
    def middle(self) -> float:
        """What to reckon with."""
        return (self.least + self.most) / 2


class Took(Record, frozen=True, kw_only=True):
    """What a test took in earlier runs, waiting for others apart, and for the launcher to load torch."""

    launch_s: _Seconds
    """One launch of each of its cases."""
    more_s: _Seconds
    """Each further launch of all of them, with the pause before it."""
    paused_s: _Seconds = 0.0
    """The same on a machine that is restless, where nobody has seen whether it is."""
    fewest: int = FEWEST_LAUNCHES
    """Launches that an update makes of them at least."""
    scatters: bool = True
    """Whether its noise asks for more than these."""
    runs: dict[str, list[_Seconds]] = {}
    """Seconds of the whole test in the last runs, by :func:`sort_of_run`, the latest last."""

    def seconds(self, test: Awaited, *, max_launches: int) -> Span:
        """What it will take, with as many launches as are wanted; with at most so many where its noise says it."""
        if known := self.runs.get(sort_of_run(test.launches, test.pairs)):
            return Span(statistics.median(known), statistics.median(known))
        usual = self.runs.get(ONE_LAUNCH)
        beside = max(0.0, statistics.median(usual) - self.launch_s) if usual else 0.0
        if test.pairs is not None:
            least_s, most_s = (2 * self.launch_s * number for number in test.pairs)
            return Span(beside + least_s, beside + max(least_s, min(most_s, test.open_s)))
        if test.launches is not None:
            fewest = most = test.launches
        else:
            fewest = min(self.fewest, max_launches)
            most = max_launches if self.scatters else fewest
        once, paused_s = beside + self.launch_s, max(self.more_s, self.paused_s)
        return Span(once + self.more_s * (fewest - 1), once + paused_s * (most - 1))


class History(Record, frozen=True, kw_only=True):
    """What tests took on this machine, by :attr:`Awaited.name`; and what the launcher took to load torch."""

    schema: int = _SCHEMA
    start_s: _Seconds = LOADING_S
    tests: dict[str, Took] = {}


HISTORY_FILE = FileKind(
    name="record of what tests took",
    record=History,
    schema=_SCHEMA,
    max_bytes=16 * 2**20,
    next_step="It serves estimates alone",
    where="It serves estimates alone; delete what is there, or set cache_dir to a folder that can be written",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Awaited:
    """A test that will be measured.

    Attributes:
        launches: of each of its cases, unless an answer is open; None: as many as an update needs.
        pairs: the fewest and the most launches that have one of another tree beside them; None: it is not in turns.
        open_s: a pair is added only while those so far took less.
        takes_s: what it says of itself: seconds in a run with one launch a case.
    """

    name: str
    test: str
    case_id: str
    backend: str
    launches: int | None = 1
    pairs: tuple[int, int] | None = None
    open_s: float = math.inf
    is_elastic: bool = False
    takes_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """What is known of a run.

    Attributes:
        tests: what each test takes that will be measured, by name; those of which nothing is known as long as the
            others, or 0 where nothing is known of any.
        unknown: of how many nothing is known.
        elsewhere: how many are known from another class of machines only.
    """

    tests: Mapping[str, Span] = field(default_factory=dict)
    unknown: int = 0
    elsewhere: int = 0
    start_s: float = 0.0

    @property
    def seconds(self) -> Span | None:
        if self.unknown == len(self.tests):
            return None
        least, most = (self.start_s + sum(seconds) for seconds in zip(*self.tests.values(), strict=True))
        return Span(least, most)


def sort_of_run(launches: int | None, pairs: tuple[int, int] | None) -> str:
    """Runs of one sort make as many launches of a test, if nothing is open."""
    if pairs is not None:
        return f"{pairs[0]} to {pairs[1]} pairs"
    return "update" if launches is None else str(launches)


def estimate(
    store: BaselineStore,
    awaited: Iterable[Awaited],
    history: History,
    *,
    launcher: str,
    spacing_s: float,
    max_launches: int,
) -> Estimate:
    """Add up what is known of each test: its last runs here, its baseline here, itself, or a baseline elsewhere."""
    known: dict[str, Span | None] = {}
    elsewhere = 0
    others = [BaselineStore(store.folder, name) for name in store.platforms() if name != store.platform]
    for test in awaited:
        took = history.tests.get(test.name) or _of_baseline(store, test, launcher, spacing_s)
        took = took or _of_itself(test, spacing_s)
        if took is None:
            took = next(filter(None, (_of_baseline(other, test, launcher, spacing_s) for other in others)), None)
            elsewhere += took is not None
        known[test.name] = None if took is None else took.seconds(test, max_launches=max_launches)
    told = [seconds for seconds in known.values() if seconds is not None]
    usual = Span(*map(statistics.median, zip(*told, strict=True))) if told else Span(0.0, 0.0)
    return Estimate(
        tests={name: usual if seconds is None else seconds for name, seconds in known.items()},
        unknown=len(known) - len(told),
        elsewhere=elsewhere,
        start_s=history.start_s,
    )


def _of_itself(test: Awaited, spacing_s: float) -> Took | None:
    if test.takes_s is None:
        return None
    return Took(
        launch_s=test.takes_s,
        more_s=test.takes_s,
        paused_s=max(test.takes_s, spacing_s),
        fewest=ELASTIC_BASELINE_LAUNCHES if test.is_elastic else FEWEST_LAUNCHES,
        scatters=not test.is_elastic,
    )


def _of_baseline(store: BaselineStore, test: Awaited, launcher: str, spacing_s: float) -> Took | None:
    entries = [
        entry
        for entry in store.entries(test.test, test_ids=[test.case_id]).values()
        if entry.conditions.backend == test.backend and entry.conditions.launcher == launcher
    ]
    launch_s = paused_s = 0.0
    for entry in entries:
        if entry.launch_s is not None:
            launch_s += entry.launch_s
            is_noisy = any(metric.is_noisy for metric in entry.metrics.values())
            paused_s += max(entry.launch_s, spacing_s) if is_noisy else entry.launch_s
    if not launch_s:
        return None
    stored = max((len(metric.launches) for entry in entries for metric in entry.metrics.values()), default=1)
    return Took(launch_s=launch_s, more_s=launch_s, paused_s=paused_s, fewest=stored, scatters=False)
