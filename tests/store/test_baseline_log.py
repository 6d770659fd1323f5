"""How stored baselines went, by the log of git."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.repositories import git
from support.stores import KEY, PLATFORM, TEST, entry

from pytest_distbench.errors import DistbenchError
from pytest_distbench.store.baseline_log import baseline_history
from pytest_distbench.store.baselines import BaselineStore


def commit(folder: Path) -> str:
    git(folder, "add", "--all")
    git(folder, "commit", "-q", "-m", "more")
    return git(folder, "rev-parse", "HEAD").strip()


@pytest.fixture
def store(tmp_path: Path) -> BaselineStore:
    git(tmp_path, "init", "-q")
    return BaselineStore(tmp_path / "b ä", PLATFORM)


def test_each_commit_that_recorded_other_values_is_a_point(store: BaselineStore) -> None:
    folder = store.folder.parent
    commits = []
    for value in (1.0, 2.0, 2.0, 3.0):
        path = store.write(TEST, KEY, entry(value))
        (folder / "code.py").write_text(f"{len(commits)}")
        commits.append(commit(folder))
    path.write_text(path.read_text().replace("\n", "\n\n", 1))  # as by hand
    commit(folder)
    path.unlink()
    commit(folder)
    [trend] = baseline_history(store.folder, last=100).trends

    assert [(point.commit, point.value) for point in trend.points] == [
        (commits[0], 1.0), (commits[1], 2.0), (commits[3], 3.0),
    ]  # fmt: skip
    assert (trend.platform, trend.test, trend.case) == (PLATFORM, TEST, KEY)


def test_what_was_no_baseline_file_is_told_with_its_commit(store: BaselineStore) -> None:
    path = store.write(TEST, KEY, entry(1.0))
    content = path.read_text()
    path.write_text(f"<<<<<<< HEAD\n{content}")
    broken = commit(store.folder.parent)
    path.write_text(content)
    commit(store.folder.parent)
    history = baseline_history(store.folder, last=100)

    assert [point.value for point in history.trends[0].points] == [1.0]
    assert [problem.startswith(broken[:10]) and "merge conflict" in problem for problem in history.problems] == [True]


def test_a_store_outside_of_git_or_never_committed_is_an_error(store: BaselineStore, tmp_path: Path) -> None:
    store.write(TEST, KEY, entry(1.0))
    with pytest.raises(DistbenchError, match="--baselines reads the log of the repository that a store lies in"):
        baseline_history(store.folder, last=100)
    (tmp_path / "code.py").write_text("")
    git(tmp_path, "add", "code.py")
    git(tmp_path, "commit", "-q", "-m", "code")
    with pytest.raises(DistbenchError, match="no commit has changed it"):
        baseline_history(store.folder, last=100)
    with pytest.raises(DistbenchError, match="is not a folder"):
        baseline_history(tmp_path / "nowhere", last=100)
