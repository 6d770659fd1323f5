"""A git worktree with what pytest itself evaluates, so that both sides of a comparison have it."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.repositories import git

from pytest_distbench.errors import LauncherError
from pytest_distbench.run.confirm.evaluated import Evaluation, differing
from pytest_distbench.run.directory import Revision, RunDirectory, check_out, copy_working_tree, find_revision


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
        git(committed.path, "worktree", "add", "-q", "--detach", str(folder / "tree"))
    mine = committed.path / "tmp" / "mine"
    git(committed.path, "worktree", "add", "-q", "--detach", str(mine))
    (killed / "in-use.lock").touch()
    with check_out(revision, committed.path / "tmp"):
        pass
    left = git(committed.path, "worktree", "list")
    alive.close()

    assert str(killed) not in left
    assert str(alive.path) in left
    assert str(mine) in left


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


def test_a_missing_commit_of_a_submodule_is_an_error_with_the_command(nested: pytest.Pytester) -> None:
    revision = find_revision("HEAD", nested.path)
    git(nested.path, "update-index", "--cacheinfo", f"160000,{'1' * 40},outer")
    git(nested.path, "commit", "-qm", "a commit nobody has")

    told, there = (
        r"the submodule outer at 1111111111, which is not fetched: git -C .* fetch",
        find_revision("HEAD", nested.path),
    )
    with pytest.raises(LauncherError, match=told), check_out(there, nested.path / "tmp"):
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
def test_a_copy_of_the_working_tree_has_its_files_under_another_commits_name(
    committed: pytest.Pytester, write: dict[str, str | None], held: dict[str, str | None]
) -> None:
    for name, text in write.items():
        file = committed.path / name
        file.parent.mkdir(exist_ok=True)
        file.unlink() if text is None else file.write_text(text)
    before = git(committed.path, "status", "--porcelain")
    with copy_working_tree(committed.path, committed.path / "tmp", named="c0ffee" * 6) as tree:
        found = {name: (tree / name).read_text() if (tree / name).exists() else None for name in held}
        with check_out(find_revision("HEAD", committed.path), committed.path / "tmp") as other:
            assert (tree.name, other.name == tree.name) == ("tree-c0ffeec0ff", False)

    assert found == held
    assert git(committed.path, "status", "--porcelain") == before
    assert git(committed.path, "worktree", "list").count("\n") == 1


def test_a_tree_with_changes_in_a_submodule_is_not_copied(nested: pytest.Pytester) -> None:
    copied = copy_working_tree(nested.path, nested.path / "tmp", named="c0ffee" * 6)
    with pytest.raises(LauncherError, match="is no regular file, so it cannot be copied"), copied:
        pass


TEST = """
import os
import evaluated_layers, evaluated_work
from evaluated_config import NUMBERS as numbers
STEPS = 4
COUNT = 5

def helper(): return 1

def size(): return numbers[0]

def body(rank):
    "It steps."
    evaluated_work.step(helper(), STEPS)

@pytest.fixture
def config(): return {"layers": evaluated_layers.LAYERS}

def test_it(distbench, config): distbench.run(body, params={"n": size(), "count": COUNT})

def test_other(distbench): distbench.run(body)
"""
EVALUATED_FILES = {
    "test_evaluated_it.py": TEST,
    "conftest_of_it.py": "import os\n\ndef pytest_configure(config): pass\n",
    "evaluated_layers.py": "LAYERS = 10\n",
    "evaluated_work.py": "def step(*given): pass\n",
    "evaluated_config.py": "import evaluated_deep\nNUMBERS = [evaluated_deep.N]\n",
    "evaluated_deep.py": "N = 1\n",
    "pytest.ini": "[pytest]\naddopts = -ra\n",
    "pyproject.toml": "[project]\nversion = '1'\n[tool.pytest.ini_options]\naddopts = '-ra'\n",
}


@pytest.fixture
def imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A repository whose modules pytest has imported."""
    for name, text in EVALUATED_FILES.items():
        (tmp_path / name).write_text("import pytest\n" + text if name.startswith("test_") else text)
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", "--all")
    git(tmp_path, "commit", "--quiet", "--message", "one")
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("test_evaluated_it", "conftest_of_it"):
        importlib.import_module(name)
    yield tmp_path
    for name in EVALUATED_FILES:
        sys.modules.pop(name.removesuffix(".py"), None)


def found(imported: Path, ini: str = "pytest.ini") -> tuple[list[str], bool]:
    revision = Revision("", git(imported, "rev-parse", "HEAD").strip(), imported.resolve())
    test = {"module": "test_evaluated_it", "function": "test_it", "bodies": frozenset({"body"})}
    evaluation = Evaluation(**test, plugins=["conftest_of_it"], ini=imported / ini)
    seen = differing(evaluation, revision)
    return [*seen[0]], seen[1]


def change(imported: Path, name: str, old: str, new: str) -> None:
    text = (imported / name).read_text()
    assert old in text
    (imported / name).write_text(text.replace(old, new))


@pytest.mark.parametrize(
    ("name", "old", "new", "is_of_the_test"),
    [
        # None: ranks run it from their own tree, or it does nothing
        ("test_evaluated_it.py", "steps.", "steps, and more.", None),
        ("test_evaluated_it.py", "helper(), STEPS", "2 * helper(), STEPS", None),
        ("test_evaluated_it.py", "STEPS = 4", "STEPS = 8", None),
        ("test_evaluated_it.py", "def helper(): return 1", "def helper():\n    # two\n    return 2", None),
        ("test_evaluated_it.py", "def test_other(distbench): distbench.run(body)", "def test_third(): pass", None),
        ("test_evaluated_it.py", "import os", "import os, json", None),
        ("evaluated_work.py", "pass", "import time; time.sleep(1)", None),
        ("conftest_of_it.py", "def", "# a comment\ndef", None),
        ("pyproject.toml", "version = '1'", "version = '2'", None),
        ("test_evaluated_it.py", '{"layers": evaluated_layers.LAYERS}', '{"layers": 20}', True),
        ("test_evaluated_it.py", "import os", "import os\nos.environ['SLOW'] = '1'", True),
        ("test_evaluated_it.py", "def size(): return numbers[0]", "def size(): return 2", True),
        ("test_evaluated_it.py", "COUNT = 5", "COUNT = 50", True),
        ("conftest_of_it.py", "pass", "os.environ['MYPKG_DEBUG'] = '1'", True),
        ("pytest.ini", "-ra", "-rA", True),
        ("pyproject.toml", "-ra", "-rA", True),
        ("evaluated_layers.py", "10", "20", False),
        ("evaluated_config.py", "[evaluated_deep.N]", "[2]", False),
        ("evaluated_deep.py", "N = 1", "N = 2", False),
    ],
)
def test_what_pytest_evaluates_is_of_both_sides_and_what_ranks_run_of_each(
    imported: Path, name: str, old: str, new: str, is_of_the_test: bool | None
) -> None:
    change(imported, name, old, new)
    names, are_of_the_test = found(imported, name if name.endswith(".toml") else "pytest.ini")

    assert names == [name] * (is_of_the_test is not None)
    assert not names or are_of_the_test is is_of_the_test


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


def test_a_submodule_that_is_not_checked_out_here_is_not_there_either(nested: pytest.Pytester) -> None:
    git(nested.path, "submodule", "deinit", "-q", "--force", "outer")
    with check_out(find_revision("HEAD", nested.path), nested.path / "tmp") as tree:
        assert list((tree / "outer").iterdir()) == []


@pytest.mark.parametrize("is_other", [False, True])
def test_a_renamed_file_is_compared_with_its_former_self(imported: Path, is_other: bool) -> None:
    git(imported, "mv", "conftest_of_it.py", "was_there.py")
    git(imported, "commit", "--quiet", "--message", "elsewhere")
    git(imported, "mv", "was_there.py", "conftest_of_it.py")
    if is_other:
        change(imported, "conftest_of_it.py", "pass", "print()")
    revision = Revision("", git(imported, "rev-parse", "HEAD").strip(), imported.resolve())
    renamed = [((imported / "conftest_of_it.py").resolve(), (imported / "was_there.py").resolve())]
    seen = differing(Evaluation(plugins=["conftest_of_it"]), revision, renamed)

    assert [*seen[0]] == ["conftest_of_it.py"] * is_other


def test_a_file_that_the_revision_does_not_have_differs(imported: Path) -> None:
    git(imported, "rm", "--quiet", "--cached", "conftest_of_it.py")
    git(imported, "commit", "--quiet", "--message", "without")
    git(imported, "add", "conftest_of_it.py")

    assert found(imported) == (["conftest_of_it.py"], True)
