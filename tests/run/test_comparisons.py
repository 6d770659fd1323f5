"""What a case is compared with: after how many launches is judged, and what an update makes of it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from support.fingerprints import BARRIER, of
from support.metrics import baseline_of, metric
from support.stores import CASE, KEY, PLATFORM, entry, result

from pytest_distbench.judging.terms import Terms
from pytest_distbench.records.case import BaselineEntry
from pytest_distbench.records.metric import Sample
from pytest_distbench.records.record import replace
from pytest_distbench.run.comparisons import Nothing, Paired, Stored
from pytest_distbench.run.request import CaseRequest
from pytest_distbench.run.sources import Source
from pytest_distbench.store.baselines import Baselines

REQUEST = CaseRequest(
    nodeid="n", case=CASE, terms=Terms(default_tolerance=0.1, max_launches=4, cores=2), launches=2, xfail_perf=""
)
QUIET = (1.00, 1.01, 0.99, 1.02, 0.98)


class Made(Source):
    """Launches with these values."""

    def __init__(self, *values: float) -> None:
        super().__init__()
        self.launches = list(result(*values).launches)

    def add(self, *, only: Sequence[str] = ()) -> None:
        raise AssertionError


def stored(known: BaselineEntry | None = None, **changes: Any) -> Stored:
    given: dict[str, Any] = {"comparisons": 1, "update": None, "update_launches": 10, "pending": []}
    return Stored(REQUEST, store=Baselines(Path("b"), PLATFORM), baseline=known, **(given | changes))


def test_a_record_keeps_the_baseline_as_it_was() -> None:
    known = entry(*QUIET)
    record = stored(known).record(Made(1.0))

    assert (record.metrics, record.fingerprints) == (known.metrics, known.fingerprints)
    assert stored().record(Made(1.0)).metrics == {}


def test_a_comparison_says_after_how_many_launches_it_judges() -> None:
    assert list(stored().looks()) == [2, 3, 4]

    assert list(stored(update="all").looks()) == [10]
    assert list(stored(entry(1.0), update="new").looks()) == [2, 3, 4]

    slow = Made(1.5, 1.5)
    before = [j.is_open for j in stored(entry(*QUIET)).compare(slow)]
    slow.most = 2
    assert (before, [j.is_open for j in stored(entry(*QUIET)).compare(slow)]) == ([True], [False])

    dear, cheap = Made(1.0), Made(1.0)
    dear.most_open = 2
    limits = [stored(entry(*QUIET)).compare(source)[0].mde or 0.0 for source in (dear, cheap)]
    assert limits[0] > limits[1]


def test_an_update_writes_changed_metrics_that_keep_to_their_bounds() -> None:
    reference = stored(update="all")
    concluded = reference.conclude(result(*QUIET, code="no-baseline"))
    [made] = reference.pending
    assert (concluded.update, concluded.previous) == ("new", {"step": None})
    assert (made[0], [m.value for m in made[1].metrics["step"]]) == (CASE, list(QUIET))

    reference = stored(entry(*QUIET), update="changed")
    assert reference.conclude(result(*QUIET, code="within-threshold")).update == "kept"
    assert reference.conclude(result(1.0, code="beyond-threshold")).update == "refused"
    assert reference.pending == []

    assert stored(entry(*QUIET), update="all").conclude(result(*QUIET, code="bound")).update == "refused"

    reference = stored(entry(*QUIET), update="all")
    assert reference.conclude(result(*QUIET, code="within-threshold")).update == "rewritten"
    assert reference.conclude(result(*QUIET, code="better")).update == "changed"


def test_why_a_regression_is_expected_comes_from_the_test_before_the_file() -> None:
    reference = stored(entry(1.0, xfail_perf="of the file"))

    assert reference.conclude(result(1.0)).xfail_perf == "of the file"
    assert reference.conclude(result(1.0, xfail_perf="of the test")).xfail_perf == "of the test"


def test_pairs_are_looked_at_after_their_own_numbers_and_the_other_side_is_recorded() -> None:
    reference = Paired(REQUEST, name="main (1)", tolerance=0.05, numbers=(5, 10), cases=1, other_python=False)
    source = Made(1.0)
    source.others = list(result(2.0).launches)

    assert list(reference.looks()) == [5, 10]
    assert (reference.record(source).name, reference.record(source).launches) == ("main (1)", source.others)


@pytest.mark.parametrize("other_python", [False, True])
def test_another_torch_excuses_an_exact_number_where_it_can_be_another(other_python: bool) -> None:
    """Under one Python a rank says of itself that it ran another, by code that is compared."""
    source = Made(1.0)
    [ours], [theirs] = source.launches, result(1.0).launches
    source.launches = [replace(ours, measurements=[metric(7, "exact")], software={"torch": "2.13.0.x"})]
    source.others = [replace(theirs, measurements=[metric(8, "exact")], software={"torch": "2.13.0"})]
    reference = Paired(REQUEST, name="main", tolerance=0.05, numbers=(1,), cases=1, other_python=other_python)
    [judgement] = reference.compare(source)

    assert judgement.kind == ("inconclusive" if other_python else "changed")
    assert reference.record(source).software == {"torch": "2.13.0" if other_python else "2.13.0.x"}


def test_a_test_that_the_other_side_lacks_is_missing_there() -> None:
    source = Made(1.0)
    source.alone = "the test does not exist in main"
    reference = Paired(REQUEST, name="main", tolerance=0.05, numbers=(5,), cases=1, other_python=False)
    [judgement] = reference.compare(source)

    assert (judgement.kind, judgement.is_open) == ("new", False)


def test_nothing_is_judged_where_nobody_asked_and_incomparable_where_there_is_a_reason() -> None:
    assert Nothing(REQUEST).compare(Made(1.0)) == []
    [judgement] = Nothing(REQUEST, "ranks share a GPU").compare(Made(1.0))

    assert (judgement.kind, judgement.reason) == ("inconclusive", "ranks share a GPU")


def test_a_baseline_file_with_bounds_alone_has_nothing_to_compare_with() -> None:
    bare = replace(entry(1.0), workload="", metrics={}, bounds={"step": "2 s"})
    reference = stored(bare, update="new")
    concluded = reference.conclude(result(*QUIET, code="within-bound"))

    assert list(reference.looks()) == [10]
    assert reference.bounds() == [("step", "2 s", f"b/{PLATFORM}/suites/test_a/test_a/{KEY}.json")]
    assert [j.kind for j in reference.compare(Made(1.0))] == ["new"]
    assert concluded.update == "new"
    assert reference.pending[0][1].bounds == {"step": "2 s"}


def with_number(*values: float, **changes: Any) -> Any:
    """The case with an exact number in addition to its timing."""
    made = result(*values, code="within-threshold", **changes)
    number = Sample(name="samples", unit="", better="exact", value=7.0)
    more = {"fingerprints": {"step": of(BARRIER)}, "software": {"torch": "2.13.0"}}
    launches = [replace(one, measurements=[*one.measurements, number], **more) for one in made.launches]
    missing = replace(made.verdicts[0], metric="samples", better="exact", code="no-baseline")
    return replace(made, launches=launches, verdicts=[*made.verdicts, missing])


def test_an_update_of_new_metrics_adds_what_a_baseline_lacks_and_keeps_the_rest() -> None:
    known = entry(*QUIET, tolerance=0.3)
    reference = stored(known, update="new", update_launches=None)
    source = Made()
    source.launches = with_number(2.0).launches
    was_short = reference.wants_more(source)
    source.launches = with_number(2.0, 2.0).launches
    concluded = reference.conclude(with_number(2.0, 2.0))
    [made] = (written for _, written in reference.pending)

    assert (was_short, reference.wants_more(source)) == (True, False), "an exact number takes two launches"
    assert (concluded.update, concluded.previous) == ("completed", {"samples": None})
    assert [m.value for m in made.metrics["samples"]] == [7, 7]
    assert made.fingerprints == {"step": of(BARRIER)}
    assert replace(made, metrics={"step": made.metrics["step"]}, fingerprints={}) == known


def test_an_update_of_what_is_new_leaves_one_launch_other_software_and_another_workload() -> None:
    whole = entry(*QUIET)
    source = baseline_of(QUIET, "exact", name="samples")
    whole = replace(whole, metrics=whole.metrics | {"samples": source}, fingerprints={"step": of(BARRIER)})
    one = replace(whole, metrics=whole.metrics | {"samples": baseline_of([7], "exact", name="samples")})
    for known in (one, entry(*QUIET, software={"torch": "2.5.0"}), entry(*QUIET, workload="another")):
        reference = stored(known, update="new")

        assert reference.conclude(with_number(2.0, 2.0)).update == ""
        assert reference.pending == []


def test_a_timing_of_one_launch_is_recorded_again_and_keeps_its_tolerance() -> None:
    known = entry(1.0)
    known = replace(known, tolerances={"step": 0.3})
    reference = stored(known, update="new", update_launches=5)
    concluded = reference.conclude(result(*QUIET, code="other-workload", launches=with_number(*QUIET).launches))
    [made] = (written for _, written in reference.pending)

    assert (concluded.update, set(made.metrics)) == ("completed", {"step", "samples"})
    assert ([m.value for m in made.metrics["step"]], made.tolerances) == (list(QUIET), {"step": 0.3})


def test_an_update_wants_launches_until_they_are_a_baseline_and_no_more_than_there_may_be() -> None:
    free = stored(update="all", update_launches=None)
    dear = Made(*QUIET[:3])
    dear.most_stored = 3

    assert list(free.looks()) == [2]
    assert [free.wants_more(Made(*values)) for values in (QUIET[:3], QUIET[:4])] == [True, False], "4 are the most"
    assert not free.wants_more(dear)
    assert not stored(update="all", update_launches=3).wants_more(Made(*QUIET[:3])), "as many as the user says"
    assert not stored(entry(1.0), update="new", update_launches=None).wants_more(Made(1.0))


def test_a_training_that_nobody_compares_is_incomparable_like_the_rest() -> None:
    made = Made(1.0)
    one = Sample(name="steps_to_accuracy", unit="steps", better="steps", value=40.0, at={"seed": 0})
    steps = [one, replace(one, at={"seed": 1})]
    made.launches = [replace(launch, measurements=steps) for launch in made.launches]
    found = Nothing(REQUEST, "ranks share a GPU").compare(made)

    assert {(judgement.kind, judgement.is_open) for judgement in found} == {("inconclusive", False)}
