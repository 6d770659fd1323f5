"""A worktree of the revision that is compared with: what it holds, and that it is removed."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.repositories import git

from pytest_distbench.errors import LauncherError
from pytest_distbench.run.directory import RunDirectory
from pytest_distbench.run.worktree import check_out, copy_beside, find_revision


def test_a_worktree_holds_the_revision_and_is_removed_after_an_error_with_what_was_written_there(
    committed: pytest.Pytester,
) -> None:
    (committed.path / "test_it.py").write_text("changed")
    revision = find_revision("HEAD", committed.path)

    def use() -> None:
        with check_out(revision, committed.path / "tmp") as tree:
            assert "def test_step" in (tree / "test_it.py").read_text()
            (tree / "left.txt").write_text("by a rank")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        use()

    assert len(git(committed.path, "worktree", "list").splitlines()) == 1
    assert (committed.path / "test_it.py").read_text() == "changed"
    assert not (committed.path / "tmp" / "reference").exists()


def test_what_a_killed_run_left_is_removed_and_a_living_run_keeps_its_own(committed: pytest.Pytester) -> None:
    revision = find_revision("HEAD", committed.path)
    alive = RunDirectory(committed.path)
    killed = committed.path / "tmp" / "distbench-killed"
    for folder in (alive.path, killed):
        git(committed.path, "worktree", "add", "-q", "--detach", str(folder / "reference"))
    mine = committed.path / "tmp" / "mine"
    git(committed.path, "worktree", "add", "-q", "--detach", str(mine))
    (killed / "in-use.lock").touch()
    with check_out(revision, committed.path / "tmp"):
        pass
    left = git(committed.path, "worktree", "list")
    alive.close(keep=False)

    assert str(killed) not in left
    assert str(alive.path) in left
    assert str(mine) in left


def test_a_revision_may_be_there_twice(committed: pytest.Pytester) -> None:
    revision, folder = find_revision("HEAD", committed.path), committed.path / "tmp"
    with check_out(revision, folder) as first, check_out(revision, folder) as second:
        assert first != second
        assert [*map(Path.is_dir, (first, second))] == [True, True]

    assert git(committed.path, "worktree", "list").count("\n") == 1


def test_no_hook_of_the_repository_runs(committed: pytest.Pytester) -> None:
    hook = committed.path / ".git" / "hooks" / "post-checkout"
    hook.write_text(f"#!/bin/sh\ntouch {committed.path}/tmp/ran\n")
    hook.chmod(0o755)
    with check_out(find_revision("HEAD", committed.path), committed.path / "tmp"):
        pass

    assert not (committed.path / "tmp" / "ran").exists()


@pytest.fixture
def nested(committed: pytest.Pytester) -> pytest.Pytester:
    """The working tree has a submodule, which has one itself; both have two commits, of which the first is recorded."""
    for name, inner in (("inner", None), ("outer", "inner")):
        folder = committed.path / "tmp" / name
        folder.mkdir()
        (folder / "value.py").write_text("VALUE = 1")
        git(folder, "init", "-q")
        if inner:
            git(folder, *FILES, "submodule", "add", "-q", str(committed.path / "tmp" / inner), inner)
        git(folder, "add", ".")
        git(folder, "commit", "-qm", "first")
    git(committed.path, *FILES, "submodule", "add", "-q", str(committed.path / "tmp" / "outer"), "outer")
    git(committed.path / "outer", *FILES, "submodule", "update", "-q", "--init")
    git(committed.path, "commit", "-qam", "with a submodule")
    (committed.path / "outer" / "value.py").write_text("VALUE = 2")
    git(committed.path / "outer", "commit", "-qam", "second")
    return committed


FILES = ("-c", "protocol.file.allow=always")


def test_submodules_are_there_at_the_commits_of_the_revision_and_go_again(nested: pytest.Pytester) -> None:
    with check_out(find_revision("HEAD", nested.path), nested.path / "tmp") as tree:
        assert (tree / "outer" / "value.py").read_text() == "VALUE = 1"
        assert (tree / "outer" / "inner" / "value.py").read_text() == "VALUE = 1"

    for repository in (nested.path, nested.path / "outer", nested.path / "outer" / "inner"):
        assert len(git(repository, "worktree", "list").splitlines()) == 1
    assert not (nested.path / "tmp" / "reference").exists()
    assert (nested.path / "outer" / "value.py").read_text() == "VALUE = 2"


def test_a_submodule_that_is_not_checked_out_here_is_not_there_either(nested: pytest.Pytester) -> None:
    git(nested.path, "submodule", "deinit", "-q", "--force", "outer")
    with check_out(find_revision("HEAD", nested.path), nested.path / "tmp") as tree:
        assert list((tree / "outer").iterdir()) == []


def test_a_commit_of_a_submodule_that_is_not_here_is_told_with_what_fetches_it(nested: pytest.Pytester) -> None:
    revision = find_revision("HEAD", nested.path)
    git(nested.path, "update-index", "--cacheinfo", f"160000,{'1' * 40},outer")
    git(nested.path, "commit", "-qm", "a commit nobody has")

    with (
        pytest.raises(LauncherError, match=r"the submodule outer at 1111111111, which is not here: git -C .* fetch"),
        check_out(find_revision("HEAD", nested.path), nested.path / "tmp"),
    ):
        pass
    assert len(git(nested.path, "worktree", "list").splitlines()) == 1
    assert revision.commit != find_revision("HEAD", nested.path).commit


@pytest.mark.parametrize(
    ("write", "held"),
    [
        ({"test_it.py": "changed"}, {"test_it.py": "changed"}),
        ({"new/é.py": "new", "test_it.py": None}, {"new/é.py": "new", "test_it.py": None}),
        ({"data.bin": "ignored", ".gitignore": "*.bin\n"}, {"data.bin": "ignored", ".gitignore": "*.bin\n"}),
    ],
    ids=["changed", "untracked and gone", "ignored"],
)
def test_a_copy_of_this_tree_has_what_it_has_in_the_folder_of_another_commit(
    committed: pytest.Pytester, write: dict[str, str | None], held: dict[str, str | None]
) -> None:
    for name, text in write.items():
        file = committed.path / name
        file.parent.mkdir(exist_ok=True)
        file.unlink() if text is None else file.write_text(text)
    before = git(committed.path, "status", "--porcelain")
    with copy_beside(committed.path, committed.path / "tmp", named="c0ffee" * 6) as tree:
        found = {name: (tree / name).read_text() if (tree / name).exists() else None for name in held}
        with check_out(find_revision("HEAD", committed.path), committed.path / "tmp") as other:
            assert (tree.name, other.name == tree.name) == ("reference-c0ffeec0ff", False)

    assert found == held
    assert git(committed.path, "status", "--porcelain") == before
    assert git(committed.path, "worktree", "list").count("\n") == 1


def test_a_tree_with_changes_in_a_submodule_is_not_copied(nested: pytest.Pytester) -> None:
    with (
        pytest.raises(LauncherError, match="is no file to be copied"),
        copy_beside(nested.path, nested.path / "tmp", named="c0ffee" * 6),
    ):
        pass
