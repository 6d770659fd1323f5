"""What the report of a test carries: over pytest-xdist's wire, and into what readers of JUnit files get."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.results import point, result, verdict

from pytest_distbench.plugin import carry


def make_report() -> pytest.TestReport:
    return pytest.TestReport("a.py::test_a", ("a.py", 1, "test_a"), {}, "passed", None, "call")


def over_the_wire(config: pytest.Config, report: pytest.TestReport) -> pytest.TestReport:
    """As pytest-xdist sends it."""
    data = config.hook.pytest_report_to_serializable(config=config, report=report)
    arrived = config.hook.pytest_report_from_serializable(config=config, data=json.loads(json.dumps(data)))
    assert isinstance(arrived, pytest.TestReport)
    return arrived


def test_a_report_without_ours_has_nothing() -> None:
    assert carry.test_of(make_report()) is None
    assert carry.texts_of(make_report()) == []
    assert carry.decode([]) == []


def test_the_name_and_the_cases_of_a_test_arrive_as_they_were(pytestconfig: pytest.Config) -> None:
    cases = [result(verdict("regressed")), result(point(4096), update="new")]
    report = make_report()
    carry.attach_test(report, "suites/test_a.py::test_a", "ws2")
    carry.attach_cases(report, cases)
    arrived = over_the_wire(pytestconfig, report)

    assert carry.test_of(arrived) == ("suites/test_a.py::test_a", "ws2")
    assert carry.decode(carry.texts_of(arrived)) == cases


def test_readers_of_junit_files_get_what_is_judged_and_did_not_stay() -> None:
    report = make_report()
    told = verdict("regressed", metric="slow")
    carry.attach_cases(report, [result(told, verdict("unchanged", metric="same"), verdict("missing", better="info"))])

    assert report.user_properties == [("distbench.slow", "regressed current=0.03 baseline=0.02")]


@pytest.mark.parametrize(
    ("cases", "letter"),
    [
        ([result(verdict("unchanged"))], None),
        ([result(verdict("missing"))], "N"),
        ([result(verdict("missing")), result(verdict("unchanged"))], None),
        ([result(verdict("missing"), verdict("missing", better="info"))], "N"),
        ([result(verdict("missing"), update="new")], "U"),
        ([result(verdict("regressed"), update="changed")], "U"),
        ([result(verdict("unchanged"), update="kept")], None),
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
    result = recorded.runpytest_subprocess(
        "-n", "2", "-p", "no:sugar", "-p", "no:cacheprovider", "--distbench-json=run.json"
    )

    result.stdout.fnmatch_lines(["2 metrics of 1 case in 1 launch: 2 within limits"])
    assert len(json.loads((recorded.path / "run.json").read_text())["results"]) == 1
