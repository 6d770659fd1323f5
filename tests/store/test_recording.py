"""Which commit recorded a baseline, and the reasons for which nobody knows."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.repositories import git
from support.stores import KEY, PLATFORM, TEST, entry

from pytest_distbench.records.record import replace
from pytest_distbench.store.baselines import BaselineStore
from pytest_distbench.store.recording import NotRecorded, recording_commit


@pytest.fixture
def store(tmp_path: Path) -> BaselineStore:
    git(tmp_path, "init", "--quiet")
    return BaselineStore(tmp_path / "baselines", PLATFORM)


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
