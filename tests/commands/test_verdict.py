"""distbench verdict: which exit code a run gets, and that git finds a commit with it; ranks are made up."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
from support.processes import LIMIT_S, wait_for
from support.repositories import git
from support.results import result, run, verdict

from pytest_distbench.commands.cli import main
from pytest_distbench.commands.runs import BAD, GOOD, SKIP, judge
from pytest_distbench.records.launch import LaunchRecord

FAILED = [LaunchRecord(index=0, outcome="failed", wall_s=1.0)]
COUNT: dict[str, Any] = {"metric": "count", "better": "exact"}
POINT = "step[message_bytes=8]"


@pytest.mark.parametrize(
    ("codes", "code"),
    [
        (["within-threshold", "better", "within-bound"], GOOD),
        (["beyond-threshold", "noise"], BAD),
        (["bound"], BAD),
        (["not-measured"], BAD),
        (["within-threshold", "noise"], SKIP),
        (["within-threshold", "low-power"], SKIP),
        (["no-baseline"], SKIP),
        (["other-workload"], SKIP),
        (["run-specific-workload"], SKIP),
        (["slower-machine"], SKIP),
        ([], SKIP),
    ],
)
def test_only_what_is_known_is_good_or_bad(codes: list[Any], code: int) -> None:
    assert judge(run(result(*map(verdict, codes))), metric="", is_exact=False)[0] == code


def test_a_search_counts_one_metric_or_exact_ones_alone() -> None:
    measured = run(result(verdict("beyond-threshold", metric=POINT), verdict("within-threshold", metric="other")))
    assert judge(measured, metric="other", is_exact=False) == (GOOD, "nothing is worse")
    assert judge(measured, metric="step", is_exact=False)[0] == BAD
    assert judge(measured, metric=POINT, is_exact=False)[0] == BAD
    assert judge(measured, metric="step[message_bytes=4]", is_exact=False) == (
        SKIP, "no verdict on step[message_bytes=4]"
    )  # fmt: skip

    measured = run(result(verdict("beyond-threshold"), verdict("within-threshold", **COUNT)))
    changed = run(result(verdict("within-threshold"), verdict("communication", metric="fingerprint", better="exact")))
    assert judge(measured, metric="", is_exact=True)[0] == GOOD
    assert judge(changed, metric="", is_exact=True)[0] == BAD
    assert judge(run(result(verdict("beyond-threshold"))), metric="", is_exact=True) == (
        SKIP, "no verdict on an exact metric"
    )  # fmt: skip

    failed = result(launches=FAILED, headline="rank 1 raised ValueError")
    besides = run(result(verdict("within-threshold")), failed_besides=1)
    assert judge(run(failed), metric="", is_exact=False) == (SKIP, f"{failed.nodeid}: rank 1 raised ValueError")
    assert judge(run(failed, result(verdict("beyond-threshold"))), metric="", is_exact=False)[0] == BAD
    assert judge(besides, metric="", is_exact=False)[0] == SKIP


def test_without_a_test_git_ends_its_search(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verdict", "--exact"]) == 128
    assert capsys.readouterr().out.startswith("no test: distbench verdict ")


def test_an_error_is_no_bad_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """git takes every code from 1 to 127 for a bad commit, but 125."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken_for_a_while.py").write_text("raise ImportError")

    assert main(["verdict", "--metric"]) == 128
    assert main(["verdict", "--exact=yes", "test_it.py"]) == 128
    assert main(["-p", "broken_for_a_while", "verdict", "test_it.py"]) == SKIP


def test_a_commit_whose_tests_cannot_be_imported_is_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """pytest ends with 2 then, as after Ctrl-C, which would end the search."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "test_it.py").write_text("import broken_for_a_while")

    assert main(["verdict", "test_it.py"]) == SKIP
    assert "skip: pytest ended with exit code 2 and measured nothing" in capfd.readouterr().out


def test_sigterm_ends_pytest_first(tmp_path: Path) -> None:
    test = "import os, time\n\ndef test_it():\n    open('up', 'w').write(str(os.getpid()))\n    time.sleep(1000)\n"
    (tmp_path / "test_it.py").write_text(test)
    command = [sys.executable, "-m", "pytest_distbench", "verdict", "test_it.py"]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_for(lambda: (tmp_path / "up").exists() and bool((tmp_path / "up").read_text()), process)
    process.terminate()

    assert process.wait(timeout=LIMIT_S) == 143
    assert not psutil.pid_exists(int((tmp_path / "up").read_text()))


def commit(folder: Path, count: int, **files: str) -> None:
    for name, text in {"number": f"NUMBER = {count}", **files}.items():
        (folder / f"{name}.py").write_text(text)
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", f"Commit {len(git(folder, 'log', '--all', '--oneline').splitlines())}")


def test_git_bisect_finds_the_commit_that_changed_an_exact_metric(pytester: pytest.Pytester) -> None:
    """One of the commits between cannot be measured."""
    folder, baselines = pytester.path / "project", pytester.path / "good"
    git(pytester.path, "init", "-q", "-b", "main", str(folder))
    test = "import number\n\ndef body(rank):\n    pass\n\ndef test_step(distbench):\n    distbench.run(body)\n"
    value = json.dumps({"step": 0.02, "count!exact": 0}).replace("0}", "%d}")
    conftest = f"import os, number\nos.environ['DISTBENCH_STAND_IN'] = {value!r} % number.NUMBER\n"
    (folder / "pytest.ini").write_text("[pytest]\npythonpath = .\ndistbench_launcher = stand-in\n")
    (folder / ".gitignore").write_text("__pycache__/\n.distbench/\n")
    commit(folder, 7, test_it=test, conftest=f"{conftest}pytest_plugins = ['pytest_distbench.testing']\n")
    options = ["test_it.py", "-q", "-p", "no:cacheprovider", f"--distbench-baselines={baselines}"]
    words = [sys.executable, "-m", "pytest", *options, "--distbench-update=all"]
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    subprocess.run(words, cwd=folder, env=environment, check=True, stdout=subprocess.DEVNULL)
    git(folder, "tag", "v1")
    commit(folder, 7, other="")
    commit(folder, 7, number="raise ImportError('broken for a while')")
    commit(folder, 8)
    commit(folder, 8, other="pass")
    git(folder, "bisect", "start", "HEAD", "v1")
    command = [sys.executable, "-m", "pytest_distbench", "verdict", "--exact", *options]
    done = subprocess.run(
        ["git", "bisect", "run", *command], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )

    assert "skip: pytest ended with exit code 4 and measured nothing" in done.stdout, done.stdout + done.stderr
    assert "bad: test_it.py::test_step[ws2]: count is changed: exact-number" in done.stdout
    assert "first bad commit could be any of" in done.stdout
    broken, injected = git(folder, "rev-parse", "main~2", "main~1").split()
    assert {line for line in done.stdout.splitlines() if re.fullmatch("[0-9a-f]{40}", line)} == {broken, injected}
