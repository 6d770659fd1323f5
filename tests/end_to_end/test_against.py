"""A/B with real process groups: turns never overlap, each side runs its own tree's code, and nothing is left behind."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import sysconfig
import uuid
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from support.launching import MadeLauncher, RunInside
from support.processes import LIMIT_S, wait_for

from pytest_distbench.launch.starters import LOOPBACK, Launcher
from pytest_distbench.launch.supervise import Side, run_interleaved
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.plan import BodyReference, LaunchPlan, Ranks

pytestmark = pytest.mark.spawn

BODIES = """
import time

def intervals(rank):
    begin, end = [], []
    for i in rank.timed("step", warmup=0, iterations=40):
        if i % 10 == 0:
            begin.append(time.monotonic())
        time.sleep(0.1)
        if i % 10 == 9:
            end.append(time.monotonic())
    rank.record("begin", begin)
    rank.record("end", end)

def at_once(rank):
    rank.record("one", 1, better="exact")

def raises(rank):
    for i in rank.timed("step", warmup=0, iterations=40):
        assert i < 15, "enough"

def dies(rank):
    import os
    for i in rank.timed("step", warmup=0, iterations=40):
        if i == 15 and rank.rank == 1:
            os._exit(3)

def hangs(rank):
    for i in rank.timed("step", warmup=0, iterations=40):
        if i == 15 and rank.rank == 1:
            time.sleep(100)

def endless(rank):
    for _ in rank.timed("step", warmup=0, iterations=3000):
        time.sleep(0.01)
"""

SUITE = """
    import answers

    def value(rank):
        rank.record("value", answers.VALUE, better="exact")
        rank.record("where", len(answers.__file__))

    def new(rank):
        rank.record("one", 1, better="exact")

    def test_value(distbench):
        distbench.run(value)

    def test_new(distbench):
        distbench.run(new)
"""

Pair = Callable[..., list[LaunchRecord | None]]


@pytest.fixture(scope="module")
def launchers(made_launcher: MadeLauncher) -> tuple[Launcher, Launcher]:
    """Two that outlive the tests: what happens to one pair must not harm the next."""
    made = made_launcher("warm"), made_launcher("warm", side=1)
    for launcher in made:
        launcher.prepare(variables())
    return made


@pytest.fixture
def pair(launchers: tuple[Launcher, Launcher], tmp_path: Path) -> Pair:
    (tmp_path / "turn_bodies.py").write_text(BODIES)

    def run(first: str, second: str, *, timeout_s: float = 30.0) -> list[LaunchRecord | None]:
        one, other = (plan(tmp_path, function, timeout_s) for function in (first, second))
        sides = [Side(launcher=lambda launcher=launcher: launcher) for launcher in launchers]
        records = run_interleaved([(one, sides[0]), (other, sides[1])])
        assert [launcher.leftovers() for launcher in launchers] == [[], []]
        return records

    return run


def variables() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", **LOOPBACK}  # as in a run: else its parents load torch again


def plan(folder: Path, function: str, timeout_s: float) -> LaunchPlan:
    directory = folder / uuid.uuid4().hex[:6]
    directory.mkdir(mode=0o700)
    return LaunchPlan(
        index=0,
        world_size=2,
        backend="gloo",
        device="cpu",
        work=Ranks(body=BodyReference(file=str(folder / "turn_bodies.py"), function=function, module="turn_bodies")),
        timeout_s=timeout_s,
        directory=str(directory),
        data_dir=str(folder),
        folder=str(folder),
        python_path=sys.path,
        variables=variables(),
        set_threads=1,
    )


def series(record: LaunchRecord | None, name: str) -> list[float]:
    assert record is not None
    return next(m.values for m in record.measurements if m.name == name)


def test_blocks_alternate_and_never_overlap_and_waiting_is_not_counted(pair: Pair) -> None:
    """Each side needs 4 s of its own, is given 7 s, and waits for 4 s more."""
    first, second = pair("intervals", "intervals", timeout_s=7.0)

    blocks = sorted(
        (begin, end, side)
        for side, record in enumerate((first, second))
        for begin, end in zip(series(record, "begin"), series(record, "end"), strict=True)
    )
    assert len(blocks) == 8
    assert all(before[1] <= after[0] for before, after in itertools.pairwise(blocks))
    assert all({a[2], b[2]} == {0, 1} for a, b in zip(blocks[::2], blocks[1::2], strict=True))


@pytest.mark.parametrize("function", ["raises", "dies", "hangs"])
def test_a_side_that_does_not_pass_ends_the_other_and_its_failure_is_reported(pair: Pair, function: str) -> None:
    first, second = pair(function, "endless", timeout_s=4.0 if function == "hangs" else 60.0)

    assert second is None
    assert first is not None
    assert first.outcome == "failed"
    assert first.wall_s < 60  # not at a time-out
    how = {fate.rank: fate.how for fate in first.fates if not fate.is_victim}
    assert {"raises": "AssertionError", "dies": "exit code 3", "hangs": "hung"}[function] in str(how)


@pytest.fixture
def repository(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A module and a test at one revision; another value, and another test, in the working tree."""
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    pytester.makeini("[pytest]\n")
    (pytester.path / ".gitignore").write_text("tmp/\n__pycache__/\nup*\n")
    (pytester.path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(pytester.path / "tmp"))
    pytester.makepyfile(answers="VALUE = 1", test_it=SUITE.replace("new", "old"))
    for command in (["init", "-q"], ["add", "-A"], ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "x"]):
        subprocess.run(["git", *command], cwd=pytester.path, check=True)
    pytester.makepyfile(answers="VALUE = 2", test_it=SUITE)
    return pytester


THREE = ("--distbench-launches=3:3", "test_it.py")


def worktrees(folder: Path) -> int:
    done = subprocess.run(["git", "worktree", "list"], cwd=folder, check=True, capture_output=True, text=True)
    return len(done.stdout.splitlines())


def test_each_side_runs_the_code_of_its_own_tree(repository: pytest.Pytester, run_inside: RunInside) -> None:
    result = run_inside(*THREE, "--distbench-against", "HEAD", "-rA")

    result.stdout.fnmatch_lines(
        ["value against HEAD (*): 2, baseline 1 (exact)", "*the test does not exist in HEAD (*"]
    )
    result.assert_outcomes(failed=1, passed=1)
    assert worktrees(repository.path) == 1


def test_another_python_needs_no_copy_of_the_plugin(repository: pytest.Pytester) -> None:
    """A virtual environment that has what ranks need, by a path file, and not this package's folder."""
    other = repository.path / "tmp" / "other"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", other], check=True)
    site = next(other.glob("lib/python*/site-packages"))
    (site / "needed.pth").write_text(sysconfig.get_path("purelib"))
    python = other / "bin" / "python"
    options = ("-v", "-o", f"distbench_against_python={python}", "-k", "test_value")
    result = repository.runpytest_subprocess(*THREE, *options)

    result.stdout.fnmatch_lines(["distbench: interleaved A/B against torch *, python *", "*value*2*2*exact*3"])
    result.assert_outcomes(passed=1, deselected=1)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_run_ended_from_outside_leaves_no_process_and_its_worktree_not_for_long(
    repository: pytest.Pytester, number: signal.Signals
) -> None:
    """The fixture no_process_left looks for processes of both sides; SIGKILL leaves the worktree to the next run."""
    body = """
        import os, time

        def value(rank):
            open(os.environ["UP"] + str(os.getpid()), "w").close()
            for _ in rank.timed("step", warmup=0, iterations=100000):
                time.sleep(0.01)

        def test_value(distbench):
            distbench.run(value)
    """
    repository.makepyfile(test_it=body)
    for command in (["add", "-A"], ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "y"]):
        subprocess.run(["git", *command], cwd=repository.path, check=True)
    command = [sys.executable, "-m", "pytest", "test_it.py", "--distbench-against=HEAD"]
    environment = {**os.environ, "UP": str(repository.path / "up")}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    wait_for(lambda: len(list(repository.path.glob("up*"))) == 4, process)
    process.send_signal(number)
    process.communicate(timeout=LIMIT_S)

    if number == signal.SIGKILL:
        assert worktrees(repository.path) == 2
        repository.makepyfile(test_it=SUITE)
        simulated = ("-p", "pytest_distbench.testing", "--distbench-launcher=stand-in")
        repository.runpytest_subprocess(*THREE, *simulated, "--distbench-against", "HEAD", "-k", "nothing or test_new")
    assert worktrees(repository.path) == 1


def test_a_script_finds_what_git_ignores_once_it_is_linked(repository: pytest.Pytester, run_inside: RunInside) -> None:
    """And a slowdown in the working tree alone is found, through the script's own clock too."""
    script = """
        import time

        tokens = open("ups/tokens.txt").read()
        for step in range(8):
            start = time.perf_counter()
            time.sleep(0.02)
            print(f"step {step}: {1e3 * (time.perf_counter() - start):.2f} ms")
    """
    test = r"""
        from pytest_distbench.read import stdout

        def test_train(distbench):
            times = stdout(r"([\d.]+) ms", scale=1e-3, unit="s", better="lower")
            distbench.run("train.py", world_size=1, read={"step_time": times})
    """
    repository.makepyfile(train=script, test_it=test)
    for command in (["add", "-A"], ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "y"]):
        subprocess.run(["git", *command], cwd=repository.path, check=True)
    (repository.path / "ups").mkdir()
    (repository.path / "ups" / "tokens.txt").write_text("tokens")
    repository.makepyfile(train=script.replace("0.02", "0.03"))

    lacking = run_inside(*THREE, "--distbench-against", "HEAD")
    lacking.assert_outcomes(failed=1)
    lacking.stdout.fnmatch_lines(["*ups/tokens.txt is in the working tree and not*distbench_against_link = ups*"])
    linked = run_inside(*THREE, "--distbench-against", "HEAD", "-o", "distbench_against_link=ups")
    linked.assert_outcomes(failed=1)
    linked.stdout.fnmatch_lines(["!  step_time *ms *ms*+*%*"])


def test_one_agent_serves_both_sides_whatever_their_paths(launchers: tuple[Launcher, Launcher]) -> None:
    """The launchers change sides from pair to pair, and the worktree's PYTHONPATH is another one."""
    for launcher in launchers:
        launcher.prepare(variables())
    before = {child.pid for child in psutil.Process().children()}
    for launcher in launchers:
        launcher.prepare({**variables(), "PYTHONPATH": "/elsewhere"})

    assert {child.pid for child in psutil.Process().children()} == before


def test_bodies_of_different_length_and_without_blocks_get_along(pair: Pair) -> None:
    assert [r and r.outcome for r in pair("at_once", "intervals")] == ["passed", "passed"]
