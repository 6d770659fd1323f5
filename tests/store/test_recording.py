"""Which commit recorded a baseline, and the reasons for which nobody knows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from support.repositories import git
from support.stores import KEY, PLATFORM, TEST, entry

from pytest_distbench.records.baseline import BaselineEntry, BaselineMetric
from pytest_distbench.records.record import replace
from pytest_distbench.store.baselines import BaselineStore
from pytest_distbench.store.recording import NotRecorded, recordings


@pytest.fixture
def store(tmp_path: Path) -> BaselineStore:
    git(tmp_path, "init", "--quiet")
    return BaselineStore(tmp_path / "baselines", PLATFORM)


def recording_commit(path: Path, root: Path) -> str:
    return next(recordings(path, root)).commit


def commit(root: Path, message: str) -> str:
    git(root, "add", "--all", "--force")
    git(root, "commit", "--quiet", "--message", message)
    return git(root, "rev-parse", "HEAD").strip()


def test_it_is_the_last_one_that_changed_numbers(store: BaselineStore, tmp_path: Path) -> None:
    store.write(TEST, KEY, entry(1.0, 1.1))
    commit(tmp_path, "one")
    store.write(TEST, KEY, entry(2.0, 2.1))
    second = commit(tmp_path, "two")
    store.write(TEST, KEY, replace(entry(2.0, 2.1), tolerance=0.5))
    commit(tmp_path, "a tolerance, by hand")
    (tmp_path / "other").write_text("x")
    commit(tmp_path, "something else")

    assert recording_commit(store.path(TEST, KEY), tmp_path) == second


def test_the_first_commit_of_all_counts(store: BaselineStore, tmp_path: Path) -> None:
    store.write(TEST, KEY, entry(1.0, 1.1))
    first = commit(tmp_path, "one")

    assert recording_commit(store.path(TEST, KEY), tmp_path) == first


def test_one_whose_parent_nobody_can_read_has_recorded_it(store: BaselineStore, tmp_path: Path) -> None:
    path = store.path(TEST, KEY)
    path.parent.mkdir(parents=True)
    path.write_text("{")
    commit(tmp_path, "nonsense")
    path.unlink()
    store.write(TEST, KEY, entry(1.0, 1.1))
    mended = commit(tmp_path, "mended")

    assert recording_commit(path, tmp_path) == mended


@pytest.mark.parametrize(
    "edited",
    [
        lambda e: {"step": replace(e.metrics["step"], launches=[1.0, 1.1, 1.2001])},
        lambda e: {"step": replace(e.metrics["step"], launches=[1.0, 1.1, 9.0])},
        lambda e: {"step": replace(e.metrics["step"], companions={"cpu_s": 2.0})},
    ],
    ids=["one digit", "one launch", "no launch"],
)
def test_single_numbers_that_were_edited_are_no_recording(
    store: BaselineStore, tmp_path: Path, edited: Callable[[BaselineEntry], dict[str, BaselineMetric]]
) -> None:
    store.write(TEST, KEY, measured := entry(1.0, 1.1, 1.2))
    first = commit(tmp_path, "one")
    store.write(TEST, KEY, replace(measured, metrics=edited(measured)))
    (tmp_path / "code").write_text("slower")
    commit(tmp_path, "edited, and slower code")

    assert recording_commit(store.path(TEST, KEY), tmp_path) == first


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (TEST, "suites/test_b.py::test_a"),
        (TEST, "suites/test_a.py::test_other"),
        ("here/test_a.py::test_a", "there/below/test_a.py::test_a"),
    ],
    ids=["file", "function", "folder"],
)
def test_a_file_that_was_moved_keeps_who_recorded_it(store: BaselineStore, tmp_path: Path, old: str, new: str) -> None:
    measured = entry(1.0, 1.1, 1.2)
    store.write(old, KEY, measured)
    first = commit(tmp_path, "one")
    store.path(old, KEY).unlink()
    store.write(new, KEY, measured)
    (tmp_path / "code").write_text("slower")
    commit(tmp_path, "moved")
    store.write(new, KEY, replace(measured, tolerance=0.5))
    commit(tmp_path, "a tolerance, by hand")

    assert [r.commit for r in recordings(store.path(new, KEY), tmp_path)] == [first]


def test_a_file_that_was_moved_and_measured_anew_has_two_recordings(store: BaselineStore, tmp_path: Path) -> None:
    store.write(TEST, KEY, entry(1.0, 1.1, 1.2))
    first = commit(tmp_path, "one")
    moved = store.path("suites/test_b.py::test_a", KEY)
    store.path(TEST, KEY).unlink()
    store.write("suites/test_b.py::test_a", KEY, entry(1.0, 1.1, 1.2))
    commit(tmp_path, "moved")
    store.write("suites/test_b.py::test_a", KEY, entry(2.0, 2.1, 2.2))
    second = commit(tmp_path, "measured anew")

    assert [r.commit for r in recordings(moved, tmp_path)] == [second, first]


@pytest.mark.parametrize("text", ["{", "<<<<<<< ours\n", ""])
def test_what_nobody_can_read_is_no_recording_and_hides_none(store: BaselineStore, tmp_path: Path, text: str) -> None:
    path = store.path(TEST, KEY)
    store.write(TEST, KEY, entry(1.0, 1.1, 1.2))
    first = commit(tmp_path, "one")
    whole = path.read_text()
    path.write_text(text)
    commit(tmp_path, "nonsense")
    path.write_text(whole)
    (tmp_path / "code").write_text("slower")
    commit(tmp_path, "mended, and slower code")

    assert [r.commit for r in recordings(path, tmp_path)] == [first]


def test_what_is_not_committed_or_ignored_is_told_with_the_command(store: BaselineStore, tmp_path: Path) -> None:
    (tmp_path / "a").write_text("")
    commit(tmp_path, "one")
    store.write(TEST, KEY, entry(1.0, 1.1))
    path = store.path(TEST, KEY)
    with pytest.raises(NotRecorded, match="not committed: git add baselines/"):
        recording_commit(path, tmp_path)
    (tmp_path / ".gitignore").write_text("baselines/\n")
    with pytest.raises(NotRecorded, match="not committed"):
        recording_commit(path, tmp_path)


def test_a_changed_file_is_not_committed_either(store: BaselineStore, tmp_path: Path) -> None:
    store.write(TEST, KEY, entry(1.0, 1.1))
    commit(tmp_path, "one")
    store.write(TEST, KEY, entry(2.0, 2.1))

    with pytest.raises(NotRecorded, match="not committed"):
        recording_commit(store.path(TEST, KEY), tmp_path)


def test_another_repository_or_none_is_told(tmp_path: Path) -> None:
    store = BaselineStore(tmp_path / "baselines", PLATFORM)
    store.write(TEST, KEY, entry(1.0, 1.1))
    with pytest.raises(NotRecorded, match="not in the repository of the tests"):
        recording_commit(store.path(TEST, KEY), tmp_path)
    git(tmp_path / "baselines", "init", "--quiet")
    with pytest.raises(NotRecorded, match="not in the repository of the tests"):
        recording_commit(store.path(TEST, KEY), tmp_path)


def test_a_shallow_clone_is_told_with_the_command_that_deepens_it(store: BaselineStore, tmp_path: Path) -> None:
    store.write(TEST, KEY, entry(1.0, 1.1))
    commit(tmp_path, "one")
    (tmp_path / "other").write_text("x")
    commit(tmp_path, "two")
    clone = tmp_path / "clone"
    git(tmp_path, "clone", "--quiet", "--depth", "1", f"file://{tmp_path}", str(clone))

    with pytest.raises(NotRecorded, match=r"shallow clone.*git fetch --deepen=100.*fetch-depth: 0"):
        recording_commit(BaselineStore(clone / "baselines", PLATFORM).path(TEST, KEY), clone)
