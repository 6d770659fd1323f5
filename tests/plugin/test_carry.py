"""What the plugin keeps of a run between its hooks and in reports, and how a finished case becomes an outcome."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from support.projects import TEST, Project, run
from support.results import point, result, verdict

from pytest_distbench.plugin import carry
from pytest_distbench.plugin.names import why_partial
from pytest_distbench.records.record import replace


def test_control_characters_of_ranks_do_not_reach_the_terminal(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = project(TEST.replace('"step":', r'"step[at=\x1b2J]":'))
    named = run(made, "-v").stdout.str()
    monkeypatch.setenv("DISTBENCH_STAND_IN_ERROR", "red \x1b[31m alarm \x07 \u202e")
    failed = run(made).stdout.str()

    assert "step[at=\\x1b2J]" in named
    assert "red \\x1b[31m alarm \\x07 \\u202e" in failed
    assert not {"\x1b", "\x07", "\u202e"} & set(named + failed)


def make_report(*, when: Any = "call", outcome: Any = "passed", longrepr: Any = None) -> pytest.TestReport:
    return pytest.TestReport("a.py::test_a", ("a.py", 1, "test_a"), {}, outcome, longrepr, when)


def test_numbers_go_to_the_item_too_whose_teardown_writers_of_junit_files_read() -> None:
    item, report = SimpleNamespace(user_properties=[("mine", 1)]), make_report()
    carry.attach_numbers(item, report, [result(verdict("beyond-threshold", metric="slow"))])  # type: ignore[arg-type]
    names = [name for name, _ in item.user_properties]
    carry.forget_numbers(item)  # type: ignore[arg-type]

    assert names == ["mine", "distbench.slow"]
    assert [name for name, _ in report.user_properties] == ["distbench.slow"]
    assert item.user_properties == [("mine", 1)]


def attempt(name: str, outcome: str, *cases: Any, longrepr: Any = None) -> Iterator[pytest.TestReport]:
    """The reports of a test that is run once; pytest-rerunfailures does not log the teardown of what it runs again."""
    for when in ("setup", "call", "teardown")[: 2 if outcome == "rerun" else 3]:
        report = make_report(when=when, **({"outcome": outcome, "longrepr": longrepr} if when == "call" else {}))
        carry.attach_test(report, "a.py::test_a", "", name)
        if when == "call":
            carry.attach_cases(report, cases)
        yield report


def taken(*attempts: Iterable[pytest.TestReport]) -> carry.Attempts:
    found = carry.Attempts()
    for report in itertools.chain(*attempts):
        found.take(report)
    return found


def test_of_a_test_that_is_run_again_the_last_attempt_counts_and_says_what_ended_the_others() -> None:
    slow, good = result(verdict("beyond-threshold")), result(verdict("within-threshold"))
    first = attempt("1", "rerun", slow, longrepr="\nRegression: +50 %\n  table")
    second = attempt("2", "rerun", slow, longrepr="password=hunter2")
    attempts = taken(first, second, attempt("3", "passed", good))

    assert attempts.cases() == [replace(good, flaky=["Regression: +50 %", "password=***"])]


def test_reports_of_subtests_count_that_come_before_the_others_of_their_attempt() -> None:
    slow, good = result(verdict("beyond-threshold")), result(verdict("within-threshold"))
    _, of_subtest, _ = attempt("2", "passed", good)

    assert taken(attempt("1", "rerun", slow), [of_subtest], attempt("2", "passed")).cases()[0].verdicts == good.verdicts


@pytest.mark.parametrize(
    ("cases", "letter"),
    [
        ([result(verdict("within-threshold"))], None),
        ([result(verdict("no-baseline"))], "N"),
        ([result(verdict("no-baseline")), result(verdict("within-threshold"))], None),
        ([result(verdict("no-baseline"), verdict("no-baseline", better="info"))], "N"),
        ([result(verdict("no-baseline"), update="new")], "U"),
        ([result(verdict("beyond-threshold"), update="changed")], "U"),
        ([result(verdict("within-threshold"), update="kept")], None),
        ([result(verdict("within-threshold")), result(verdict("beyond-threshold"), outcome="advisory")], "A"),
        ([result()], None),
        ([], None),
    ],
)
def test_a_test_is_new_where_nothing_of_it_has_a_baseline_and_updated_where_one_was_written(
    cases: list[Any], letter: str | None
) -> None:
    status = carry.status_of(cases)

    assert (status and status[1]) == letter


def test_xdist_workers_send_their_cases_to_the_controller(recorded: pytest.Pytester) -> None:
    result = recorded.runpytest_subprocess("-n", "2", "--distbench-json=run.json")

    result.stdout.fnmatch_lines(["* metric* (* unchanged), 1 launch* in *"])
    assert len(json.loads((recorded.path / "run.json").read_text())["results"]) == 1


def test_a_skip_of_ours_names_the_line_of_the_test_that_called(project: Project) -> None:
    made = project("""
        import pytest

        def body(rank):
            pass

        @pytest.fixture
        def prepared(distbench):
            distbench.check(body, world_size=9)

        def helped(distbench):
            distbench.check(body, world_size=8)

        def test_line(distbench):
            distbench.check(body, world_size=7)

        def test_helper(distbench):
            helped(distbench)

        def test_fixture(prepared):
            pass
    """)
    result = run(made, "--world-size", "2", "-rs")

    skips = [line for line in result.outlines if line.startswith("SKIPPED")]
    assert sorted(skips) == [
        "SKIPPED [1] test_it.py:11: not run: needs 8 ranks, 2 given",
        "SKIPPED [1] test_it.py:14: not run: needs 7 ranks, 2 given",
        "SKIPPED [1] test_it.py:19: not run: needs 9 ranks, 2 given",  # as of any fixture: the test
    ]


def test_a_report_without_ours_has_nothing() -> None:
    assert carry.test_of(make_report()) is None
    assert carry.texts_of(make_report()) == []
    assert carry.decode([]) == []


def test_the_name_and_the_cases_of_a_test_arrive_as_they_were(pytestconfig: pytest.Config) -> None:
    cases = [result(verdict("beyond-threshold")), result(point(4096), update="new")]
    report = make_report()
    carry.attach_test(report, "suites/test_a.py::test_a", "ws2", "1-1")
    carry.attach_cases(report, cases)
    hook, config = pytestconfig.hook, {"config": pytestconfig}
    data = json.dumps(hook.pytest_report_to_serializable(**config, report=report))
    arrived = hook.pytest_report_from_serializable(**config, data=json.loads(data))  # as pytest-xdist sends it

    assert isinstance(arrived, pytest.TestReport)
    assert carry.test_of(arrived) == ("suites/test_a.py::test_a", "ws2")
    assert carry.decode(carry.texts_of(arrived)) == cases


def test_a_test_that_failed_in_all_its_attempts_is_not_flaky() -> None:
    slow = result(verdict("beyond-threshold"))

    assert taken(attempt("1", "rerun", slow), attempt("2", "failed", slow)).cases() == [slow]


def test_an_attempt_that_ended_in_a_fixture_says_so_and_its_exceptions_text_is_one_line() -> None:
    crash = SimpleNamespace(reprcrash=SimpleNamespace(message="OSError: 'a'\nmore"))
    ended = make_report(when="setup", outcome="rerun", longrepr=crash)
    carry.attach_test(ended, "a.py::test_a", "", "1")
    assert taken([ended], attempt("2", "passed", result(verdict()))).cases()[0].flaky == ["OSError: 'a' (setup)"]


def why(
    *, args: Any = ("suites",), options: Any = None, deselected: int = 0, unreported: int = 0, **session: Any
) -> str:
    config = SimpleNamespace(getoption=lambda name, default=None: (options or {}).get(name, default), args=args)
    ended = {"exitstatus": pytest.ExitCode.OK, "testsfailed": 0, "shouldstop": False, "shouldfail": False} | session
    told: Any = SimpleNamespace(**ended)
    return why_partial(config, told, deselected=deselected, unreported=unreported)


def test_a_whole_green_run_knows_unused_baselines() -> None:
    assert why() == ""


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"options": {"keyword": "a"}}, "-k was given"),
        ({"options": {"lf": True}}, "--last-failed was given"),
        ({"args": ("a.py::test_a",)}, "single tests were named"),
        ({"unreported": 2}, "2 collected tests were not reported"),
        ({"deselected": 3}, "3 tests were deselected"),
        ({"exitstatus": pytest.ExitCode.TESTS_FAILED, "testsfailed": 2}, "2 tests failed"),
        ({"exitstatus": pytest.ExitCode.INTERRUPTED}, "the run failed"),
        ({"shouldstop": "enough"}, "the run was stopped early"),
    ],
)
def test_what_keeps_a_run_from_telling_is_named(given: dict[str, Any], reason: str) -> None:
    assert why(**given) == reason
