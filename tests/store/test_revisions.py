"""Two versions of a store: as it lies in a folder, and as it was at a git revision."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.repositories import git
from support.stores import KEY, PLATFORM, TEST, entry

from pytest_distbench.errors import DistbenchError, StoredFileError
from pytest_distbench.store.baselines import BaselineStore
from pytest_distbench.store.names import selection
from pytest_distbench.store.revisions import FolderVersion, RevisionVersion, VersionChanges

OTHER = "suites/test_b.py::test_b"


@pytest.fixture
def store(tmp_path: Path) -> BaselineStore:
    """A store whose only entry is committed."""
    made = BaselineStore(tmp_path / "b", PLATFORM)
    made.write(TEST, KEY, entry(1.0))
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "first")
    return made


def test_a_revision_holds_what_was_committed_whatever_lies_there_now(store: BaselineStore) -> None:
    [path] = FolderVersion(store.folder).paths()
    before = FolderVersion(store.folder).read(path)
    store.write(TEST, KEY, entry(2.0))
    revision = RevisionVersion(store.folder, "HEAD")
    content = revision.read(path)
    again = revision.read(path)
    revision.close()

    assert revision.paths() == {path}
    assert content == again == before != FolderVersion(store.folder).read(path)


def test_a_folder_that_the_revision_lacks_is_empty_there(store: BaselineStore) -> None:
    new = store.folder.parent / "new"
    new.mkdir()

    assert RevisionVersion(new, "HEAD").paths() == set()


@pytest.mark.parametrize("revision", ["nowhere", "--help", ""])
def test_what_is_no_revision_is_refused(store: BaselineStore, revision: str) -> None:
    with pytest.raises(DistbenchError, match="is neither a folder nor a git revision known in"):
        RevisionVersion(store.folder, revision)


def changes(old: Path, new: Path, *, parts: tuple[str, ...] = (), platform: str = "") -> tuple[list[str], int]:
    found = VersionChanges(FolderVersion(old), FolderVersion(new), selection(list(parts)), platform=platform)
    return [f"{change.kind} {change.name.test}" for change in found], found.unchanged


def test_changes_are_found_entry_by_entry_and_the_rest_is_counted(store: BaselineStore, tmp_path: Path) -> None:
    then = BaselineStore(tmp_path / "then", PLATFORM)
    then.write(TEST, KEY, entry(1.0))
    then.write(OTHER, KEY, entry(1.0))
    store.write("suites/test_c.py::test_c", KEY, entry(1.0))

    assert changes(then.folder, store.folder) == ([f"removed {OTHER}", "new suites/test_c.py::test_c"], 1)


def test_only_what_was_chosen_is_compared(store: BaselineStore, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()

    assert changes(empty, store.folder) == ([f"new {TEST}"], 0)
    assert changes(empty, store.folder, parts=("test_b",)) == ([], 0)
    assert changes(empty, store.folder, platform="gpu") == ([], 0)


def test_a_file_that_is_no_baseline_is_named(store: BaselineStore, tmp_path: Path) -> None:
    store.path(TEST, KEY).write_text("{")
    (tmp_path / "empty").mkdir()

    with pytest.raises(StoredFileError, match="not a baseline file"):
        changes(tmp_path / "empty", store.folder)
