"""A worktree of the revision that is compared with: what it holds, and that it is removed."""

from __future__ import annotations

import pytest
from support.repositories import git

from pytest_distbench.run.directory import RunDirectory
from pytest_distbench.run.worktree import check_out, find_revision


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
    alive = RunDirectory()
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


def test_no_hook_of_the_repository_runs(committed: pytest.Pytester) -> None:
    hook = committed.path / ".git" / "hooks" / "post-checkout"
    hook.write_text(f"#!/bin/sh\ntouch {committed.path}/tmp/ran\n")
    hook.chmod(0o755)
    with check_out(find_revision("HEAD", committed.path), committed.path / "tmp"):
        pass

    assert not (committed.path / "tmp" / "ran").exists()
