"""Suspicious tests, together with what else runs, stops and reports tests."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.fixtures import made_up_distbench
from support.projects import ALONE, Project, run, stored
from support.repositories import git

from pytest_distbench import testing
from pytest_distbench.plugin import confirm
from pytest_distbench.records.plan import LaunchPlan, LaunchRequest
from pytest_distbench.run.confirm import Allowance
from pytest_distbench.run.session import Session
from pytest_distbench.run.sources import Source

SUITE = """
    def body(rank):
        pass

    def test_step(distbench):
        distbench.run(body, tolerance=0.15)
"""
SHORT = ("--distbench-launches=3:3",)


@pytest.fixture
def suspicious(project: Project, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A project whose baseline is of a machine four times as fast, and whose tree has changed since.

    A step takes as long as a file of its tree says.
    """
    launches_of = Session.launches_of

    def beside(self: Session, request: LaunchRequest) -> Source:
        source = launches_of(self, request)
        source.why_not_interleaved = ""  # though its ranks are simulated
        return source

    monkeypatch.setattr(Session, "launches_of", beside)
    made = project(SUITE)
    (made.path / "seconds").write_text("0.02")

    def described(plan: LaunchPlan) -> Mapping[str, Any]:
        seconds = float((Path(plan.tree or made.path) / "seconds").read_text())
        return {"step": [seconds, 1.01 * seconds, 0.99 * seconds]}

    monkeypatch.setattr(testing, "_description", described)
    (made.path / ".gitignore").write_text("__pycache__/\n")
    assert run(made, "--distbench-update", *SHORT).ret == 0  # pytest-sugar counts in a line of its own
    [path] = stored(made)
    baseline = json.loads(path.read_text())
    step = baseline["entry"]["metrics"]["step"]
    step["launches"] = [value / 4 for value in step["launches"]]
    path.write_text(json.dumps(baseline))
    git(made.path, "init", "--quiet")
    git(made.path, "add", "--all")
    git(made.path, "commit", "--quiet", "--message", "baselines")
    add(made, "")
    return made


def add(project: pytest.Pytester, test: str) -> None:
    file = project.path / "test_it.py"
    file.write_text(f"{file.read_text()}\n# another line\n{test}")


@pytest.mark.parametrize("options", [[], ["--distbench-advisory"]])
def test_what_fails_for_another_reason_is_not_run_again(suspicious: pytest.Pytester, options: list[str]) -> None:
    add(suspicious, "def test_bad(distbench):\n    test_step(distbench)\n    assert False\n")
    result = run(suspicious, "-k", "bad", *SHORT, *options)
    result.assert_outcomes(failed=1)

    assert "confirming" not in result.stdout.str()


def test_a_run_that_is_stopped_reports_suspicious_cases_as_they_are(suspicious: pytest.Pytester) -> None:
    add(suspicious, "def test_stops():\n    import pytest\n    pytest.exit('enough')\n")
    result = run(suspicious, *SHORT)

    result.stdout.fnmatch_lines(["*? not confirmed by A/B: test_step[[]ws2]: the run was stopped*"])
    assert result.ret == pytest.ExitCode.INTERRUPTED


@pytest.fixture
def slower(suspicious: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """The same project, whose code is three times as slow, and pytest with its cache."""
    (suspicious.path / "seconds").write_text("0.06")
    monkeypatch.setenv("PYTEST_ADDOPTS", ALONE["PYTEST_ADDOPTS"].replace("-p no:cacheprovider ", ""))
    return suspicious


def test_an_advisory_case_is_confirmed_as_others_are(slower: pytest.Pytester) -> None:
    result = run(slower, "--distbench-advisory", *SHORT)

    assert result.ret == 0
    result.stdout.fnmatch_lines(["test_it.py ? *", "A", "A test_step?ws2?: step +*", "*= 1 advisory in *"])


FAILS = "def test_fails():\n    assert False\n"
FAILS_LATER = (
    "def body(rank):\n    pass\n\ndef test_later(distbench, kept):\n    distbench.run(body)\n    assert False\n"
)
KEPT = (
    "import pytest\n\npytest_plugins = ['pytest_distbench.testing']\n\n"
    "@pytest.fixture(scope='module')\ndef kept():\n    yield\n"
)
NEVER = "\ndef test_never():\n    assert False\n"


@pytest.mark.parametrize(
    ("option", "tests"),
    [
        ("-x", FAILS),
        ("--maxfail=2", FAILS + FAILS.replace("fails", "fails_too")),
        ("--stepwise", FAILS_LATER),
        ("--exitfirst", FAILS_LATER),
    ],
)
def test_a_run_that_failures_stop_confirms(slower: pytest.Pytester, option: str, tests: str) -> None:
    slower.makeconftest(KEPT)
    slower.makepyfile(test_later=tests + NEVER)
    result = run(slower, option, *SHORT)
    result.assert_outcomes(failed=1 + tests.count("def test_"))

    result.stdout.fnmatch_lines(["step: interleaved A/B with *", "FAILED test_it.py::test_step?ws2? - *"])
    again = run(slower, "--last-failed", "--collect-only", "-q").stdout.str()
    assert ("test_step" in again, "test_never" in again) == (True, False)


STOPS_SECOND = (
    "RUNS = []\n\n@pytest.fixture(autouse=True)\ndef stops():\n    RUNS.append(1)\n"
    "    if RUNS == [1, 1]:\n        raise Stop\n"
)
STOP = "import pytest\n\nclass Stop(KeyboardInterrupt):\n    pass\n\n"


@pytest.mark.parametrize(
    "more",
    [
        "def test_stops():\n    pytest.exit('enough')\n",
        "def test_stops():\n    raise Stop\n",
        STOPS_SECOND,  # while it is settled
    ],
)
def test_what_a_stopped_run_leaves_unconfirmed_is_run_again_as_what_failed(slower: pytest.Pytester, more: str) -> None:
    add(slower, STOP + more)
    result = run(slower, *SHORT)
    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.stdout.fnmatch_lines(["*? not confirmed by A/B: test_step[[]ws2]: the run was stopped*"])

    file = slower.path / "test_it.py"
    file.write_text(file.read_text().replace("== [1, 1]", "== 9"))
    again = run(slower, "--last-failed", *SHORT)
    again.assert_outcomes(failed=1)
    again.stdout.fnmatch_lines(["step: interleaved A/B with *", "FAILED test_it.py::test_step?ws2? - *"])


@pytest.mark.other_plugins
def test_where_another_plugin_runs_tests_again_it_does(suspicious: pytest.Pytester) -> None:
    result = run(suspicious, "--reruns=1", "-p", "no:xdist", *SHORT)

    text = "*? not confirmed by A/B: test_step[[]ws2]: pytest-rerunfailures may run its test again*"
    result.stdout.fnmatch_lines([text])


def suspect(takes_s: float, suspicion: float, *made_of: str) -> Any:
    result = SimpleNamespace(suspicion=suspicion, verdicts=[])
    return SimpleNamespace(
        takes_s=takes_s, likely_s=2 * takes_s, is_suspicious=suspicion >= 1, made_of=made_of, result=result
    )


@pytest.mark.parametrize(
    ("left_s", "keys"),
    [
        (100, ["quiet", "slow", "slower", "ratio"]),
        (60, ["slow", "slower", "ratio"]),
        (35, ["ratio", "slower"]),  # the loudest, with what it is made of
        (10, []),
    ],
)
def test_what_does_not_fit_leaves_the_loudest(left_s: float, keys: list[str]) -> None:
    suspects = {
        "quiet": suspect(40, 0.2), "slow": suspect(20, 2.0), "slower": suspect(30, 4.0),
        "ratio": suspect(0, 5.0, "slower", "measured enough"),
    }  # fmt: skip
    held = confirm.Held(None, [], SimpleNamespace(path=SimpleNamespace(suspects=suspects)))  # type: ignore[arg-type]

    assert list(held.that_fit(left_s)) == keys


def test_of_what_does_not_fit_the_suspicious_stay_unconfirmed_and_the_noisy_what_they_are(tmp_path: Path) -> None:
    distbench = made_up_distbench(Path(__file__), tmp_path)
    variant = SimpleNamespace(is_itself=False)
    made = {"quiet": suspect(40, 0.2), "slow": suspect(20, 2.0), "ratio": suspect(0, 5.0, "made of")}
    for each in made.values():
        each.variant = variant
    distbench.path.suspects.update(made)
    plugin = confirm.ConfirmPlugin(None, None)  # type: ignore[arg-type]
    held = confirm.Held(None, [], distbench)  # type: ignore[arg-type]
    rerun = plugin._rerun(held, ["ratio"], Allowance(7.0))

    assert list(rerun.suspects) == ["slow", "ratio"]
    assert re.fullmatch(r"it would take about 60 s, and the budget of 7 s has 7 s left: .*", rerun.left["slow"])
    assert dict(rerun.variants) == {"ratio": variant, "made of": variant}


TOO_LONG = "it would take about 83 s, and --distbench-confirm allows 60 s"
CONFIRMS = "by A/B against the baseline commit (budget 60 s), about"


@pytest.mark.parametrize(
    ("cases", "line"),
    [
        ([(83, 0.2)], f"no A/B for 1 noisy case: {TOO_LONG}"),
        (
            [(83, 0.2), (261, 2)],
            f"no A/B for 2 suspicious cases: {TOO_LONG}; more launches are compared with stored numbers",
        ),
        ([(83, 0.2), (20, 2)], f"confirming 1 suspicious case {CONFIRMS} 40 s"),
        ([(40, 2), (50, 0.5)], f"confirming 1 suspicious and 1 noisy cases {CONFIRMS} 60 s"),
    ],
)
def test_what_is_confirmed_is_announced_with_its_time_and_the_budget(
    cases: list[tuple[float, float]], line: str
) -> None:
    shown: list[str] = []
    reporter = SimpleNamespace(ensure_newline=lambda: None, write_line=shown.append)
    config = SimpleNamespace(pluginmanager=SimpleNamespace(getplugin=lambda _: reporter))
    plugin = confirm.ConfirmPlugin(config, SimpleNamespace(confirm_budget_s=60.0))  # type: ignore[arg-type]
    made = [SimpleNamespace(path=SimpleNamespace(suspects={"a": suspect(*each)})) for each in cases]
    plugin._announce([confirm.Held(None, [], each) for each in made])  # type: ignore[arg-type]

    assert shown == [f"distbench: {line}"]


def test_what_a_budget_is_too_small_for_is_decided_by_stored_numbers(slower: pytest.Pytester) -> None:
    result = run(slower, "--distbench-confirm=auto:1e-9", *SHORT)
    result.assert_outcomes(failed=1)

    counts = "*it would take about *: --distbench-confirm=auto:SECONDS; so the comparison with the stored baseline *"
    result.stdout.fnmatch_lines([counts, "FAILED *step +* %*"])


def test_a_file_of_results_has_each_test_once_with_how_it_ended(suspicious: pytest.Pytester) -> None:
    result = run(suspicious, "--junit-xml=results.xml", *SHORT)
    result.assert_outcomes(passed=1)

    text = (suspicious.path / "results.xml").read_text()
    assert (text.count("<testcase "), 'failures="0"' in text, 'tests="1"' in text) == (1, True, True)
