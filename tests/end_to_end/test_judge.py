"""The base judges a change: by its own tests and settings, over the change's library code, before the change runs.

All ways in which a change may loosen its gate, and healthy changes, are in ``benchmarks/judged_changes.py``.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import judged_changes
import pytest
from judged_changes import AGAINST, HEALTHY, JUDGE, LOOSENING, PYTEST, Change
from support.processes import LIMIT_S, wait_for
from support.projects import ALONE
from support.repositories import git

pytestmark = pytest.mark.spawn

Propose = Callable[[Change], Path]


@pytest.fixture
def propose(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Propose:
    """Makes a repository with a change on a branch, and returns its folder."""
    for name, value in {**ALONE, "GIT_CONFIG_GLOBAL": os.devnull, "LIBRARY_SIZE": ""}.items():
        monkeypatch.setenv(name, value)

    def propose(change: Change) -> Path:
        folder = tmp_path / "repository"
        folder.mkdir()
        git(folder, "init", "-q", "-b", "main")
        Change(files=judged_changes.BASE).make(folder)
        git(folder, "add", "-A")
        git(folder, "commit", "-q", "-m", "base")
        judged_changes.propose(change, folder)
        return folder

    return propose


def left(folder: Path) -> tuple[int, str]:
    """Worktrees, and what differs from the commit."""
    return git(folder, "worktree", "list").count("\n"), git(folder, "status", "--porcelain")


@pytest.mark.parametrize("name", ["library", pytest.param("a copy of our package", marks=pytest.mark.nightly)])
def test_a_change_that_loosens_its_gate_is_green_by_itself_and_red_by_its_base(propose: Propose, name: str) -> None:
    change = LOOSENING[name]
    folder = propose(change)
    alone, told = judged_changes.run(folder, "-m", "pytest", *change.by_itself)
    assert alone == 0, told
    judged, told = judged_changes.run(folder, *change.by_base, *AGAINST)

    assert judged == 1, told
    assert {"library": "not here: it does not skip in main"}.get(name, "size +100.0 % against main") in told
    assert left(folder) == (1, "")


def test_a_conftest_that_raises_changes_nothing_and_reports_are_written_where_they_were_asked_for(
    propose: Propose, tmp_path: Path
) -> None:
    change = Change(files={"conftest.py": "raise SystemExit('here')", "test_new.py": "def test_new(): assert False\n"})
    folder = propose(change)
    code, told = judged_changes.run(folder, *PYTEST, *AGAINST, "--junitxml=../junit.xml", "test_it.py")

    assert code == 0, told
    assert "files of this change were not used\n  conftest.py (changed)\n  test_new.py (new)\n" in told
    assert (tmp_path / "junit.xml").exists()
    assert left(folder) == (1, "")


@pytest.mark.nightly
def test_a_test_that_the_change_renames_with_its_code_fails_and_says_what_to_do(propose: Propose) -> None:
    folder = propose(HEALTHY["another name, in the test too"])
    code, told = judged_changes.run(folder, *JUDGE, *AGAINST)

    assert code == 1, told
    assert "cannot import name 'size' from 'library'" in told
    assert "if a test fails because it is to change, review them, and run without --distbench-judge" in told


def test_library_code_that_has_the_name_of_a_test_is_said_to_be_left_out(propose: Propose) -> None:
    library = "from test_sizes import SIZE\n\ndef size(layers):\n    return SIZE * layers\n"
    folder = propose(Change(files={"library.py": library, "test_sizes.py": "SIZE = 1\n"}))
    code, told = judged_changes.run(folder, *PYTEST, *AGAINST)

    assert code == 1, told
    assert "test_sizes.py of the change was not used: by its name or folder it judges, and is the base's" in told


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_judge_that_is_ended_from_outside_leaves_no_process_and_its_trees_not_for_long(
    propose: Propose, number: signal.Signals
) -> None:
    """SIGKILL leaves the trees to the next run."""
    endless = """
        import os, time

        def size(layers):
            if layers:
                open(os.environ["UP"] + str(os.getpid()), "w").close()
                time.sleep(1000)
            return 1
    """
    folder = propose(Change(files={"library.py": endless}))
    up = folder.parent / "up"
    process = subprocess.Popen(
        [sys.executable, *JUDGE, *AGAINST], cwd=folder, env={**os.environ, "UP": str(up)}, stdout=subprocess.DEVNULL
    )
    wait_for(lambda: bool(list(folder.parent.glob("up*"))), process)
    process.send_signal(number)
    process.wait(timeout=LIMIT_S)

    assert (process.returncode, left(folder)[0]) == ((-9, 3) if number == signal.SIGKILL else (143, 1))
    if number == signal.SIGKILL:
        shutil.copy(folder / "conftest.py", folder / "test_another.py")
        git(folder, "switch", "-q", "main")
        judged_changes.run(folder, *JUDGE, *AGAINST, "-k", "nothing")
    assert left(folder)[0] == 1
