"""Suspicious cases, confirmed by real process groups interleaved with those of the baseline commit."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from support.launching import RunInside
from support.processes import LIMIT_S
from support.repositories import git

pytestmark = [pytest.mark.spawn, pytest.mark.timeout(LIMIT_S)]

SUITE = """
    import work

    def body(rank):
        noise = [1 + 0.003 * ((7 * i + 3 * rank.launch) % 5) for i in range(10)]
        rank.record("step", [x * work.step() for x in noise], unit="s", better="lower")
        rank.record("answer", work.ANSWER, better="exact")

    def test_step(distbench):
        distbench.run(body, tolerance=0.15)
"""
WORK = "ANSWER = 1\n\ndef step():\n    return {seconds}\n"
"""Seconds are recorded, not measured: whatever else this machine does, they are these."""
SIZES = itertools.count(1)


@pytest.fixture
def project(pytester: pytest.Pytester, run_inside: RunInside) -> Path:
    """A repository whose second commit has recorded a baseline of a step of 20 ms."""
    pytester.makeini("[pytest]\n")
    pytester.makepyfile(test_it=SUITE)
    (pytester.path / ".gitignore").write_text("__pycache__/\n")
    write(pytester.path, 0.02)
    git(pytester.path, "init", "--quiet")
    commit(pytester.path, "code")
    run_inside("--distbench-update", "--distbench-launches=3").assert_outcomes(passed=1)
    commit(pytester.path, "baselines")
    return pytester.path


def write(project: Path, seconds: float, more: str = "") -> None:
    """Each time of another size: of one that it compiled in the same second Python takes what it has."""
    (project / "work.py").write_text(f"{WORK.format(seconds=seconds)}{more}{'#' * next(SIZES)}\n")


def commit(project: Path, message: str) -> str:
    git(project, "add", "--all")
    git(project, "commit", "--quiet", "--message", message)
    return git(project, "rev-parse", "--short=10", "HEAD").strip()


def make_baseline_faster(project: Path) -> str:
    """Record a machine that was four times as fast: the commit that did it."""
    [path] = (project / "baselines").rglob("*.json")
    stored = json.loads(path.read_text())
    step = stored["entry"]["metrics"]["step"]
    for numbers, name in ((step, "launches"), (step["spread"], "minimum"), (step["spread"], "p95")):
        numbers[name] = [value / 4 for value in numbers[name]]
    path.write_text(json.dumps(stored))
    return commit(project, "baselines of a fast machine")


def is_clean(project: Path) -> bool:
    """Neither worktree nor change is left."""
    return git(project, "worktree", "list").count("\n") == 1 and not git(project, "status", "--porcelain", "baselines")


def unwrapped(result: pytest.RunResult) -> str:
    """The screen, long lines as one."""
    return result.stdout.str().replace("\n    ", " ")


SEEN = """
import os, pathlib
with open({log!r}, 'a') as log:
    print({side!r}, pathlib.Path(__file__).parent, os.getppid(), file=log)
"""
PATIENT = "--distbench-confirm=auto:300"


def test_slower_code_is_red_and_seen_again_in_other_process_trees_with_the_paths_exchanged(
    project: Path, run_inside: RunInside, tmp_path: Path
) -> None:
    """The text has the paired figure and both commits."""
    log = tmp_path / "log"
    write(project, 0.021, SEEN.format(log=str(log), side="then"))  # else nothing of its baseline would be written
    run_inside("--distbench-update=all", "--distbench-launches=3").assert_outcomes(passed=1)
    recorded = commit(project, "baselines")
    log.unlink()
    write(project, 0.04, SEEN.format(log=str(log), side="now"))
    here = commit(project, "slower")
    result = run_inside(PATIENT, "--distbench-json=run.json")
    result.assert_outcomes(failed=1)

    result.stdout.fnmatch_lines([
        "distbench: confirming 1 suspicious case by A/B against the baseline commit (budget 300 s), about * s",
        "step +* % *(threshold +15%)",
        f"step: interleaved A/B with {recorded} (baseline commit): +* %; confirmed in new processes: +*",
        f"A/B        candidate ({here}) and twice {recorded}, the baseline commit: * times in * s",
    ])  # fmt: skip
    [found] = json.loads((project / "run.json").read_text())["results"]
    assert found["outcome"] == "failed"
    seen = {tuple(line.split()) for line in log.read_text().splitlines()}
    here = {place for side, place, _ in seen if side == "now"}
    [exchanged] = here - {str(project)}
    assert exchanged in {place for side, place, _ in seen if side == "then"}
    first = {p for side, place, p in seen if place == str(project) or (side, place) == ("then", exchanged)}
    second = {p for side, place, p in seen if (side, place) == ("now", exchanged) or place == f"{exchanged}-2"}
    assert (first & second, len(second)) == (set(), 3)
    assert is_clean(project)


BY_PLACE = "ANSWER = 1\n\ndef step():\n    return {now} if {slow} else {then}\n"


@pytest.mark.parametrize(
    "slow",
    [
        pytest.param("__import__('tempfile').gettempdir() not in __file__", id="by folder", marks=pytest.mark.nightly),
        pytest.param("__import__('os').stat(__file__).st_ino == {inode}", id="by inode", marks=pytest.mark.nightly),
    ],
)
def test_what_the_place_of_a_checkout_makes_slow_is_not_red(project: Path, run_inside: RunInside, slow: str) -> None:
    make_baseline_faster(project)
    write(project, 0.02)
    (project / "work.py").write_text(
        BY_PLACE.format(now=0.04, then=0.02, slow=slow.format(inode=(project / "work.py").stat().st_ino))
    )
    commit(project, "slow where it is")
    make_baseline_faster(project)
    (project / "work.py").write_text((project / "work.py").read_text() + "# more\n")
    result = run_inside(PATIENT)
    result.assert_outcomes(passed=1)

    result.stdout.fnmatch_lines(["*slower in one set of processes (+* % over * pairs), not in another one (*"])
    assert is_clean(project)


def test_the_same_tree_is_launched_again_before_the_machine_is_called_slower(
    project: Path, run_inside: RunInside
) -> None:
    recorded = make_baseline_faster(project)[:10]
    (project / "README").write_text("read me\n")
    git(project, "add", "README")
    git(project, "rm", "--cached", "--quiet", "README")
    result = run_inside()
    result.assert_outcomes(passed=1)

    result.stdout.fnmatch_lines(
        [f"*the code equals the baseline commit {recorded}*3 more launches are beyond*the machine*"]
    )
    assert "interleaved A/B with" not in result.stdout.str()


CONFTEST = "import os\n\ndef pytest_configure(config):\n    {line}\n"
SLOWED = "import os\nANSWER = 1\n\ndef step():\n    return 0.021 * int(os.environ.get('DEBUG', '1'))\n"


def test_what_pytest_evaluates_for_both_sides_is_not_cleared_by_turns(
    project: Path, run_inside: RunInside, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DEBUG", raising=False)
    (project / "work.py").write_text(SLOWED)
    (project / "conftest.py").write_text(CONFTEST.format(line="pass"))
    run_inside("--distbench-update=all", "--distbench-launches=3").assert_outcomes(passed=1)
    commit(project, "baselines")
    (project / "conftest.py").write_text(CONFTEST.format(line="os.environ['DEBUG'] = '2'"))
    commit(project, "slower, for both sides")
    result = run_inside()
    result.assert_outcomes(failed=1)

    result.stdout.fnmatch_lines(["*but conftest.py differs from *, and pytest runs it for both sides*"])


@pytest.mark.parametrize(
    "edit",
    [
        pytest.param("one digit", marks=pytest.mark.nightly),
        "moved",
        pytest.param("measured", marks=pytest.mark.nightly),
    ],
)
def test_slower_code_in_a_commit_that_touches_its_baseline_is_red(
    project: Path, run_inside: RunInside, edit: str
) -> None:
    [path] = (project / "baselines").rglob("*.json")
    stored = json.loads(path.read_text())
    step = stored["entry"]["metrics"]["step"]
    if edit == "one digit":
        step["launches"][0] *= 1.0001
    elif edit == "moved":
        git(project, "mv", "test_it.py", "test_moved.py")
        git(project, "mv", "baselines/" + path.parts[-4] + "/test_it", "baselines/" + path.parts[-4] + "/test_moved")
        path = project / "baselines" / path.parts[-4] / "test_moved" / Path(*path.parts[-2:])
        stored["test"] = stored["test"].replace("test_it.py", "test_moved.py")
    else:
        for numbers, name in ((step, "launches"), (step["spread"], "minimum"), (step["spread"], "p95")):
            numbers[name] = [value * 1.01 for value in numbers[name]]
    path.write_text(json.dumps(stored))
    write(project, 0.04)
    commit(project, "slower, and its own recorder")
    run_inside().assert_outcomes(failed=1)


def test_an_exact_red_is_never_confirmed_away(project: Path, run_inside: RunInside) -> None:
    make_baseline_faster(project)
    write(project, 0.02, "ANSWER = 2\n")
    result = run_inside()
    result.assert_outcomes(failed=1)

    assert "confirming" not in result.stdout.str()


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("raise SystemExit('not today')", "in *: *not today*"),
        ("import time; time.sleep(600)", "in *: *"),
    ],
)
def test_where_the_revision_does_not_run_the_stored_numbers_decide(
    project: Path, run_inside: RunInside, monkeypatch: pytest.MonkeyPatch, line: str, why: str
) -> None:
    monkeypatch.setattr("pytest_distbench.run.confirm.interleaved._GRACE_S", 3.0)
    write(project, 0.02, f"{line}\n")
    (project / "work.py").write_text(f"{line}\n" + WORK.format(seconds=0.02))
    make_baseline_faster(project)
    write(project, 0.02)
    result = run_inside()
    result.assert_outcomes(failed=1)

    result.stdout.fnmatch_lines(["step +300.* % (threshold +15%)", f"[?] not confirmed by A/B: test_step?ws2?: {why}*"])
    assert "; so the comparison with the stored baseline counts" in unwrapped(result)
    assert is_clean(project)


def test_a_slow_loader_is_red_though_git_ignores_what_it_reads(project: Path, run_inside: RunInside) -> None:
    reads = "\n_old_step = step\ndef step():\n    return float(open('data/train.bin').read()) * _old_step()\n"
    (project / ".gitignore").write_text("__pycache__/\ndata/\n")
    (project / "data").mkdir()
    (project / "data" / "train.bin").write_text("1.0")
    write(project, 0.021, reads)
    commit(project, "a loader")
    recording = run_inside("--distbench-update=all", "--distbench-launches=3")
    assert "reads data, which git ignores: A/B with another revision needs it; to link it, write " in unwrapped(
        recording
    )
    commit(project, "its baseline")
    assert "reads data" not in unwrapped(run_inside())
    write(project, 0.076, reads)
    result = run_inside()
    result.assert_outcomes(failed=1)

    result.stdout.fnmatch_lines(["step +261.* % (threshold +15%)", "[?] not confirmed by A/B: *data/train.bin *"])
    assert "To link it, write distbench_against_link = data into the ini file" in unwrapped(result)


@pytest.mark.parametrize(
    ("spoil", "text"),
    [
        (lambda project: None, "*its baseline is not committed: git add baselines/*"),
        (lambda project: (project / ".git").rename(project / "git"), "*the tests are not in a git repository*"),
    ],
    ids=["not committed", "no repository"],
)
def test_why_a_case_is_not_confirmed_is_one_line(
    project: Path, run_inside: RunInside, spoil: object, text: str
) -> None:
    make_baseline_faster(project)
    git(project, "reset", "--quiet", "--soft", "HEAD~1")
    assert callable(spoil)
    spoil(project)
    result = run_inside("--distbench-launches=:3")
    result.stdout.fnmatch_lines([f"*? not confirmed by A/B: test_step[[]ws2]: {text}"])


def test_always_confirms_what_is_not_suspicious_too(project: Path, run_inside: RunInside) -> None:
    write(project, 0.02, "# another line\n")
    result = run_inside("--distbench-confirm=always", "--distbench-json=run.json")
    result.assert_outcomes(passed=1)

    [found] = json.loads((project / "run.json").read_text())["results"]
    assert [v["kind"] for v in found["verdicts"] if v["metric"] == "step"] == ["unchanged"]
    assert found["confirmation"]["launches"]


@pytest.mark.parametrize(
    ("seconds", "renames"), [(0.02, ""), pytest.param(0.04, "", marks=pytest.mark.nightly), (0.08, "body")]
)
def test_a_test_that_moved_is_confirmed_where_it_was(
    project: Path, run_inside: RunInside, seconds: float, renames: str
) -> None:
    """A machine that was faster when its baseline was recorded, and the commit that moves it, slower or not.

    Where what it runs has another name too, the stored numbers decide.
    """
    make_baseline_faster(project)
    (project / "suites").mkdir()
    git(project, "mv", "test_it.py", "suites/test_other.py")
    (project / "conftest.py").write_text("")
    write(project, seconds)
    if renames:
        (project / "suites" / "test_other.py").write_text(textwrap.dedent(SUITE).replace(renames, "renamed"))
    move = ["baseline", "move", "test_it.py::test_step", "suites/test_other.py::test_step"]
    subprocess.run([sys.executable, "-m", "pytest_distbench", *move], cwd=project, check=True)
    commit(project, "moved")
    result = run_inside()

    result.assert_outcomes(passed=int(seconds == 0.02), failed=int(seconds != 0.02))
    if not renames:
        result.stdout.fnmatch_lines(["*(baseline commit): * over * pairs; *"])
    assert is_clean(project)


TRAINING = """
    import work

    def body(rank):
        losses = [3.0 - 0.07 * work.RATE * step - 1e-7 * work.ROUNDING * (step % 2) for step in range(12)]
        rank.record("loss", losses, better="curve")
        rank.record("final", losses[-1], better="same")

    def test_it(distbench):
        distbench.run(body)
"""


@pytest.fixture
def trained(pytester: pytest.Pytester, run_inside: RunInside) -> Path:
    """A repository whose second commit has recorded a training."""
    pytester.makeini("[pytest]\n")
    pytester.makepyfile(test_it=TRAINING)
    (pytester.path / ".gitignore").write_text("__pycache__/\n")
    (pytester.path / "work.py").write_text("RATE = 1.0\nROUNDING = 0\n")
    git(pytester.path, "init", "--quiet")
    commit(pytester.path, "code")
    run_inside("--distbench-update", "--distbench-launches=2").assert_outcomes(passed=1)
    commit(pytester.path, "baselines")
    return pytester.path


def record_another_environment(project: Path) -> None:
    """A baseline whose digits no code computes here."""
    [path] = (project / "baselines").rglob("*.json")
    stored = json.loads(path.read_text())
    metrics = stored["entry"]["metrics"]
    first, *later = metrics["loss"]["values"]
    metrics["loss"]["values"] = [first, *(value * 1.02 for value in later)]
    path.write_text(json.dumps(stored))
    commit(project, "baselines of another machine")


@pytest.mark.parametrize(
    ("code", "environment", "outcome", "text"),
    [
        # none as long as the first: Python would take what it compiled in the same second
        ("RATE = 1.0\nROUNDING = 1.0\n", False, "passed", "*still computes its own digits here: the code changed them"),
        ("RATE = 1.0\nROUNDING = 0\n# more\n", True, "passed", "*the environment changed the digits, not the code*"),
        ("RATE = 1.25\nROUNDING = 0\n", False, "failed", "*; compared with what * computes here"),
        pytest.param(
            *("RATE = 1.25\nROUNDING = 0\n", True, "failed", "*; compared with what * computes here"),
            marks=pytest.mark.nightly,
        ),
    ],
)
def test_digits_are_compared_with_those_that_the_baseline_commit_computes_here(
    trained: Path, run_inside: RunInside, code: str, environment: bool, outcome: str, text: str
) -> None:
    if environment:
        record_another_environment(trained)
    (trained / "work.py").write_text(code)
    result = run_inside("-rA")

    result.assert_outcomes(**{outcome: 1})
    result.stdout.fnmatch_lines([text])
    assert is_clean(trained)
