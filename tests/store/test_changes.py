"""What differs between two versions of the store: folders, or git revisions of one."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from support.fingerprints import of, reduce
from support.metrics import baseline_of
from support.repositories import git
from support.stores import KEY, PLATFORM, TEST, entry

from pytest_distbench.errors import DistbenchError, StoredFileError
from pytest_distbench.records.case import BaselineEntry, BaselineName, Conditions
from pytest_distbench.records.kinds import Better
from pytest_distbench.records.metric import Spread
from pytest_distbench.records.record import replace
from pytest_distbench.records.run import Finding
from pytest_distbench.store.accept import (
    BaselineChange,
    FolderVersion,
    RevisionVersion,
    baseline_change,
    changes_between,
    worse_by,
)
from pytest_distbench.store.baselines import Baselines
from pytest_distbench.store.entries import selection

OTHER = "suites/test_b.py::test_b"


@pytest.fixture
def store(tmp_path: Path) -> Baselines:
    made = Baselines(tmp_path / "b", PLATFORM)
    made.write(TEST, KEY, entry(1.0))
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "first")
    return made


def test_a_revision_holds_what_was_committed_whatever_lies_there_now(store: Baselines) -> None:
    [path] = FolderVersion(store.folder).paths()
    before = FolderVersion(store.folder).read(path)
    store.write(TEST, KEY, entry(2.0))
    revision = RevisionVersion(store.folder, "HEAD")
    content = revision.read(path)
    again = revision.read(path)
    revision.close()

    assert revision.paths() == {path}
    (store.folder.parent / "new").mkdir()
    assert RevisionVersion(store.folder.parent / "new", "HEAD").paths() == set(), "the revision lacks it"
    assert content == again == before != FolderVersion(store.folder).read(path)


@pytest.mark.parametrize("revision", ["nowhere", "--help", ""])
def test_what_is_no_revision_is_refused(store: Baselines, revision: str) -> None:
    with pytest.raises(DistbenchError, match="is neither a folder nor a git revision known in"):
        RevisionVersion(store.folder, revision)


def changes(old: Path, new: Path, *, parts: tuple[str, ...] = (), platform: str = "") -> tuple[list[str], int]:
    chosen = selection(list(parts))
    found, unchanged = changes_between(FolderVersion(old), FolderVersion(new), chosen, platform=platform)
    return [f"{change.kind} {change.name.test}" for change in found], unchanged


def test_changes_are_found_baseline_by_baseline_and_equal_ones_are_counted(store: Baselines, tmp_path: Path) -> None:
    then = Baselines(tmp_path / "then", PLATFORM)
    then.write(TEST, KEY, entry(1.0))
    then.write(OTHER, KEY, entry(1.0))
    store.write("suites/test_c.py::test_c", KEY, entry(1.0))

    assert changes(then.folder, store.folder) == ([f"removed {OTHER}", "new suites/test_c.py::test_c"], 1)


def test_only_what_was_chosen_is_compared(store: Baselines, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()

    assert changes(empty, store.folder) == ([f"new {TEST}"], 0)
    assert changes(empty, store.folder, parts=("test_b",)) == ([], 0)
    assert changes(empty, store.folder, platform="gpu") == ([], 0)


def test_a_file_that_is_no_baseline_is_named(store: Baselines, tmp_path: Path) -> None:
    store.path(TEST, KEY).write_text("{")
    (tmp_path / "empty").mkdir()

    with pytest.raises(StoredFileError, match="not a baseline file"):
        changes(tmp_path / "empty", store.folder)


NAME = BaselineName(platform=PLATFORM, test=TEST, key=KEY)


def change(old: BaselineEntry | None, new: BaselineEntry | None) -> BaselineChange:
    made = baseline_change(NAME, old, new)
    assert made is not None
    return made


def exact(*values: float) -> BaselineEntry:
    return entry(1.0, metrics={"count": baseline_of(values, "exact", "", name="count")})


def test_equal_baselines_are_no_change_and_every_field_that_differs_is_noted() -> None:
    assert baseline_change(NAME, entry(1.0), entry(1.0)) is None

    assert (change(None, entry(1.0)).kind, change(entry(1.0), None).kind) == ("new", "removed")

    [changed] = change(entry(1.0, 2.0, 9.0), entry(4.0)).metrics
    assert (changed.baseline, changed.current, changed.ratio) == (2.0, 4.0, 2.0)
    assert (changed.baseline_launches, changed.launches) == (3, 1)

    assert change(exact(7), exact(7, 7)).metrics == []
    assert len(change(exact(7), exact(8)).metrics) == 1

    new = entry(1.0, software={"torch": "2.14.0", "mkl": "1"}, tolerance=0.25)
    notes = ["software.mkl none -> 1", "software.torch 2.13.0 -> 2.14.0", "tolerance none -> 0.25"]
    assert change(entry(1.0), new).notes == notes

    names = ("1gbit", "10gbit")
    under = [Conditions(world_size=2, backend="gloo", launcher="warm", around={"network": name}) for name in names]
    assert change(*(entry(1.0, conditions=one) for one in under)).notes == ["conditions.around.network 1gbit -> 10gbit"]

    old, new = of(reduce(64)), of(reduce(64), reduce(8))
    assert change(entry(1.0, fingerprints={"step": old}), entry(1.0, fingerprints={"step": new})).notes == [
        "fingerprints.step: 1 all_reduce of 8 B float32 was added",
        "fingerprints.step: 64 B sent per rank became 72 B",
    ]

    [note] = change(entry(1.0), entry(1.0, xfail_perf="x" * 61)).notes
    assert note == f"xfail_perf none -> {'x' * 60}..."

    assert change(entry(1.0), entry(1.0, tolerances={"step": 0.3})).notes == ["tolerances.step none -> 0.3"]

    old = entry(1.0)
    new = replace(old, metrics={"step": [replace(m, spread=Spread(n=5, minimum=0.5)) for m in old.metrics["step"]]})
    assert change(old, new).notes == ["step.n none -> 5", "step.minimum none -> 0.5"]

    changed = change(entry(1.0, bounds={"a": 1.0}), entry(1.0, bounds={"a": 2.0, "b": "<= 3 s"}))
    assert changed.notes == ["bounds.a 1.0 -> 2.0", "bounds.b none -> <= 3 s"]


@pytest.mark.parametrize(
    ("better", "old", "new", "by"),
    [
        ("lower", 1.0, 2.0, math.log(2)),
        ("higher", 1.0, 2.0, -math.log(2)),
        ("lower", 2.0, 1.0, -math.log(2)),
        ("exact", 1.0, 2.0, math.inf),
        ("lower", 1.0, 1.0, 0.0),
        ("lower", None, 1.0, math.inf),
        ("lower", 0.0, 1.0, math.inf),
    ],
)
def test_worse_is_positive_in_a_metrics_direction(better: Better, old: float | None, new: float, by: float) -> None:
    made = Finding(metric="a", code="note", unit="s", better=better, baseline=old, current=new)

    assert worse_by(made) == pytest.approx(by)
