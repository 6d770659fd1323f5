"""What differs between two versions of an entry, and how much worse it got."""

from __future__ import annotations

import math

import pytest
from support.fingerprints import of, reduce
from support.stores import KEY, PLATFORM, TEST, entry

from pytest_distbench.records.baseline import BaselineEntry, BaselineMetric
from pytest_distbench.records.case import EntryName
from pytest_distbench.records.kinds import Better
from pytest_distbench.store.changes import EntryChange, MetricChange, entry_change

NAME = EntryName(platform=PLATFORM, test=TEST, key=KEY)


def change(old: BaselineEntry | None, new: BaselineEntry | None) -> EntryChange:
    made = entry_change(NAME, old, new)
    assert made is not None
    return made


def exact(*values: float) -> BaselineEntry:
    return entry(1.0, metrics={"count": BaselineMetric(better="exact", unit="", launches=list(values))})


def test_equal_entries_are_no_change() -> None:
    assert entry_change(NAME, entry(1.0), entry(1.0)) is None


def test_entries_come_and_go() -> None:
    assert (change(None, entry(1.0)).kind, change(entry(1.0), None).kind) == ("new", "removed")


def test_a_metric_has_its_medians_and_how_many_launches_they_are_of() -> None:
    [moved] = change(entry(1.0, 2.0, 9.0), entry(4.0)).metrics

    assert (moved.old, moved.new, moved.ratio) == (2.0, 4.0, 2.0)
    assert (moved.old_launches, moved.new_launches) == (3, 1)


def test_exact_numbers_that_were_seen_more_often_did_not_change() -> None:
    assert change(exact(7), exact(7, 7)).metrics == []
    assert len(change(exact(7), exact(8)).metrics) == 1


def test_every_other_field_that_differs_is_noted() -> None:
    new = entry(1.0, software={"torch": "2.14.0", "mkl": "1"}, tolerance=0.25)

    assert change(entry(1.0), new).notes == [
        "software.mkl none -> 1",
        "software.torch 2.13.0 -> 2.14.0",
        "tolerance none -> 0.25",
    ]


def test_of_a_fingerprint_it_is_told_what_became_of_its_collectives() -> None:
    old, new = of(reduce(64)), of(reduce(64), reduce(8))

    assert change(entry(1.0, fingerprints={"step": old}), entry(1.0, fingerprints={"step": new})).notes == [
        "fingerprints.step: 1 all_reduce of 8 B float32 was added",
        "fingerprints.step: 64 B sent per rank became 72 B",
    ]


def test_long_values_are_cut_in_notes() -> None:
    [note] = change(entry(1.0), entry(1.0, xfail_perf="x" * 61)).notes

    assert note == f"xfail_perf none -> {'x' * 60}..."


@pytest.mark.parametrize(
    ("better", "old", "new", "worse_by"),
    [
        ("lower", 1.0, 2.0, math.log(2)),
        ("higher", 1.0, 2.0, -math.log(2)),
        ("exact", 1.0, 2.0, math.inf),
        ("lower", 1.0, 1.0, 0.0),
        ("lower", None, 1.0, math.inf),
        ("lower", 0.0, 1.0, math.inf),
    ],
)
def test_worse_is_positive_in_the_metrics_own_direction(
    better: Better, old: float | None, new: float, worse_by: float
) -> None:
    made = MetricChange(metric="a", unit="s", better=better, old=old, new=new, old_launches=1, new_launches=1)

    assert made.worse_by == pytest.approx(worse_by)


def test_a_bound_that_was_set_or_moved_is_noted() -> None:
    moved = change(entry(1.0, bounds={"a": 1.0}), entry(1.0, bounds={"a": 2.0, "b": "<= 3 s"}))

    assert moved.notes == ["bounds.a 1.0 -> 2.0", "bounds.b none -> <= 3 s"]
