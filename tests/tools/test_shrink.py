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
from support.results import result, verdict
from support.results import run as run_record

from pytest_distbench.commands.cli import main
from pytest_distbench.machine import locks
from pytest_distbench.tools import shrink, shrinking
from pytest_distbench.tools.shares import Shares

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


SCATTERS = """
import time

import numbers_of

kept = []


def numbers(rank):
    rank.record("took", numbers_of.SLOW + numbers_of.LAST + numbers_of.DEAD, unit="s", better="lower")


def memory(rank):
    import torch
    kept.append(torch.ones(numbers_of.LAST * 2**18))
    numbers(rank)


def sleeps(rank):
    import torch
    for _ in rank.timed("step", warmup=1, iterations=5):
        for _ in range(numbers_of.LAST):
            time.sleep(torch.full((), 0.005).item())
"""


def use(project: Path, body: str, **changes: int) -> None:
    text = NUMBERS
    for name, value in changes.items():
        text = re.sub(rf"{name} = \d+", f"{name} = {value}", text)
    (project / "numbers_of.py").write_text(text)
    (project / "test_it.py").write_text(TEST.replace("step\n\ndef", f"{body} as step\n\ndef"))


@pytest.fixture
def scatters(project: Path) -> Path:
    """A project whose test records 9 s: by its time, by its memory, or as it is."""
    (project / "code_of.py").write_text(SCATTERS)
    use(project, "numbers")
    git(project, "commit", "-qam", "what scatters")
    return project


def added_by(patch: str) -> list[str]:
    return [line for line in patch.splitlines() if line.startswith("+") and not line.startswith("+++")]


def test_hunks_that_make_a_timing_slower_together_are_printed(
    scatters: Path, inside: None, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """Of 9 s that take 20 s now, one hunk adds 5 s, one 6 s, and one nothing."""
    del inside
    use(scatters, "numbers", SLOW=6, LAST=13, OTHER=2)
    before = left(scatters)
    code, patch, progress = shrunk(capfdbinary, "HEAD", "--", "test_it.py")

    assert (code, before) == (0, left(scatters)), progress
    assert added_by(patch) == ["+SLOW = 6", "+LAST = 13"]
    assert "  3 hunks: red: 100 % of the change, 2 pairs\n" in progress
    assert "  1 hunk (numbers_of.py:10): green: 55 % of the change, 2 pairs\n" in progress
    assert "2 of 3 hunks are enough, and the others are green: " in progress


def test_the_hunk_with_more_memory_is_found_with_a_launch_of_each_side(
    scatters: Path, inside: None, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    del inside
    use(scatters, "memory", LAST=107, OTHER=2, SLOW=2)
    code, patch, progress = shrunk(capfdbinary, "HEAD", "--", "test_it.py")

    assert code == 0, progress
    assert "+LAST = 107" in patch
    assert "1 of 3 hunks is enough, and the others are green: " in progress
    assert re.search(r"  1 hunk \(numbers_of\.py:10\): red: \d+ % of the change, 1 pair\n", progress)


def test_the_hunk_that_the_failure_names_is_tried_first(
    scatters: Path, inside: None, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """The line that sleeps has not changed, but calls an operator more often, which no noise hides.

    The hunk next to it has changed, and adds nothing.
    """
    del inside
    use(scatters, "sleeps", LAST=21, OTHER=2, SLOW=2)
    code_of = SCATTERS.replace("            time.sleep", "            len('')\n            time.sleep")
    (scatters / "code_of.py").write_text(code_of)
    code, patch, progress = shrunk(capfdbinary, "HEAD", "--", "test_it.py")

    assert code == 0, progress
    tries = [line for line in progress.splitlines() if line.startswith("  ")]
    line = next(n for n, text in enumerate(code_of.splitlines(), 1) if "len" in text)
    assert f"code_of.py:{line + 1} in sleeps" in progress
    assert tries[0].startswith(f"  1 hunk (code_of.py:{line}): green: ")
    assert "+LAST = 21" in patch
    assert "1 of 4 hunks is enough" in progress


def test_a_try_that_the_noise_does_not_decide_clears_no_hunk(
    scatters: Path,
    inside: None,
    capfdbinary: pytest.CaptureFixture[bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No try with fewer than all hunks is decided, so all of them stay."""
    del inside
    use(scatters, "numbers", SLOW=6, LAST=13, OTHER=2)
    monkeypatch.setattr(shrinking, "LAST_LOOK", 2)
    answers = iter([True])
    monkeypatch.setattr(Shares, "are_enough", lambda *_: next(answers, None))
    code, patch, progress = shrunk(capfdbinary, "HEAD", "--", "test_it.py")

    assert code == 0
    assert len(added_by(patch)) == 3
    assert "  1 hunk (numbers_of.py:10): unresolved: inconclusive: 55 % of the change, 2 pairs\n" in progress
    assert progress.splitlines()[-1].startswith("3 of 3 hunks are enough: ")

    code, _, progress = shrunk(capfdbinary, "HEAD", "--", "test_it.py")
    assert code == 2
    assert (
        "(inconclusive: 100 % of the change, 2 pairs): its pairs scatter too much: shrink it on a quieter" in progress
    )


def test_a_test_that_is_green_is_refused_with_what_is_known(
    project: Path, inside: None, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    del inside
    (project / "numbers_of.py").write_text(NUMBERS.replace("SLOW = 1", "SLOW = 1  # as before"))
    code, out, _ = shrunk(capfdbinary, "HEAD", "--", "test_it.py")

    assert code == 1
    assert "\ngreen: 2 exact metrics of 1 case are as in HEAD\n" in out
    assert "\ntook: unchanged" in out

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


def test_an_open_set_says_that_more_pairs_may_decide_it() -> None:
    record = run_record(result(verdict("noise", reason="not clear after 28 pairs")))
    told = list(shrink._why_not(record, "main", "test_it.py"))

    assert told[1:] == [
        "step: inconclusive: not clear after 28 pairs",
        "more pairs may decide it: --distbench-launches=5:60",
    ]


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
