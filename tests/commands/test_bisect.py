"""distbench bisect: what it prints, that it goes on where it stopped, and how it refuses; ranks are made up."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.bisections import make_history
from support.processes import wait_for
from support.repositories import git

from pytest_distbench.commands.cli import main

TEST = """
def body(rank):
    pass

def test_step(distbench):
    distbench.run(body)
"""


def measures(count: int, *, factor: float = 1.0, more: str = "") -> dict[str, str]:
    """A commit at which the test measures this."""
    metrics = {"step": [0.02, 0.0202, 0.0199, 0.0201], "count!exact": count}
    values = {"DISTBENCH_STAND_IN": json.dumps(metrics), "DISTBENCH_STAND_IN_FACTOR": str(factor)}
    conftest = f"import os\nos.environ.update({values})\n{more}\npytest_plugins = ['pytest_distbench.testing']\n"
    return {"conftest.py": conftest}


FILES = {
    "test_it.py": TEST,
    "pytest.ini": "[pytest]\ndistbench_launcher = stand-in\n",
    ".gitignore": "tmp/\n__pycache__/\n",
    **measures(7),
}


@pytest.fixture
def folder(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Path:
    (pytester.path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(pytester.path / "tmp"))
    monkeypatch.setenv("TMPDIR", str(pytester.path / "tmp"))
    return pytester.path


def bisect(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    capsys.readouterr()
    code = main(["bisect", *arguments])
    printed = capsys.readouterr()
    return code, printed.out + printed.err


def left_behind(folder: Path) -> list[str]:
    worktrees = git(folder, "worktree", "list").splitlines()[1:]
    return [*worktrees, *(path.name for path in (folder / "tmp").glob("distbench-*"))]


def test_an_exact_change_is_found_past_commits_that_do_not_build_and_the_answer_is_kept(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_history(folder, [FILES, {}, {"conftest.py": "import nowhere"}, measures(7), {}, measures(8), {}, {}])
    (folder / "conftest.py").write_text("raise Exception")
    code, text = bisect(capsys, "HEAD~7", "HEAD", "--", "test_it.py")

    assert code == 0, text
    assert "7 commits after GOOD, HEAD~7 (" in text
    assert "what is not committed is not looked at" in text
    assert "follows count of test_it.py::test_step[ws2]: exact: 7 -> 8" in text
    assert re.search(r"found in \d visits, \d+ s:\n  [0-9a-f]{10}  .*  a: Commit 5\n  count: exact: 7 -> 8\n", text)
    assert re.search(r"pytest 'test_it.py::test_step\[ws2\]' --distbench-against HEAD~\n$", text)
    assert left_behind(folder) == []

    again = bisect(capsys, "HEAD~7", "HEAD", "test_it.py")[1]
    assert "of an earlier search; --restart forgets them" in again
    assert again.partition("found in")[2] == text.partition("found in")[2]
    [kept] = (folder / ".git" / "distbench").glob("*.json")
    kept.write_text("{")
    anew = bisect(capsys, "HEAD~7", "HEAD", "--most-visits", "1", "test_it.py")
    assert "begins anew: what an earlier search has left, not a bisection" in anew[1]
    assert anew[0] == 1
    assert "the same command with a larger --most-visits goes on" in anew[1]
    assert kept.with_suffix(".kept").read_text() == "{"


def test_a_clock_is_found_in_turns_also_where_it_became_faster(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_history(folder, [FILES, {}, measures(7, factor=0.8), {}])
    code, text = bisect(capsys, "HEAD~3", "HEAD", "--", "test_it.py::test_step", "-k", "step")

    assert code == 0, text
    assert "nothing exact differs; BAD and GOOD in turns ..." in text
    assert re.search(r"follows step of test_it.py::test_step\[ws2\]: -20.0 % \(20\.?\d* ms -> 16\.?\d* ms\)", text)
    assert re.search(r"found in \d visits?, \d+ s, \d+% sure:", text)
    assert "a: Commit 2\n  step: -20.0 % over " in text


def test_where_nothing_differs_it_says_what_would_have_been_found(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_history(folder, [FILES, {}])
    code, text = bisect(capsys, "HEAD~1", "HEAD", "--metric", "step", "--", "test_it.py")

    assert code == 1
    assert re.search(r"GOOD and BAD do not differ, .*\n  step: unchanged, .*; would have found \+\d+%\n$", text)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "bisect: no test: distbench bisect GOOD BAD -- test_a.py::test_b"),
        (["--", "-k", "x"], "bisect: no test"),
        (["tests"], "bisect: tests: wanted one test file, or a test in it"),
        (["test_it.py", "--distbench-update"], "bisect: leave out --distbench-update"),
        (["--take", "nothing.py", "test_it.py"], "--take nothing.py: wanted a file of the working tree"),
        (["--link", "nothing", "test_it.py"], "there is no .*nothing that could be linked"),
        (["test_other.py"], "cannot be measured: there is no test_other.py.*--take test_other.py"),
    ],
)
def test_what_cannot_be_done_is_told(
    folder: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    make_history(folder, [FILES, {}])
    code, text = bisect(capsys, "HEAD~1", "HEAD", *arguments)

    assert code == 2
    assert re.search(words, text)
    assert left_behind(folder) == []


@pytest.mark.parametrize("option", ["--most-visits=0", "--timeout=soon"])
def test_numbers_are_checked(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["bisect", "a", "b", option, "test_it.py"])

    assert "is not a whole number from 1" in capsys.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_search_leaves_nothing_behind_and_goes_on(
    folder: Path, capsys: pytest.CaptureFixture[str], number: signal.Signals
) -> None:
    waits = "import time\nopen(os.environ['TMPDIR'] + '/up', 'w').close()\ntime.sleep(1000)\n"
    make_history(folder, [FILES, {}, measures(7, more=waits), measures(8), {}])
    words = ["bisect", "HEAD~4", "HEAD", "--", "test_it.py"]
    command = [sys.executable, "-m", "pytest_distbench.commands.cli", *words]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=os.environ)
    wait_for((folder / "tmp" / "up").exists, process)
    process.send_signal(number)
    told = process.communicate(timeout=60)[0]

    assert process.returncode == 130
    assert "interrupted: the same command goes on from here" in told
    assert left_behind(folder) == []
    goes_on = bisect(capsys, *words[1:3], "--timeout", "2", "test_it.py")[1]
    assert "goes on after 0 visits of an earlier search" in goes_on
    assert "took longer than 2 s" in goes_on
