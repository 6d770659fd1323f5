"""The commits between two revisions, and what is refused."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.bisections import make_history
from support.repositories import git

from pytest_distbench.errors import ConfigurationError
from pytest_distbench.run.history import find_history


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    make_history(tmp_path, [{}] * 4)
    return tmp_path


def test_commits_are_in_order_without_good_and_with_bad(folder: Path) -> None:
    history = find_history("HEAD~3", "HEAD", folder)

    assert [commit.subject for commit in history.commits] == ["Commit 1", "Commit 2", "Commit 3"]
    assert history.commits[-1].hash == history.bad.commit
    assert history.commits[0].author == "a"


def test_a_merge_is_one_change_and_what_does_not_descend_from_good_is_left_out(folder: Path) -> None:
    git(folder, "switch", "-qc", "side", "HEAD~2")
    for name in ("s1", "s2"):
        git(folder, "commit", "-q", "--allow-empty", "-m", name)
    git(folder, "switch", "-q", "-")
    git(folder, "merge", "-q", "--no-ff", "-m", "merged", "side")
    git(folder, "commit", "-q", "--allow-empty", "-m", "after")

    assert [c.subject for c in find_history("HEAD~4", "HEAD", folder).commits] == [
        "Commit 2", "Commit 3", "merged", "after",
    ]  # fmt: skip
    from_side = find_history("side~1", "HEAD", folder)
    assert [c.subject for c in from_side.commits] == ["merged", "after"]
    assert len(from_side.commits[0].parents) == 2


@pytest.mark.parametrize(
    ("good", "bad", "words"),
    [
        ("HEAD", "HEAD", "are one commit: give two, between which a metric moved"),
        ("HEAD", "HEAD~1", "is no ancestor of HEAD~1 (.*): it is the other way round; GOOD comes first"),
        ("nowhere", "HEAD", "bisect: nowhere: the repository .* has no commit of that name"),
        ("side", "HEAD", "is no ancestor of HEAD (.*): they part at .*; is the metric good there"),
        ("orphan", "HEAD", "they share no history"),
    ],
)
def test_what_cannot_be_searched_is_told(folder: Path, good: str, bad: str, words: str) -> None:
    git(folder, "branch", "main-line")
    git(folder, "switch", "-qc", "side", "HEAD~1")
    git(folder, "commit", "-q", "--allow-empty", "-m", "side")
    git(folder, "switch", "-q", "--orphan", "orphan")
    git(folder, "commit", "-q", "--allow-empty", "-m", "orphan")
    git(folder, "switch", "-q", "main-line")

    with pytest.raises(ConfigurationError, match=re.sub(r"\((\.\*)\)", r"\\(\1\\)", words)):
        find_history(good, bad, folder)


def test_a_shallow_clone_is_told_what_to_fetch(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    clone = tmp_path_factory.mktemp("clone")
    git(clone, "clone", "-q", "--depth", "2", f"file://{folder}", ".")
    git(clone, "fetch", "-q", "--depth", "1", "origin", git(folder, "rev-parse", "HEAD~3").strip())

    with pytest.raises(ConfigurationError, match=r"shallow.*git fetch --unshallow"):
        find_history("FETCH_HEAD", "HEAD", clone)
