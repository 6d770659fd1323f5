"""Samples of a case: in turns with those of others, in pairs with a reference, or alone where that has no such test."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from pytest_distbench.launch.starters.table import Hosting
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.plan import LaunchRequest
from pytest_distbench.records.rank import ErrorReport, Outcome, RankFate
from pytest_distbench.records.work import BodyReference, Ranks, Work
from pytest_distbench.run.pacing import Pacer
from pytest_distbench.run.samples import Launches, PairedLaunches, SampleFailed, Samples, take_turns

REQUEST = LaunchRequest(
    title="test_a.py/test_b/ws2.gloo.warm",
    work=Ranks(body=BodyReference(file="x.py", function="body")),
    world_size=2,
    backend="gloo",
    device="cpu",
    timeout_s=1.0,
)


def launch(index: int = 0, *, outcome: Outcome = "passed", only: Sequence[str] = ()) -> LaunchRecord:
    return LaunchRecord(index=index, outcome=outcome, wall_s=1.0, only=list(only))


def without_a_body() -> LaunchRecord:
    error = ErrorReport(kind="BodyError", message="x.py has no 'body'", traceback="", raised_at=0.0)
    return LaunchRecord(
        index=0,
        outcome="failed",
        wall_s=1.0,
        fates=[RankFate(rank=0, outcome="failed", phase="import", how="BodyError", error=error)],
    )


class Counted(Samples):
    """Notes in a common list whose turn it was."""

    def __init__(self, name: str, turns: list[str], records: Sequence[LaunchRecord]) -> None:
        super().__init__()
        self.name = name
        self.turns = turns
        self.records = iter(records)

    def add(self, *, only: Sequence[str] = ()) -> None:
        self.turns.append(self.name)
        self.launches.append(next(self.records))


@dataclass
class Sides:
    """Takes the place of what starts launches: pairs as given, single launches as many as asked for."""

    pairs: list[tuple[LaunchRecord | None, LaunchRecord | None]] = field(default_factory=list)
    has_body: bool = True
    forgotten: list[LaunchRecord] = field(default_factory=list)
    against: str = "main"

    @property
    def reference(self) -> Sides:
        return self

    def hosting(self, work: Work) -> Hosting:
        return Hosting()

    def has(self, work: Work) -> bool:
        return self.has_body

    def launch(self, request: LaunchRequest, index: int, *, only: Sequence[str]) -> LaunchRecord:
        return launch(index, only=only)

    def launch_pair(
        self, request: LaunchRequest, index: int, *, only: Sequence[str]
    ) -> tuple[LaunchRecord | None, LaunchRecord | None]:
        return self.pairs.pop(0)

    def forget(self, record: LaunchRecord) -> None:
        self.forgotten.append(record)


def test_sources_take_turns_and_none_is_ahead_of_the_others() -> None:
    turns: list[str] = []
    sources = [Counted(name, turns, [launch(i) for i in range(3)]) for name in "ab"]
    take_turns(sources, 3)

    assert turns == ["a", "b", "a", "b", "a", "b"]


def test_a_launch_that_measured_only_a_part_counts_for_nothing() -> None:
    turns: list[str] = []
    source = Counted("a", turns, [launch(only=["step"]), launch(), launch(only=["step"]), launch()])
    take_turns([source], 2)

    assert (source.whole, len(source)) == ([1, 3], 4)


def test_a_source_that_can_have_no_more_holds_nobody_up() -> None:
    turns: list[str] = []
    first, second = (Counted(name, turns, [launch(i) for i in range(3)]) for name in "ab")
    first.most = 1
    take_turns([first, second], 3)

    assert turns == ["a", "b", "b", "b"]


def test_a_launch_that_does_not_pass_ends_the_turns_and_is_named() -> None:
    turns: list[str] = []
    first = Counted("a", turns, [launch(0), launch(1)])
    second = Counted("b", turns, [launch(0), launch(1, outcome="failed")])
    with pytest.raises(SampleFailed) as raised:
        take_turns([first, second], 5)

    assert raised.value.samples is second
    assert second.failed is second.launches[1]
    assert turns == ["a", "b", "a", "b"]


def test_launches_are_numbered_and_told_what_they_are_for() -> None:
    made = Launches(Sides(), REQUEST, Pacer(0.0))  # type: ignore[arg-type]
    made.add()
    made.add(only=["step"])

    assert [(record.index, record.only) for record in made.launches] == [(0, []), (1, ["step"])]
    assert made.whole == [0]
    assert made.failed is None


def test_a_pair_is_a_launch_of_each_side() -> None:
    reference, current = launch(0), launch(0)
    made = PairedLaunches(Sides([(reference, current)]), REQUEST)  # type: ignore[arg-type]
    made.add()

    assert made.references[0] is reference
    assert made.launches[0] is current
    assert made.alone == ""


@pytest.mark.parametrize("side", ["this tree", "reference"])
def test_a_side_that_does_not_pass_is_all_that_is_told(side: str) -> None:
    failed = launch(1, outcome="failed")
    broken = (None, failed) if side == "this tree" else (failed, None)
    made = PairedLaunches(Sides([(launch(), launch()), broken]), REQUEST)  # type: ignore[arg-type]
    made.add()
    made.add()

    assert (made.launches, made.references) == ([failed], [])
    assert made.failed is failed


def test_a_test_whose_file_the_reference_lacks_runs_once_alone() -> None:
    made = PairedLaunches(Sides(has_body=False), REQUEST)  # type: ignore[arg-type]
    take_turns([made], 5)

    assert (len(made.launches), made.references) == (1, [])
    assert made.alone == "the test does not exist in main"


def test_a_body_that_only_the_ranks_of_the_reference_miss_is_no_failure_and_leaves_no_logs() -> None:
    missing = without_a_body()
    sides = Sides([(missing, None)])
    made = PairedLaunches(sides, REQUEST)  # type: ignore[arg-type]
    take_turns([made], 5)

    assert [record.outcome for record in made.launches] == ["passed"]
    assert sides.forgotten == [missing]
    assert made.alone == "the test does not exist in main"
