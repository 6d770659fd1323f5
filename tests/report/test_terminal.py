"""The section at the end of a run."""

from __future__ import annotations

import pytest
from support.results import PAIRED, STORED, end_of, result, verdict

from pytest_distbench.judging.remarks import flaky_tests
from pytest_distbench.records.iteration import NOT_RECORDED, TRAINING_STEP, CaseTrace, Fingerprint
from pytest_distbench.records.reasons import ReasonCode
from pytest_distbench.records.record import replace
from pytest_distbench.records.run import CaseResult, OtherSideRecord
from pytest_distbench.report.terminal import interrupted_lines
from pytest_distbench.report.verdicts import case_table


@pytest.mark.parametrize(
    ("reference", "line"),
    [
        (STORED, "software differs from the baselines': torch 2.13.0 -> 2.14.0 (2 cases)"),
        (PAIRED, "software differs from the baseline's: torch 2.13.0 -> 2.14.0 (2 cases)"),
    ],
)
def test_changed_software_is_reported_once(reference: OtherSideRecord, line: str) -> None:
    lines = end_of([result(verdict(), reference=reference)] * 2)

    assert [found.text for found in lines if "software" in found.text] == [line]


def test_remarks_about_a_run_are_printed_once() -> None:
    made = result(verdict(), reference=STORED)
    failed = replace(made, launches=[replace(made.launches[0], outcome="failed")])
    assert [found.text for found in end_of([failed]) if "software" in found.text] == []

    why = f"{NOT_RECORDED} torch 2.7.1 on gloo"
    blind = result(verdict("other-workload", metric="fingerprint", reason=f"step: {why}"))
    launches = [replace(blind.launches[0], fingerprints={key: Fingerprint(missing=why) for key in ("step", "other")})]
    lines = end_of([replace(blind, launches=launches)] * 2)
    assert [line.text for line in lines if NOT_RECORDED in line.text] == [f"no fingerprint of 2 cases: {why}"]

    seen = result(verdict())
    undescribed = replace(seen, launches=[replace(seen.launches[0], undescribed_collectives=3)])
    lines = end_of([seen, undescribed, undescribed])
    [line] = [line.text for line in lines if "no fingerprint" in line.text]
    assert line.startswith("no fingerprint: test_a[ws2] and 1 more: what the body sends is not compared; wrap its loop")

    cases = [result(verdict(), nodeid=f"a.py::test_{i}", flaky=["no luck"]) for i in range(12)]
    lines = end_of(cases)
    assert ("test_0 is flaky: passed at attempt 2, before: no luck", "plain") in lines
    assert ("2 more tests are flaky", "plain") in lines

    verdicts = [verdict("beyond-threshold"), verdict(metric="other")]
    assert case_table(result(*verdicts), show_all=False)[-1].text == "  1 more within their thresholds (-v shows all)"
    beside = result(*verdicts, reference=PAIRED)
    assert case_table(beside, show_all=False)[-1].text == "  1 more unchanged (-v shows all)"


@pytest.mark.parametrize(
    ("code", "reasons", "lines"),
    [
        ("slower-machine", ["3 launches are beyond"] * 3, 1),
        ("other-workload", ["another unit", "another model", "another unit"], 1),
    ],
)
def test_a_reason_of_many_cases_is_one_line(code: ReasonCode, reasons: list[str], lines: int) -> None:
    made = [result(verdict(code, reason=reason), reference=STORED) for reason in reasons]
    told = [line.text for line in end_of(made)]
    found = [text for text in told if reasons[0][-8:] in text or reasons[1][-8:] in text]

    assert len(found) == lines
    assert f"and {4 - lines - 1} more of {4 - lines} cases: {reasons[0]}" in found[0]


@pytest.mark.parametrize(
    ("launches", "is_elastic", "is_warned"), [(5, False, False), (4, False, True), (3, True, False), (2, True, True)]
)
def test_a_baseline_of_fewer_launches_than_usual_is_reported(launches: int, is_elastic: bool, is_warned: bool) -> None:
    case = result(verdict("no-baseline"), update="new")
    conditions = replace(case.case.conditions, engine="stock" if is_elastic else "")
    case = replace(case, case=replace(case.case, conditions=conditions), launches=case.launches * launches)
    assert any("their noise is not known" in line.text for line in end_of([case])) is is_warned


def case(kind: str, name: str) -> CaseResult:
    made = result(verdict(kind, reason="noisy"))
    return replace(made, case=replace(made.case, test="a.py::!x", id=name))


def test_a_flaky_test_is_reported_once_with_its_attempts_and_the_first_failure() -> None:
    flaky = result(verdict(), flaky=["step +50 %", "step +60 %"])

    assert flaky_tests([flaky, flaky, result(verdict(), nodeid="a.py::test_b")]) == {
        flaky.nodeid: "flaky: passed at attempt 3, before: step +50 %"
    }


@pytest.mark.parametrize(
    ("stored", "running", "left", "line"),
    [
        (0, 0, 0, "interrupted before the first test: nothing is stored"),
        (0, 0, 5, "interrupted before the first test: nothing is stored; 5 were to follow"),
        (0, 1, 0, "interrupted: 0 cases are stored, and nothing of the test that was running"),
        (1, 0, 1, "interrupted: 1 case is stored; 1 was to follow"),
        (2, 2, 0, "interrupted: 2 cases are stored, and nothing of the tests that were running"),
    ],
    ids=["in collection", "in preparation", "in the only test", "between two tests", "on two workers"],
)
def test_an_interrupted_update_says_when_it_was(stored: int, running: int, left: int, line: str) -> None:
    cases = [result(verdict(), update="new")] * stored

    assert interrupted_lines(cases, running=running, left=left, command="")[0].text == line


@pytest.mark.parametrize(
    ("code", "update", "verbosity", "is_reported"),
    [
        ("no-baseline", "", 0, True),
        ("no-baseline", "new", 0, True),
        ("within-threshold", "", 0, False),
        ("within-threshold", "", 1, True),
    ],
)
def test_a_training_without_a_judged_loss_is_reported_until_there_is_a_baseline(
    code: str, update: str, verbosity: int, is_reported: bool
) -> None:
    then = None if code == "no-baseline" else 0.02
    found = result(verdict(code, baseline=then), update=update)
    launches = [replace(found.launches[0], fingerprints={TRAINING_STEP: Fingerprint(totals={"optimizer_steps": 2})})]
    lines = end_of([replace(found, launches=launches)], verbosity=verbosity)

    assert any("nothing judges whether it learns" in line.text for line in lines) is is_reported


def test_a_trace_is_reported_with_its_file_and_with_what_it_lacks() -> None:
    told = [
        CaseTrace(path="a.gz", of_ranks=["a"]),
        CaseTrace(path="b.gz", why_not="HEAD: it failed"),
        CaseTrace(why_not="a pool"),
        None,
    ]
    cases = [replace(result(verdict()), trace=trace) for trace in told]
    lines = end_of(cases)

    assert [line.text for line in lines if "trace" in line.text] == [
        "trace of test_a[ws2]: a.gz",
        "trace of test_a[ws2]: a",
        "trace of test_a[ws2]: b.gz",
        "? trace of test_a[ws2]: not whole: HEAD: it failed",
        "? trace of test_a[ws2]: none: a pool",
    ]
