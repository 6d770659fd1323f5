"""What is followed of what differs between GOOD and BAD, and what a visit makes of a run; no pytest runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest
from support.bisections import CLOCK, COMMITS, state
from support.results import PAIRED, result, verdict

from pytest_distbench.errors import DistbenchError
from pytest_distbench.judging.bisection import Standing
from pytest_distbench.records.bisection import LAUNCH_FAILS, Followed
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.metric import Measurement
from pytest_distbench.records.record import replace
from pytest_distbench.records.run import CaseResult
from pytest_distbench.run.bisection import Ends, test_of, visit
from pytest_distbench.run.history import History
from pytest_distbench.run.visits import Measured, Visits
from pytest_distbench.run.worktree import Revision

test_of.__test__ = False  # type: ignore[attr-defined] # a function under test, whose name begins like one
GOOD, BAD = (Revision(name, digit * 40, Path()) for name, digit in (("v1", "1"), ("main", "2")))
HISTORY = History(good=GOOD, bad=BAD, commits=tuple(COMMITS))


class MadeUp:
    """In the place of visits: what they measure, by the commit."""

    def __init__(self, **measured: Measured) -> None:
        self.measured = measured
        self.asked: list[Any] = []

    def alone(self, commit: Revision, test: str, *, launches: int) -> Measured:
        self.asked.append((commit.name, test, launches))
        return self.measured.get(commit.name) or self.measured["here"]

    def in_turns(self, commit: Revision, test: str, good: Revision, *, pairs: int | None) -> Measured:
        self.asked.append((commit.name, test, pairs))
        return self.measured.get(commit.name) or self.measured["here"]


def launches(count: int, *, step: float = 0.02, number: int = 2, **changes: Any) -> list[LaunchRecord]:
    measured = [
        Measurement(name="step", unit="s", better="lower", value=step, ranks=2),
        Measurement(name="count", unit="", better="exact", value=count, ranks=2),
    ]
    made = LaunchRecord(index=0, outcome="passed", wall_s=1.0, measurements=measured, software={"torch": "2.14.0"})
    return [replace(made, index=index, **changes) for index in range(number)]


def case(made: Sequence[LaunchRecord], **changes: Any) -> CaseResult:
    return result(launches=list(made), **changes)


def ends(visits: MadeUp, metric: str = "") -> Ends:
    return Ends(HISTORY, cast("Visits", visits), "test_a.py", metric)


def test_what_is_exact_is_found_by_two_launches_of_each_end() -> None:
    made_up = MadeUp(v1=Measured([case(launches(7))]), main=Measured([case(launches(8, step=9.0))]))
    [followed] = ends(made_up).exact()

    assert followed.metric == "count"
    assert followed.is_exact
    assert made_up.asked == [("v1", "test_a.py", 2), ("main", "test_a.py", 2)]
    assert ends(made_up, "step").exact() == []


def test_launches_that_fail_at_bad_are_followed_and_at_good_an_error() -> None:
    fine, failed = Measured([case(launches(7))]), Measured([case(launches(7, outcome="failed", reason="no"))])

    assert [f.metric for f in ends(MadeUp(v1=fine, main=failed)).exact()] == [LAUNCH_FAILS]
    with pytest.raises(DistbenchError, match=r"at GOOD, v1 .*, the launch fails: no"):
        ends(MadeUp(v1=failed, main=fine)).exact()


def test_where_the_parameters_of_the_test_differ_nothing_exact_is_compared_and_that_is_said() -> None:
    other = case(launches(8), case=replace(CLOCK.bad.case, params={"layers": 3}))
    found = ends(MadeUp(v1=Measured([case(launches(7))]), main=Measured([other])))

    assert found.exact() == []
    assert found.remarks == [
        "suites/test_a.py::test_a[ws2] has other parameters at GOOD: nothing exact of it can be compared"
    ]


@pytest.mark.parametrize(
    ("good", "words"),
    [
        (Measured([], "pytest ended with exit code 4"), "v1 .* cannot be measured: pytest ended with exit code 4"),
        (Measured([case(launches(7), nodeid="test_b.py::test_b")]), "measures none of the cases of BAD"),
    ],
)
def test_ends_that_cannot_be_measured_are_an_error(good: Measured, words: str) -> None:
    with pytest.raises(DistbenchError, match=words):
        ends(MadeUp(v1=good, main=Measured([case(launches(7))]))).exact()


def test_of_clocks_that_moved_the_clearest_comes_first() -> None:
    reference = replace(PAIRED, launches=launches(7))
    both = [
        verdict("regressed", metric="step", limit=0.1),
        verdict("improved", metric="count", better="lower", limit=0.01),
    ]
    paired = case(launches(7, step=0.03), verdicts=both, reference=reference)
    made_up = MadeUp(main=Measured([paired]))

    assert ends(made_up).in_turns() == [paired]
    assert [f.metric for f in ends(made_up).clocks([paired])] == ["count", "step"]
    assert [f.metric for f in ends(made_up, "step").clocks([paired])] == ["step"]


def test_a_visit_runs_the_one_test_of_what_is_followed() -> None:
    assert test_of(CLOCK, "below/test_a.py::test_other") == "below/test_a.py::test_a[ws2]"


def visited(followed: Followed, measured: Measured) -> Any:
    made_up = MadeUp(here=measured)
    done = visit(COMMITS[3], Standing(state(followed), COMMITS), HISTORY, cast("Visits", made_up))
    return done, made_up.asked


def test_a_visit_of_an_exact_metric_is_one_launch() -> None:
    followed = Followed(metric="count", verdict=verdict(metric="count"), good=case(launches(7)), bad=case(launches(8)))
    done, asked = visited(followed, Measured([case(launches(8, number=1))]))

    assert done.has_moved
    assert asked == [(COMMITS[3].short, "test_a.py::test_a[ws2]", 1)]
    failed, _ = visited(followed, Measured([case(launches(8, outcome="failed", reason="no"))]))
    assert failed.skipped == "the launch fails: no"


def test_a_visit_of_a_clock_is_as_many_pairs_as_its_noise_needs() -> None:
    paired = case(launches(7, step=0.03), reference=replace(PAIRED, launches=launches(7)))
    done, asked = visited(CLOCK, Measured([paired]))

    assert done.changes == pytest.approx([0.405, 0.405], abs=0.001)
    assert asked[0][2] == 3


@pytest.mark.parametrize(
    ("measured", "words"),
    [
        (Measured([], "took longer than 3 s"), "took longer than 3 s"),
        (Measured([case(launches(7), case=replace(CLOCK.bad.case, run="other"))]), "it measures other cases"),
        (Measured([case(launches(7))]), "it does not measure step"),
        (Measured([case(launches(7, outcome="failed", reason="no"))]), "the launch fails: no"),
    ],
)
def test_a_visit_that_measures_nothing_says_why(measured: Measured, words: str) -> None:
    assert visited(CLOCK, measured)[0].skipped == words
