"""A run of pytest at another commit: what it measures, and that nothing of it is left, whatever it does."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.bisections import make_history
from support.repositories import git

from pytest_distbench.errors import ConfigurationError
from pytest_distbench.judging.moved import log_ratios
from pytest_distbench.launch.site import processes
from pytest_distbench.run.visits import Visits, refuse
from pytest_distbench.run.worktree import Revision, find_revision

TEST = """
from number import NUMBER

def body(rank):
    pass

def test_step(distbench):
    distbench.run(body, params={"stand_in": {"step": 0.02, "count!exact": NUMBER}})
"""
FILES = {
    "test_it.py": TEST,
    "pytest.ini": "[pytest]\npythonpath = .\ndistbench_launcher = stand-in\n",
    ".gitignore": "tmp/\n__pycache__/\ndata.txt\n",
}
OPTIONS = ("-p", "pytest_distbench.testing", "-q")


@pytest.fixture
def folder(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Commit 0 has one value, and from commit 1 on another."""
    (pytester.path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(pytester.path / "tmp"))
    monkeypatch.setenv("TMPDIR", str(pytester.path / "tmp"))
    make_history(pytester.path, [{**FILES, "number.py": "NUMBER = 7"}, {"number.py": "NUMBER = 8"}])
    return pytester.path


@pytest.fixture
def visits(folder: Path) -> Iterator[Visits]:
    made = Visits(folder, folder, OPTIONS, timeout_s=60)
    yield made
    made.close()

    assert len(git(folder, "worktree", "list").splitlines()) == 1
    assert [path.name for path in (folder / "tmp").glob("distbench-*")] == []


def commit(folder: Path, **files: str) -> Revision:
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "another")
    return find_revision("HEAD", folder)


def value(visits: Visits, revision: Revision) -> float | None:
    [result] = visits.alone(revision, "test_it.py", launches=1).results
    return next(m.value for m in result.launches[0].measurements if m.name == "count")


def test_each_commit_runs_its_own_code_and_uncommitted_changes_do_not_count(folder: Path, visits: Visits) -> None:
    (folder / "number.py").write_text("NUMBER = 9")

    assert value(visits, find_revision("HEAD~1", folder)) == 7
    assert value(visits, find_revision("HEAD", folder)) == 8


def test_in_turns_a_commit_has_as_many_pairs_as_are_asked_for(
    folder: Path, visits: Visits, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DISTBENCH_STAND_IN_FACTOR", "1.5")
    head, good = find_revision("HEAD", folder), find_revision("HEAD~1", folder)
    [result] = visits.in_turns(head, "test_it.py::test_step", good, pairs=4).results

    assert log_ratios(result, "step") == pytest.approx([0.405] * 4, abs=0.001)


def test_what_an_editable_install_or_pythonpath_finds_is_that_of_the_commit(
    folder: Path, visits: Visits, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "pytest.ini").write_text("[pytest]\ndistbench_launcher = stand-in\n")
    old = commit(folder, number="NUMBER = 7")
    commit(folder, number="NUMBER = 8")
    monkeypatch.setattr("sys.path", [*sys.path, str(folder)])
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")]))

    assert value(visits, old) == 7


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"conftest": "import nowhere"}, ["exit code 4", "No module named 'nowhere'"]),
        ({"number": "NUMBER = ("}, ["exit code 4", "SyntaxError"]),
        ({"test_it": "def test_step(): input()"}, ["exit code 1", "reading from stdin"]),
        ({"conftest": "import os; os.kill(os.getpid(), 9)"}, ["killed by SIGKILL"]),
        ({"test_it": "def test_other(): pass"}, ["exit code 4", "not found"]),
        ({"test_it": "import pytest\ndef test_step(): pytest.skip('no')"}, ["exit code 0", "1 skipped"]),
    ],
)
def test_a_commit_that_cannot_be_measured_says_why(
    folder: Path, visits: Visits, files: dict[str, str], words: list[str]
) -> None:
    measured = visits.alone(commit(folder, **files), "test_it.py::test_step", launches=1)

    assert measured.results == []
    assert [word for word in words if word not in measured.why_not] == []


def test_a_commit_without_the_file_is_told_without_running_anything(folder: Path, visits: Visits) -> None:
    assert visits.alone(find_revision("HEAD", folder), "test_b.py", launches=1).why_not == "there is no test_b.py"


def test_a_commit_that_hangs_is_ended_in_time_with_all_that_it_started(folder: Path) -> None:
    text = """
        import os, subprocess, time
        daemon = subprocess.Popen(["sleep", "1000"], start_new_session=True)
        open("written.txt", "w").write("into the tree")
        open(os.environ["TMPDIR"] + "/pids", "w").write(f"{os.getpid()} {daemon.pid}")
        time.sleep(1000)
    """
    hanging = commit(folder, conftest="\n".join(line.strip() for line in text.splitlines()))
    begun = time.monotonic()
    visits = Visits(folder, folder, OPTIONS, timeout_s=3)
    measured = visits.alone(hanging, "test_it.py", launches=1)
    visits.close()
    pids = [int(pid) for pid in (folder / "tmp" / "pids").read_text().split()]

    assert measured.why_not.startswith("took longer than 3 s")
    assert time.monotonic() - begun < 30
    assert [pid for pid in pids if processes.is_alive(pid)] == []
    assert len(git(folder, "worktree", "list").splitlines()) == 1


def test_what_git_ignores_is_there_once_it_is_linked(folder: Path) -> None:
    (folder / "data.txt").write_text("5")
    head = commit(folder, number="NUMBER = int(open('data.txt').read())")
    visits = Visits(folder, folder, OPTIONS, timeout_s=60, links=[Path("data.txt")])

    assert value(visits, head) == 5
    assert visits.in_turns(head, "test_it.py", find_revision("HEAD~1", folder), pairs=3).why_not == ""
    visits.close()


def test_a_test_that_is_newer_than_the_commits_is_taken_along(folder: Path) -> None:
    new = TEST.replace("NUMBER}", "NUMBER + 100}")
    (folder / "test_new.py").write_text(new)
    head, good = find_revision("HEAD", folder), find_revision("HEAD~1", folder)
    visits = Visits(folder, folder, OPTIONS, timeout_s=60, taken=[Path("test_new.py")])
    alone = visits.alone(good, "test_new.py", launches=1).results[0]
    paired = visits.in_turns(head, "test_new.py", good, pairs=3).results[0]
    visits.close()

    assert next(m.value for m in alone.launches[0].measurements if m.name == "count") == 107
    assert len(paired.reference.launches) == 3
    assert git(folder, "status", "--porcelain", "--untracked-files=no") == ""


@pytest.mark.parametrize(
    "option", ["--distbench-update", "--distbench-against=main", "--distbench-json", "--distbench-launches=3"]
)
def test_options_that_a_visit_sets_itself_are_refused(option: str) -> None:
    with pytest.raises(ConfigurationError, match=f"leave out {option.partition('=')[0]}"):
        refuse(["--world-size", "2", option])

    refuse(["--world-size=2", "--distbench-against-tolerance=0.1", "-k", "x"])
