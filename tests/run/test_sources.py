"""The launches of a case so far, and numbers that a test derives from them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from support.metrics import metric
from support.stores import result

from pytest_distbench.errors import DerivationError
from pytest_distbench.launch.starters import Hosting
from pytest_distbench.records.launch import ErrorReport, LaunchRecord, Outcome, RankFate
from pytest_distbench.records.plan import BodyReference, LaunchRequest, Ranks, Work
from pytest_distbench.records.record import replace
from pytest_distbench.run.against import Variant
from pytest_distbench.run.directory import Revision
from pytest_distbench.run.sources import (
    Crossed,
    DerivedNumbers,
    GivenNumbers,
    Launches,
    Pacer,
    PairedLaunches,
    Source,
    SourceFailed,
    Values,
    alternate,
)


class Made(Source):
    """Launches with these values, one after the other."""

    def __init__(self, *values: float, foreign_cores: float | None = None) -> None:
        super().__init__()
        self.coming = [replace(launch, foreign_cores=foreign_cores) for launch in result(*values).launches]

    def add(self, *, only: Sequence[str] = ()) -> None:
        self.launches.append(self.coming[len(self)])


def derived(derive: Callable[..., Any], *sources: Source) -> DerivedNumbers:
    made = DerivedNumbers(metric(None), derive, sources)
    made.add()
    return made


def values(source: Source) -> list[float | None]:
    return [launch.measurements[0].value for launch in source.launches]


def test_a_number_is_made_of_one_launch_of_each_run_up_to_those_there_are() -> None:
    made = GivenNumbers(metric(None), [1.0, 2.0], {"torch": "2"})
    made.add()
    made.add()
    assert (values(made), made.most) == ([1.0, 2.0], 2)
    assert made.launches[0].software == {"torch": "2"}

    made = derived(lambda a, b: a["step"] / b["step"], Made(1.0, 9.0), Made(2.0, 3.0))
    made.add()
    assert values(made) == [0.5, 3.0]

    dear, cheap = Made(1.0, foreign_cores=0.25), Made(1.0, foreign_cores=1.5)
    dear.most_stored, dear.most_open = 3, 5
    made = derived(lambda a, b: 1.0, dear, cheap)
    assert (made.most_stored, made.most_open) == (3, 5), "no more launches than one of its sources is worth"
    assert made.launches[0].foreign_cores == 1.5

    source = Made(4.0)
    source.add()
    assert values(derived(lambda a: a["step"], source)) == [4.0]
    assert len(source) == 1


def test_a_function_that_returns_no_number_is_an_error_with_its_line() -> None:
    assert values(derived(lambda a: None, Made(1.0))) == [None]
    with pytest.raises(DerivationError, match=r"its function returned -5.0: -5 s is no time that anything takes"):
        derived(lambda a: -5.0, Made(1.0))
    with pytest.raises(DerivationError, match=r"KeyError: 'gone' was not measured; there are step \(.*sources.py:\d+"):
        derived(lambda a: a["gone"], Made(1.0))
    with pytest.raises(KeyError, match="there are none"):
        Values()["step"]


@pytest.mark.parametrize("returned", [True, "3", b"3", math.nan, math.inf, 1e308, [1.0]])
def test_what_is_no_number_is_refused(returned: object) -> None:
    with pytest.raises(DerivationError, match=r"judge\('latency'\): its function returned .*; wanted a finite number"):
        derived(lambda a: returned, Made(1.0))


WORK = Ranks(body=BodyReference(file="x.py", function="body"))
WHERE = {"world_size": 2, "backend": "gloo", "device": "cpu"}
REQUEST = LaunchRequest(title="test_a.py/test_b/ws2.gloo.warm", work=WORK, timeout_s=1.0, **WHERE)

MAIN = Variant(revision=Revision("main", "main", Path()), interpreter=None)


def launch(index: int = 0, *, outcome: Outcome = "passed", only: Sequence[str] = (), reason: str = "") -> LaunchRecord:
    return LaunchRecord(index=index, outcome=outcome, wall_s=1.0, only=list(only), reason=reason)


class Counted(Source):
    """Notes in a common list whose turn it was."""

    def __init__(self, name: str, turns: list[str], records: Sequence[LaunchRecord]) -> None:
        super().__init__()
        self.name = name
        self.added = turns
        self.records = iter(records)

    def add(self, *, only: Sequence[str] = ()) -> None:
        self.added.append(self.name)
        self.launches.append(next(self.records))


@dataclass
class Sides:
    """Replaces what starts launches: interleaved ones as given, single launches as many as requested."""

    rounds: list[list[LaunchRecord | None]] = field(default_factory=list)
    has_body: bool = True
    alone: Outcome = "passed"
    forgotten: list[LaunchRecord] = field(default_factory=list)
    times: list[int] = field(default_factory=list)

    def other_side(self, variant: Variant) -> Sides:
        assert variant.revision is MAIN.revision
        return self

    def hosting(self, work: Work) -> Hosting:
        return Hosting()

    def has(self, work: Work) -> bool:
        return self.has_body

    def launch(self, request: LaunchRequest, index: int, *, only: Sequence[str]) -> LaunchRecord:
        return launch(index, only=only)

    def launch_pair(
        self, variant: Variant, request: LaunchRequest, index: int, *, only: Sequence[str], times: int
    ) -> list[LaunchRecord | None]:
        assert variant.revision is MAIN.revision
        self.times.append(times)
        return self.rounds.pop(0)

    def launch_other(self, variant: Variant, request: LaunchRequest, index: int) -> LaunchRecord:
        return launch(index, outcome=self.alone)

    def forget(self, record: LaunchRecord) -> None:
        self.forgotten.append(record)


def test_sources_take_turns_and_those_that_end_hold_nobody_up() -> None:
    turns: list[str] = []
    sources = [Counted(name, turns, [launch(i) for i in range(3)]) for name in "ab"]
    alternate(sources, 3)
    assert turns == ["a", "b", "a", "b", "a", "b"]

    turns: list[str] = []
    source = Counted("a", turns, [launch(only=["step"]), launch(), launch(only=["step"]), launch()])
    alternate([source], 2)
    assert (source.whole, len(source)) == ([1, 3], 4)

    turns: list[str] = []
    first, second = (Counted(name, turns, [launch(i) for i in range(3)]) for name in "ab")
    first.most = 1
    alternate([first, second], 3)
    assert turns == ["a", "b", "b", "b"]


def test_a_launch_that_does_not_pass_ends_the_turns_and_is_named() -> None:
    turns: list[str] = []
    first = Counted("a", turns, [launch(0), launch(1)])
    second = Counted("b", turns, [launch(0), launch(1, outcome="failed")])
    with pytest.raises(SourceFailed) as raised:
        alternate([first, second], 5)

    assert raised.value.source is second
    assert second.failed is second.launches[1]
    assert turns == ["a", "b", "a", "b"]


@pytest.mark.parametrize("has_control", [False, True])
def test_a_pair_has_a_launch_of_each_side_and_a_control_a_second_of_the_other_side(has_control: bool) -> None:
    current, reference, *controls = (launch(0) for _ in range(2 + has_control))
    sides = Sides([[current, reference, *controls]])
    made = PairedLaunches(sides, REQUEST, MAIN, has_control=has_control)  # type: ignore[arg-type]
    made.add()

    assert made.others[0] is reference
    assert made.launches[0] is current
    assert all(a is b for a, b in zip(made.controls, controls, strict=True))
    assert (made.alone, sides.times) == ("", [1 + has_control])


@pytest.mark.parametrize(("side", "has_control"), [(0, True), (0, False), (1, False)])
def test_a_launch_that_does_not_pass_is_all_that_is_kept(side: int, has_control: bool) -> None:
    failed = launch(1, outcome="failed")
    broken = [failed if number == side else None for number in range(2 + has_control)]
    sides = Sides([[launch()] * (2 + has_control), broken])
    made = PairedLaunches(sides, REQUEST, MAIN, has_control=has_control)  # type: ignore[arg-type]
    made.add()
    made.add()

    assert (made.launches, made.others, made.controls) == ([failed], [], [])
    assert made.failed is failed


@pytest.mark.parametrize(("alone", "outcome"), [("passed", "failed"), ("skipped", "skipped"), ("failed", "failed")])
def test_a_change_that_skips_has_failed_unless_its_base_that_judges_does_too(alone: Outcome, outcome: Outcome) -> None:
    judged: Any = object()
    sides = Sides([[launch(0, outcome="skipped", reason="no data"), None]], alone=alone)
    made = PairedLaunches(sides, REQUEST, dataclasses.replace(MAIN, judged=judged))  # type: ignore[arg-type]
    made.add()

    [record] = made.launches
    assert record.outcome == outcome
    assert ("it does not skip in main" in record.reason) == (alone == "passed")


@pytest.mark.parametrize("side", [1, 2])
def test_a_confirmation_ends_where_the_revision_does_not_pass_and_says_why(side: int) -> None:
    failed = launch(1, outcome="failed", reason="in 3f2a91c0d4: hung in body")
    broken = [failed if number == side else None for number in range(3)]
    sides = Sides([[launch(), launch(), launch()], broken])
    made = PairedLaunches(sides, REQUEST, MAIN, has_control=True)  # type: ignore[arg-type]
    made.add()
    made.add()
    made.add()

    assert (made.alone, made.failed, len(made), made.most) == ("in 3f2a91c0d4: hung in body", None, 1, 1)


@pytest.mark.parametrize(
    ("rounds", "lengths"),
    [
        ([[launch(n)] * 3 for n in (1, 2, 3)], (1, 2, 3)),
        ([[launch(1)] * 3, [launch(2, outcome="failed"), None, None]], (1, 2, 1)),  # the first set goes on
        ([[launch(1), launch(1), launch(1, outcome="failed", reason="hung")]], (1, 1, 2)),
    ],
)
def test_pairs_go_on_in_a_second_set_of_processes_as_long_as_that_runs(
    rounds: list[list[LaunchRecord | None]], lengths: tuple[int, ...]
) -> None:
    closed: list[bool] = []
    first = PairedLaunches(Sides([[launch(n)] * 3 for n in range(3)]), REQUEST, MAIN, has_control=True)  # type: ignore[arg-type]
    second = PairedLaunches(Sides(rounds), REQUEST, MAIN, has_control=True)  # type: ignore[arg-type]
    made = Crossed(first, second, close=lambda: closed.append(True))
    found = []
    for _ in range(3):
        made.add()
        made.cross()
        found.append(len(made))
        assert made.starts == ((0,) if made.second is None else (0, 1))
        assert [len(side) for side in made.sides] == [len(made)] * 3

    assert tuple(found) == lengths
    assert (made.failed, made.alone) == (None, "")
    assert bool(closed) == (made.second is None)
    made.add()
    assert len(made) == lengths[-1] + 1


def test_a_test_whose_file_the_other_revision_lacks_runs_once_alone() -> None:
    made = PairedLaunches(Sides(has_body=False), REQUEST, MAIN)  # type: ignore[arg-type]
    alternate([made], 5)

    assert (len(made.launches), made.others) == (1, [])
    assert made.alone == "the test does not exist in main"


def test_launches_are_numbered_and_know_which_metrics_to_measure() -> None:
    made = Launches(Sides(), REQUEST, Pacer(0.0))  # type: ignore[arg-type]
    made.add()
    made.add(only=["step"])

    assert [(record.index, record.only) for record in made.launches] == [(0, []), (1, ["step"])]
    assert made.whole == [0]
    assert made.failed is None


def test_a_body_that_the_other_revision_lacks_is_no_failure_and_leaves_no_logs() -> None:
    error = ErrorReport(kind="BodyError", message="x.py has no 'body'", traceback="", raised_at=0.0)
    fate = RankFate(rank=0, outcome="failed", phase="import", how="BodyError", error=error)
    missing = replace(launch(outcome="failed"), fates=[fate])
    sides = Sides([[None, missing]])
    made = PairedLaunches(sides, REQUEST, MAIN)  # type: ignore[arg-type]
    alternate([made], 5)

    assert [record.outcome for record in made.launches] == ["passed"]
    assert sides.forgotten == [missing]
    assert made.alone == "the test does not exist in main"
