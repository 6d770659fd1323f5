"""distbench shrink, with real ranks: what it prints, when it refuses, and that nothing is left behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import pytest
from support.launching import RunInside
from support.repositories import git

from pytest_distbench.commands.cli import main
from pytest_distbench.machine import locks
from pytest_distbench.tools import shrink

pytestmark = pytest.mark.spawn

CODE = """
import numbers_of


def extra(x):
    return 0


def step(rank):
    rank.record("count", numbers_of.count(), better="exact")
    rank.record("other", numbers_of.OTHER, better="exact")
    rank.record("took", 0.25 * numbers_of.SLOW, unit="s", better="lower")
"""
NUMBERS = "OTHER = 1\n\n\nSLOW = 1\n\n\nDEAD = 1\n\n\nLAST = 7\n\n\ndef count():\n    return LAST\n"
TEST = "from code_of import step\n\ndef test_step(distbench):\n    distbench.run(step)\n"


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    git(pytester.path, "init", "-q", "-b", "main")
    (pytester.path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(pytester.path / "tmp"))
    pytester.makeini("[pytest]\npythonpath = .\n")
    (pytester.path / ".gitignore").write_text("tmp/\n__pycache__/\n.pytest_cache/\n.distbench/\n")
    pytester.makepyfile(code_of=CODE, numbers_of=NUMBERS, test_it=TEST)
    git(pytester.path, "add", "-A")
    git(pytester.path, "commit", "-q", "-m", "base")
    return pytester.path


@pytest.fixture
def inside(run_inside: RunInside, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pytest runs in this process, where torch is loaded, and what it prints is not looked at."""

    def run_pytest(arguments: Sequence[str], *, stdout: IO[bytes], variables: Mapping[str, str]) -> int:
        assert variables["PYTHONDONTWRITEBYTECODE"]
        result = run_inside(*arguments)
        stdout.write(str(result.stdout).encode())
        return int(result.ret)

    monkeypatch.setattr(shrink, "run_pytest", run_pytest)


Shrunk = tuple[int, str, str]


def shrunk(capfdbinary: pytest.CaptureFixture[bytes], *arguments: str) -> Shrunk:
    capfdbinary.readouterr()
    code = main(["shrink", *arguments])
    out, err = capfdbinary.readouterr()
    return code, out.decode(), err.decode()


def left(folder: Path) -> tuple[Any, ...]:
    """What git knows, and files below TMPDIR but for the lock of this host and a folder of torch's."""
    files = {path.name for path in (folder / "tmp").iterdir() if not path.name.endswith((".lock", ".queue"))}
    listed = ([*("worktree", "list")], [*("branch", "-a")], [*("status", "--porcelain")], ["diff", "--cached"])
    return *(git(folder, *command) for command in listed), {
        name for name in files if not name.startswith("torchinductor_")
    }


def test_the_fewest_hunks_are_printed_and_nothing_is_left(
    project: Path, inside: None, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """The test, which the revision does not have, stays. Three hunks are red only together; two of them fail alone."""
    del inside
    (project / "test_it.py").rename(project / "test_new.py")
    (project / "more.py").write_text("MORE = 5\n")
    changed = NUMBERS.replace("DEAD = 1", "DEAD = 22").replace("SLOW = 1", "SLOW = 1  # by now")
    (project / "numbers_of.py").write_text(
        f"import more\n\n\n{changed.replace('return LAST', 'return LAST + more.MORE')}"
    )
    (project / "README").write_text("new\n")
    before = left(project)

    code, patch, progress = shrunk(capfdbinary, "HEAD", "--", "test_new.py")

    assert (code, before) == (0, left(project)), progress
    lines = progress.splitlines()
    assert lines[0].startswith("HEAD (")
    assert lines[0].endswith(") and the working tree differ in 6 hunks, and in 1 of tests, which stay")
    assert "green" in progress
    assert re.search(r": unresolved: rank [01] raised ", progress)  # whichever was first
    assert lines[-1].startswith("3 of 6 hunks are enough, and the others are green: ")
    (project / "tmp" / "patch").write_text(patch[patch.index("diff --git") :])
    git(project, "stash", "-q", "-u")
    git(project, "apply", "tmp/patch")
    assert (project / "more.py").exists()
    assert (project / "numbers_of.py").read_text() == (
        f"import more\n\n\n{NUMBERS.replace('return LAST', 'return LAST + more.MORE')}"
    )
    assert not (project / "README").exists()


def test_a_test_that_is_green_or_red_for_what_is_noisy_is_refused_with_what_helps(
    project: Path, inside: None, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    del inside
    (project / "numbers_of.py").write_text(NUMBERS.replace("SLOW = 1", "SLOW = 9"))
    code, out, _ = shrunk(capfdbinary, "HEAD", "--", "test_it.py")

    assert code == 1
    assert "\ngreen: 2 exact metrics of 1 case are as in HEAD\n" in out
    assert "git bisect run distbench verdict --metric took test_it.py --distbench-against HEAD" in out

    (project / "numbers_of.py").write_text(NUMBERS.replace("return LAST", "raise ValueError('broken')"))
    code, out, _ = shrunk(capfdbinary, "HEAD", "--", "test_it.py")
    assert code == 1
    assert "raised ValueError" in out
    assert "git bisect run pytest test_it.py" in out

    (project / "numbers_of.py").write_text(f"{NUMBERS}\n\ndef new(rank):\n    rank.record('a', 1, better='exact')\n")
    (project / "test_new.py").write_text(TEST.replace("code_of", "numbers_of").replace("step", "new"))
    code, out, _ = shrunk(capfdbinary, "HEAD", "--", "test_new.py")
    assert code == 1
    assert "the test does not exist in HEAD (" in out


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["HEAD"], "shrink HEAD: no test; wanted distbench shrink REF -- test_a.py::test_b"),
        (["nowhere", "--", "test_it.py"], "has no commit of that name"),
        (["HEAD", "--", "test_it.py"], "nothing but tests differs from HEAD ("),
        (["HEAD", "--", "test_it.py", "-n2"], "one after the other: add -n0"),
        (["HEAD", "--", "test_missing.py"], "pytest ended with exit code 4 and measured nothing"),
        (["HEAD", "--", "pytest.ini", "tmp"], "collected 0 items"),
    ],
)
def test_what_cannot_be_shrunk_is_an_error_that_says_why(
    arguments: list[str], text: str, project: Path, inside: None, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    del inside
    (project / "test_it.py").write_text(f"{TEST}\n# changed\n")
    code, _, error = shrunk(capfdbinary, *arguments)

    assert code == 2
    assert text in error
    assert left(project)[-1] == set()


def test_a_wait_for_another_measurement_is_printed(
    project: Path, inside: None, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    del inside
    (project / "numbers_of.py").write_text(NUMBERS.replace("OTHER = 1", "OTHER = 2"))
    monkeypatch.setattr("tempfile.tempdir", str(project / "tmp"))
    waits = threading.Event()

    def hold() -> None:
        with locks.alone_on_this_host(on_wait=str):
            held.set()
            waits.wait()

    def holder(path: Path) -> tuple[str, int | None, bool]:
        waits.set()
        return "somebody else", None, False

    monkeypatch.setattr(locks, "_holder", holder)
    held, thread = threading.Event(), threading.Thread(target=hold)
    thread.start()
    held.wait()
    code, _, progress = shrunk(capfdbinary, "HEAD", "--", "test_it.py")
    waits.set()
    thread.join()

    assert code == 0
    assert "waiting for another measurement on this host: somebody else\n" in progress


def test_a_change_that_git_does_not_know_of_cannot_be_found(
    project: Path, inside: None, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """The working tree is red by a file that git ignores."""
    del inside
    (project / "numbers_of.py").write_text(
        f"{NUMBERS}\n\nif __import__('pathlib').Path('tmp/number').exists():\n    LAST = 8\n"
    )
    (project / "tmp" / "number").write_text("")
    (project / "code_of.py").write_text(CODE.replace("numbers_of.OTHER", "len(__file__) and numbers_of.OTHER"))
    code, _, error = shrunk(capfdbinary, "HEAD", "--", "test_it.py")

    assert code == 2
    assert "is red in the working tree, but not in HEAD (" in error
    assert "distbench_against_link" in error


def test_ctrl_c_leaves_nothing(project: Path) -> None:
    (project / "numbers_of.py").write_text(NUMBERS.replace("LAST = 7", "LAST = 8888"))
    before = left(project)
    command = [sys.executable, "-m", "pytest_distbench", "shrink", "HEAD", "--", "test_it.py", "-p", "no:cacheprovider"]
    process = subprocess.Popen(
        command, cwd=project, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("red: "):
            os.killpg(process.pid, signal.SIGINT)
    output, _ = process.communicate()

    assert (process.returncode, output) == (130, "")
    assert left(project) == before
