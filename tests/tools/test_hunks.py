"""Hunks of real diffs: a worktree holds any of them, and the smallest set that is enough is found."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.repositories import git

from pytest_distbench.errors import LauncherError
from pytest_distbench.tools.hunks import Hunk, Tree, smallest

LINES = [f"line {number // 3}\n" for number in range(30)]
"""Neighbours are equal: a hunk at a wrong line would fit, too."""


def write(folder: Path, name: str, text: str | bytes) -> None:
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_bytes(text if isinstance(text, bytes) else text.encode())


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository whose working tree differs from its commit in everything that a diff can say."""
    folder = tmp_path_factory.mktemp("repository") / "project"
    folder.mkdir()
    git(folder, "init", "-q", "-b", "main")
    for name in ("lines.py", "mode.sh", "old.py", "gone.py", "a b/ü\t.py", "link"):
        write(folder, name, "".join(LINES))
    write(folder, "crlf.txt", "one\r\ntwo\r\nthree\r\nfour")
    write(folder, "data.bin", bytes(range(256)))
    write(folder, "ignored.log", "")
    write(folder, ".gitignore", "*.log\n")
    write(folder, "gone.py", "else\n" * 9)
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "base")
    git(folder, "config", "diff.noprefix", "true")
    git(folder, "config", "color.ui", "always")
    git(folder, "config", "diff.interHunkContext", "9")
    git(folder, "config", "apply.whitespace", "error")
    write(
        folder, "lines.py", "".join(["first \n", *LINES[:3], *LINES[5:12], "added\n", "@@ -1 +1 @@\n", *LINES[12:-2]])
    )
    write(folder, "mode.sh", "".join([*LINES[:4], "diff --git a/x b/x\n", *LINES[4:]]))
    (folder / "mode.sh").chmod(0o755)
    (folder / "old.py").rename(folder / "new.py")
    write(folder, "new.py", "".join([*LINES[:4], "new\n", *LINES[4:]]))
    (folder / "gone.py").unlink()
    (folder / "link").unlink()
    (folder / "link").symlink_to("lines.py")
    write(folder, "a b/ü\t.py", "".join(LINES[1:]))
    write(folder, "crlf.txt", "one\r\n2\r\nthree\r\nfour\r\n")
    write(folder, "data.bin", bytes(range(255)))
    write(folder, "untracked.py", "no newline")
    write(folder, "empty.py", "")
    write(folder, "other.log", "not of the diff")
    git(folder, "worktree", "add", "-q", "--detach", str(folder.with_name("tree")), "HEAD")
    return folder


def files(folder: Path) -> dict[str, object]:
    """Everything that git would track: the content of each, and whether it may be run."""
    names = git(folder, "ls-files", "--cached", "--others", "--exclude-standard", "-z").split("\0")
    return {
        name: os.readlink(path) if path.is_symlink() else (path.read_bytes(), path.stat().st_mode & 0o100)
        for name in names
        if name and os.path.lexists(path := folder / name)
    }


@pytest.fixture
def tree(project: Path) -> Tree:
    return Tree(project.with_name("tree"), project)


def test_a_tree_with_all_hunks_is_the_working_tree_and_with_none_the_revision(project: Path, tree: Tree) -> None:
    folder, before = project.with_name("tree"), git(project, "status", "--porcelain")
    revision, hunks = files(folder), tree.hunks()
    assert sum(bool(hunk.start) for hunk in hunks if hunk.names[0] == "lines.py") == 4
    same = ["mode.sh", "gone.py", "link", "data.bin", "untracked.py", "empty.py"]
    assert {h.names for h in hunks if not h.start} == {("old.py", "new.py"), *((name, name) for name in same)}
    assert ("a b/ü\t.py", "a b/ü\t.py") in {hunk.names for hunk in hunks}

    tree.hold(hunks)
    assert files(folder) == files(project)

    tree.hold([])
    assert files(folder) == revision
    assert git(project, "status", "--porcelain") == before
    assert not [path for path in folder.rglob("*") if path.name.endswith((".rej", ".orig"))]


def test_each_hunk_and_all_others_can_be_held_and_their_patch_does_the_same(project: Path, tree: Tree) -> None:
    folder, found = project.with_name("tree"), tree.hunks()
    hunks = [hunk for hunk in found if hunk.names[0] != "link"]
    for chosen in [[hunk] for hunk in hunks] + [[h for h in found if h is not hunk] for hunk in hunks]:
        tree.hold(chosen)
        held, patch = files(folder), tree.patch()
        tree.hold([])
        subprocess.run(["git", "apply", "--whitespace=nowarn", "-"], cwd=folder, input=patch, check=True)
        assert files(folder) == held
        subprocess.run(["git", "apply", "--whitespace=nowarn", "-R", "-"], cwd=folder, input=patch, check=True)


def test_lines_are_found_by_their_number_alone(project: Path, tree: Tree) -> None:
    """Those of the last hunk, without the others that stand before it and shift it."""
    folder = project.with_name("tree")
    last = [hunk for hunk in tree.hunks() if hunk.names[0] == "lines.py"][-1]
    tree.hold([last])
    assert (folder / "lines.py").read_text() == "".join(LINES[:-2])
    tree.hold([])


def test_a_hunk_that_cannot_do_without_another_leaves_the_tree_as_the_revision(project: Path, tree: Tree) -> None:
    """A file that becomes a link is a file less and a link more."""
    folder = project.with_name("tree")
    revision, link = files(folder), [hunk for hunk in tree.hunks() if hunk.names[0] == "link"]
    with pytest.raises(LauncherError, match="link: already exists in working directory"):
        tree.hold(link[1:])
    assert files(folder) == revision


def test_what_git_cannot_do_is_reported_with_its_words(tmp_path: Path) -> None:
    with pytest.raises(LauncherError, match=r"git rev-parse .* failed in .*: fatal: not a git repository"):
        Tree(tmp_path, tmp_path).hunks()


@given(st.integers(1, 40).flatmap(lambda n: st.tuples(st.just(n), st.sets(st.integers(0, n - 1), min_size=1))))
def test_the_smallest_set_is_that_of_which_all_are_needed(case: tuple[int, set[int]]) -> None:
    number, needed = case
    tried: list[Sequence[int]] = []

    def is_enough(chosen: Sequence[int]) -> bool:
        tried.append(chosen)
        return needed <= set(chosen)

    assert set(smallest(range(number), is_enough)) == needed
    assert len(tried) == len(set(map(tuple, tried)))
    if len(needed) == 1:
        assert len(tried) <= 2 * number.bit_length()


def test_one_of_two_causes_is_found_and_what_it_cannot_do_without() -> None:
    """2 needs 7, and 5 is a cause of its own. Without 7 nobody knows what 2 does."""
    assert set(smallest(range(10), lambda chosen: {2, 7} <= {*chosen} or 5 in chosen)) in ({5}, {2, 7})


def test_hunks_are_told_apart_by_their_place() -> None:
    first, second = (Hunk(("a", "a"), (b"", b""), b"+x\n", start, 0, 1) for start in (1, 2))
    assert list(smallest([first, second], lambda chosen: second in chosen)) == [second]


def test_the_distance_of_a_line_is_that_in_the_working_tree(tree: Tree) -> None:
    hunks = tree.hunks()
    first, removed, added, _ = (hunk for hunk in hunks if "lines.py" in hunk.names)
    [new] = [hunk for hunk in hunks if "untracked.py" in hunk.names]

    assert [first.distance("lines.py", line) for line in (1, 3)] == [0, 2]
    assert [added.distance("lines.py", line) for line in (10, 12, 13, 20)] == [2, 0, 0, 7]
    assert removed.distance("lines.py", 9) == 4
    assert (new.distance("untracked.py", 40), new.distance("lines.py", 1)) == (0, float("inf"))
