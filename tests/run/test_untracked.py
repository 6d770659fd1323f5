"""What a revision lacks because git does not track it."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_distbench.errors import ConfigurationError, LauncherError
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.rank import ErrorReport, RankFate
from pytest_distbench.run.untracked import find_links, hint, link


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A working tree with data and a generated module."""
    for path in ("repo/data/tokens/train.bin", "repo/pkg/_version.py", "tree/pkg/__init__.py"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(path)
    return tmp_path / "repo"


@pytest.fixture
def tree(root: Path) -> Path:
    return root.parent / "tree"


def failed(kind: str, message: str) -> LaunchRecord:
    error = ErrorReport(kind=kind, message=message, traceback="", raised_at=0.0)
    fate = RankFate(rank=0, outcome="failed", phase="body", how=f"raised {kind}", error=error)
    return LaunchRecord(index=0, outcome="failed", wall_s=1.0, fates=[fate])


def test_what_the_working_tree_has_is_linked(root: Path, tree: Path) -> None:
    link(find_links(["data/", "pkg/_version.py"], folder=root, root=root), root=root, tree=tree)

    assert (tree / "data" / "tokens" / "train.bin").read_text() == "repo/data/tokens/train.bin"
    assert (tree / "pkg" / "_version.py").is_symlink()


@pytest.mark.parametrize("path", ["nowhere", "../tree", "/", "."])
def test_a_path_that_cannot_be_linked_is_refused(path: str, root: Path) -> None:
    with pytest.raises(ConfigurationError, match="distbench_against_link: "):
        find_links([path], folder=root, root=root)


def test_what_the_revision_has_is_not_covered(root: Path, tree: Path) -> None:
    with pytest.raises(LauncherError, match="the other revision has pkg itself"):
        link([Path("pkg")], root=root, tree=tree)


@pytest.mark.parametrize(
    ("kind", "message", "missed", "written"),
    [
        ("FileNotFoundError", "[Errno 2] No such file or directory: 'data/tokens/train.bin'", "train.bin", "data"),
        ("FileNotFoundError", "[Errno 2] No such file or directory: '{tree}/data/tokens'", "data/tokens", "data"),
        ("RuntimeError", "file 'data/tokens/train.bin' does not exist", "train.bin", "data"),
        ("ModuleNotFoundError", "No module named 'pkg._version'", "pkg/_version.py", "pkg/_version.py"),
    ],
)
def test_what_is_missed_and_is_in_the_working_tree_is_told(
    kind: str, message: str, missed: str, written: str, root: Path, tree: Path
) -> None:
    told = hint(failed(kind, message.format(tree=tree)), root=root, tree=tree, folder=tree)

    assert f"{missed} is in the working tree and not in the other revision" in told
    assert told.endswith(f"write distbench_against_link = {written} into the ini file")


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("FileNotFoundError", "[Errno 2] No such file or directory: 'nowhere/at/all'"),
        ("FileNotFoundError", "[Errno 2] No such file or directory: '/etc/nowhere'"),
        ("ValueError", "'data/tokens/train.bin' is damaged"),
    ],
)
def test_other_failures_have_no_such_hint(kind: str, message: str, root: Path, tree: Path) -> None:
    assert hint(failed(kind, message), root=root, tree=tree, folder=tree) == ""
