"""Which files of a change its base replaces, and what pytest is given where the base judges."""

from __future__ import annotations

import os
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.repositories import git

from pytest_distbench.errors import ConfigurationError
from pytest_distbench.run import judge
from pytest_distbench.run.judge import Judged, made_ready

AGAINST = ["--distbench-against=HEAD"]
TYPICAL = ("test_*.py", "*_test.py")


@pytest.fixture
def changed(
    committed: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A repository with one commit, ``HEAD``, whose tests are in the working directory."""
    monkeypatch.chdir(committed.path)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path_factory.mktemp("tmp")))
    write(committed.path, "library.py tests/helper.py tests/test_old.py pkg/step_test.py", "base")
    git(committed.path, "add", "-A")
    git(committed.path, "commit", "-qm", "more")
    return committed.path


def write(folder: Path, names: str, text: str) -> None:
    for name in names.split():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)


@pytest.fixture
def ready(changed: Path) -> Iterator[Judged]:
    write(changed, "library.py tests/helper.py pkg/step_test.py", "change")
    write(changed, "new.py suites/new.toml conftest.py bench.py", "new")
    (changed / "tests" / "test_old.py").unlink()
    with made_ready(AGAINST) as (judged, _, _):
        yield judged


def test_the_candidate_has_the_library_of_the_change_and_all_that_judges_from_the_base(ready: Judged) -> None:
    unused = ready.take_over(TYPICAL, ["bench.py::test_it"] if os.chdir(ready.base) is None else [])
    candidate = Path(ready.candidate)

    assert unused == [
        "bench.py (new)",
        "conftest.py (changed)",
        "pkg/step_test.py (changed)",
        "suites/new.toml (new)",
        "tests/helper.py (changed)",
        "tests/test_old.py (deleted)",
    ]
    assert (candidate / "library.py").read_text() == "change"
    assert (candidate / "new.py").read_text() == "new"
    assert not (candidate / "suites" / "new.toml").exists()
    assert {(candidate / "tests" / name).read_text() for name in ("helper.py", "test_old.py")} == {"base"}


def test_a_link_out_of_the_repository_is_not_written_through(changed: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (changed / "pkg" / "step_test.py").unlink()
    (changed / "pkg").rmdir()
    (changed / "pkg").symlink_to(outside)
    text = r"pkg/step_test\.py: the change has put a link out of the repository"
    with made_ready(AGAINST) as (judged, _, _), pytest.raises(ConfigurationError, match=text):
        judged.take_over(TYPICAL, [])
    assert list(outside.iterdir()) == []


def test_a_folder_of_tests_that_became_a_link_is_the_bases_again(changed: Path) -> None:
    (changed / "tests").rename(changed / "elsewhere")
    (changed / "tests").symlink_to("elsewhere")
    (changed / "elsewhere" / "helper.py").write_text("change")
    with made_ready(AGAINST) as (judged, _, _):
        judged.take_over(TYPICAL, [])
        assert Path(judged.candidate, "tests", "helper.py").read_text() == "base"


def test_arguments_mean_files_of_the_base_and_outputs_stay_where_they_are_wanted(changed: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(changed)
    given = ["tests", f"{changed}/tests/test_old.py::test_it[a]", f"--rootdir={tmp_path}/link", "-k", "a.py or x"]
    written = ["--distbench-out", "out", "--junitxml=deep/junit.xml", f"--unknown={changed}/report.txt"]
    with made_ready(["--distbench-against", "HEAD", *given, *written]) as (judged, there, variables):
        base = judged.base

    assert there == [
        "--distbench-judge=base",
        *("--distbench-against", "HEAD"),
        *("tests", f"{base}/tests/test_old.py::test_it[a]", f"--rootdir={base}", "-k", "a.py or x"),
        *("--distbench-out", f"{changed}/out", f"--junitxml={changed}/deep/junit.xml"),
        f"--unknown={changed}/report.txt",
    ]
    assert not Path(base).exists()
    assert not Path(variables["DISTBENCH_JUDGED"]).exists()


def test_a_module_that_a_hook_found_in_the_working_tree_is_an_error(
    ready: Judged, changed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready.check_imports()
    found = types.ModuleType("library")
    found.__file__ = str(changed / "library.py")
    monkeypatch.setitem(sys.modules, "library", found)

    with pytest.raises(ConfigurationError, match=r"imported module library from .*/library\.py, of the change itself"):
        ready.check_imports()


def test_what_is_installed_in_the_working_tree_is_imported_from_the_base(
    ready: Judged, changed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is installed by a line of a .pth file or by a hook of setuptools; what is installed elsewhere stays."""
    hook: Any = types.ModuleType("__editable___pkg_1_finder")
    hook.MAPPING = {"pkg": f"{changed}/pkg", "other": "/elsewhere/other"}
    hook.NAMESPACES = {"spaced": [f"{changed}/spaced"]}
    monkeypatch.setitem(sys.modules, hook.__name__, hook)
    monkeypatch.setattr(sys, "path", [f"{changed}/src", "/elsewhere", ready.base])
    ready.keep_out()

    assert sys.path == [f"{ready.base}/src", "/elsewhere", ready.base]
    mapping = {"pkg": f"{ready.base}/pkg", "other": "/elsewhere/other"}
    assert (mapping, {"spaced": [f"{ready.base}/spaced"]}) == (hook.MAPPING, hook.NAMESPACES)


def test_temporary_files_in_the_repository_are_refused(changed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """pytest would look for an ini file there, above the base."""
    monkeypatch.setattr("tempfile.tempdir", str(changed / "tmp"))
    text = r"TMPDIR is in the repository.*; wanted TMPDIR=/tmp or another"
    with pytest.raises(ConfigurationError, match=text), made_ready(AGAINST):
        pass
    assert list((changed / "tmp").iterdir()) == []


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ([], "give --distbench-against REF on the command line"),
        (["--distbench-against=HEAD", "--distbench-judge=candidate"], "it is the base that judges here"),
        (["--distbench-against=HEAD", "test_new.py::test_it"], r"test_new\.py is not in HEAD .*, whose tests judge"),
        (["--distbench-against=nowhere"], "has no commit of that name"),
    ],
)
def test_what_the_base_cannot_run_is_an_error_before_anything_runs(changed: Path, given: list[str], text: str) -> None:
    (changed / "test_new.py").touch()
    with pytest.raises(ConfigurationError, match=text), made_ready(given):
        pass
    assert git(changed, "worktree", "list").count("\n") == 1


def test_a_folder_that_the_base_has_not_and_a_copy_of_ours_that_differs_are_errors(
    changed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(changed, "new/a.py", "new")
    monkeypatch.chdir(changed / "new")
    with pytest.raises(ConfigurationError, match=r"has no folder .*/new: run it from above"), made_ready(AGAINST):
        pass
    monkeypatch.setattr(judge, "PACKAGE", changed / "new")
    text = r"is the candidate's own: new/a\.py differs from HEAD"
    with pytest.raises(ConfigurationError, match=text), made_ready(AGAINST):
        pass
