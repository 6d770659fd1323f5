"""A/B against a revision or another Python: what is refused, what is said, what is left behind. Ranks are made up."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from pytest_distbench.errors import ConfigurationError, ForeignModuleError
from pytest_distbench.machine.interpreters import find_interpreter
from pytest_distbench.records.plan import LaunchPlan
from pytest_distbench.run.against import Reference, outside
from pytest_distbench.run.directory import RunDirectory
from pytest_distbench.run.worktree import Revision, checked_out, find_revision
from pytest_distbench.worker import bodies

TEST = """
    def body(rank):
        pass

    def test_step(distbench):
        distbench.run(body, params={"stand_in": {"step": [0.0200, 0.0201, 0.0199, 0.0202, 0.0198], "count!exact": 7}})
"""
EXIT_USAGE = 4

Project = Callable[[str], pytest.Pytester]


def git(folder: Path, *arguments: str) -> str:
    command = ["git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@localhost", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def run(project: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    return project.runpytest_inprocess("-p", "no:sugar", "-p", "no:cacheprovider", *arguments)


@pytest.fixture(autouse=True)
def own_git(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the user's settings nor a repository above the test's folder matter."""
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    monkeypatch.setenv("GIT_CONFIG_SYSTEM", os.devnull)


@pytest.fixture
def committed(project: Project, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """The test above in a repository of one commit; run directories are in tmp/, which git ignores."""
    made = project(TEST)
    (made.path / ".gitignore").write_text("tmp/\n__pycache__/\n")
    (made.path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(made.path / "tmp"))
    git(made.path, "init", "-q")
    git(made.path, "add", "-A")
    git(made.path, "commit", "-q", "-m", "first")
    return made


def is_clean(project: pytest.Pytester) -> bool:
    """No worktree, no note of one, and nothing changed."""
    return (
        len(git(project.path, "worktree", "list").splitlines()) == 1
        and not list((project.path / "tmp").glob("distbench-*/reference"))
        and git(project.path, "status", "--porcelain") == ""
    )


def test_an_unchanged_tree_is_green_needs_no_baseline_and_leaves_nothing(committed: pytest.Pytester) -> None:
    result = run(committed, "--distbench-against", "HEAD")

    result.stdout.fnmatch_lines(
        [
            "distbench: against HEAD (*), in turns; stored baselines are not read",
            "*test*metric*this tree*reference*change*limit*finds*pairs",
            "*test_step?ws2?*step*20 ms*20 ms*+0.0 %*+5%*+5.0%*5",
            "*count*7*7*exact*5",
            "2 metrics of 1 case in 10 launches: 2 within limits",
        ]
    )
    assert result.ret == 0
    assert is_clean(committed)


def test_a_slower_tree_fails_and_the_failure_names_what_it_was_compared_with(
    committed: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DISTBENCH_STAND_IN_FACTOR", "1.1")
    result = run(committed, "--distbench-against", "HEAD")

    result.stdout.fnmatch_lines(
        [
            "step +10.0 % against HEAD (*) (limit +5%)",
            "!  step *",
            "  1 more unchanged (-v shows all)",
            "again:  pytest *test_step?ws2?* --distbench-against HEAD",
        ]
    )
    assert "--distbench-update" not in result.stdout.str()
    assert result.ret == 1
    assert is_clean(committed)


def test_the_tolerance_of_comparisons_is_its_own(committed: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISTBENCH_STAND_IN_FACTOR", "1.1")

    assert run(committed, "--distbench-against", "HEAD", "--distbench-tolerance", "1").ret == 1
    assert run(committed, "--distbench-against", "HEAD", "--distbench-against-tolerance", "0.2").ret == 0


@pytest.mark.parametrize(
    ("error", "outcome", "said"),
    [
        ("BodyError:no body", {"passed": 1}, "*the test does not exist in HEAD (*"),
        ("broken there", {"failed": 1}, "*in HEAD (*): *ValueError*"),
    ],
)
def test_a_body_that_the_revision_lacks_is_missing_and_one_that_fails_there_fails(
    committed: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, error: str, outcome: dict[str, int], said: str
) -> None:
    monkeypatch.setenv("DISTBENCH_STAND_IN_REFERENCE_ERROR", error)
    result = run(committed, "--distbench-against", "HEAD")

    result.assert_outcomes(**outcome)
    result.stdout.fnmatch_lines([said])
    assert is_clean(committed)


def test_an_improvement_that_must_not_be_is_told_as_a_comparison_with_the_revision(
    committed: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DISTBENCH_STAND_IN_REFERENCE_FACTOR", "1.5")
    result = run(committed, "--distbench-against", "HEAD", "--distbench-fail-on-improvement")

    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        ["step: improved: *--distbench-fail-on-improvement", "again:  pytest *--distbench-against *"]
    )
    result.stdout.no_fnmatch_line("*--distbench-update*")


def test_a_file_that_the_revision_lacks_is_missing_and_the_policy_decides(committed: pytest.Pytester) -> None:
    git(committed.path, "mv", "test_it.py", "test_new.py")
    git(committed.path, "commit", "-q", "-m", "renamed")
    lax = run(committed, "--distbench-against", "HEAD~1")
    strict = run(committed, "--distbench-against", "HEAD~1", "--distbench-missing", "fail")

    lax.stdout.fnmatch_lines(["*test_new.py N*", "*the test does not exist in HEAD~1 (*"])
    strict.stdout.fnmatch_lines(["*the test does not exist in HEAD~1 (*): measured, not judged"])
    assert (lax.ret, strict.ret) == (0, 1)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--distbench-against", "nowhere"], "*has no commit of that name*git branch -a*"),
        (["--distbench-against=--help"], "*has no commit of that name*"),
        (["--distbench-against", "HEAD", "--distbench-update"], "*leave out --distbench-update*"),
        (["--distbench-against", "HEAD", "--distbench-prune"], "*leave out --distbench-prune*"),
        (
            ["--distbench-against", "HEAD", "--distbench-launcher", "torchrun"],
            "*which the torchrun launcher cannot; take one of warm, stand-in*",
        ),
        (["--distbench-against", "HEAD", "--distbench-launches", "2"], "*needs at least 3 pairs*"),
        (
            ["--distbench-against", "HEAD", "--distbench-launches=9", "--distbench-max-launches=5"],
            "*5 is less than the 9*",
        ),
        (["--distbench-against", ""], "*--distbench-against (ini: *) is empty: is the variable it comes from set?*"),
        (["--distbench-against-python", ""], "*is empty: is the variable it comes from set?*"),
        (["--distbench-against-python", "tmp"], "*that is a folder; give the executable*"),
        (["--distbench-against-python", "nowhere"], "*cannot run *nowhere: No such file*"),
        (["--distbench-against-python", "test_it.py"], "*cannot run *: Permission denied*"),
    ],
)
def test_what_cannot_be_compared_with_is_refused_before_anything_runs(
    committed: pytest.Pytester, arguments: list[str], said: str
) -> None:
    result = run(committed, *arguments)

    result.stderr.fnmatch_lines([said])
    assert result.ret == EXIT_USAGE


def test_outside_a_repository_a_revision_is_refused(project: Project) -> None:
    result = run(project(TEST), "--distbench-against", "HEAD")

    result.stderr.fnmatch_lines(["*is in no git working tree*"])
    assert result.ret == EXIT_USAGE


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ("hello", "does not answer as a Python 3 does: hello"),
        ('[[3, 12, 1], {"torch": "2.5.1", "numpy": "2", "msgspec": "1", "psutil": "7"}, []]', "2.5.1; ranks need 2.6"),
        ('[[3, 9, 1], {"torch": "2.9"}, []]', "Python 3.9.1; ranks need 3.11 or later"),
        (
            '[[3, 12, 1], {"torch": "2.9", "numpy": "2"}, []]',
            "it lacks msgspec, psutil; .*-m pip install msgspec psutil",
        ),
    ],
)
def test_a_python_that_cannot_run_ranks_is_refused(tmp_path: Path, answer: str, said: str) -> None:
    fake = tmp_path / "python"
    fake.write_text(f"#!/bin/sh\necho '{answer}'\n")
    fake.chmod(0o755)

    with pytest.raises(ConfigurationError, match=said):
        find_interpreter("python", tmp_path)


def test_the_running_python_can_run_ranks() -> None:
    assert "torch" in str(find_interpreter(sys.executable, Path()))


def test_a_worktree_holds_the_revision_and_is_removed_after_an_error_with_what_was_written_there(
    committed: pytest.Pytester,
) -> None:
    (committed.path / "test_it.py").write_text("changed")
    revision = find_revision("HEAD", committed.path)

    def use() -> None:
        with checked_out(revision, committed.path / "tmp") as tree:
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
    with checked_out(revision, committed.path / "tmp"):
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
    with checked_out(find_revision("HEAD", committed.path), committed.path / "tmp"):
        pass

    assert not (committed.path / "tmp" / "ran").exists()


def test_modules_of_the_repository_are_not_shared_by_both_sides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "of_the_project.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    revision = Revision("HEAD", "0" * 40, tmp_path)
    reference = Reference(revision=revision, interpreter=None)

    assert outside(["of_the_project", "json.decoder", "msgspec"], reference) == ("json.decoder", "msgspec")


def test_a_module_that_came_from_the_working_tree_all_the_same_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As an editable install with an import hook does it, and not for modules of the worktree, wherever that is."""
    (tmp_path / "led_astray.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("led_astray")
    astray, fine, none = (SimpleNamespace(tree=tree, foreign_tree=str(tmp_path)) for tree in ("/other", tmp_path, ""))

    with pytest.raises(ForeignModuleError, match=r"module led_astray was imported from .*led_astray\.py"):
        bodies.check_origin(cast("LaunchPlan", astray))
    bodies.check_origin(cast("LaunchPlan", fine))
    bodies.check_origin(cast("LaunchPlan", none))
    monkeypatch.delitem(sys.modules, "led_astray")
