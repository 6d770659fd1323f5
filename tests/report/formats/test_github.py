"""GitHub: annotations and summary follow what each case says of its outcome."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.results import result, verdict

from pytest_distbench.records.run import CaseResult
from pytest_distbench.report.formats.github import MAX_ANNOTATIONS, append_summary, summary, workflow_commands

WHERE = "file=suites/test_a.py,title=test_a[ws2]"


@pytest.mark.parametrize(
    ("case", "line"),
    [
        (result(verdict("regressed"), outcome="failed", headline="step +50 %"), f"::error {WHERE}::step +50 %25"),
        (
            result(verdict("missing"), outcome="failed", headline="no baseline for cpu-x"),
            f"::error {WHERE}::no baseline for cpu-x",
        ),
        (
            result(verdict("missing"), update="refused", outcome="failed", headline="not stored: x"),
            f"::error {WHERE}::not stored: x",
        ),
        (result(verdict("regressed"), outcome="xfailed", headline="bug 12"), f"::warning {WHERE}::expected: bug 12"),
        (result(verdict("inconclusive", reason="noisy")), f"::warning {WHERE}::inconclusive: step noisy"),
    ],
)
def test_a_case_is_annotated_by_its_outcome(case: CaseResult, line: str) -> None:
    assert workflow_commands([case]) == [line]


def test_a_class_of_machines_without_baselines_is_one_loud_warning() -> None:
    cases = [result(verdict("missing"))] * 30

    (line,) = workflow_commands(cases)
    assert line.startswith("::warning title=no baseline for ")
    assert "30 cases were measured, with nothing to compare with. Make baselines in a run with --dist" in line
    assert "nothing was judged, there is no baseline for this class" in summary(cases, max_bytes=5000)


def test_it_is_told_beside_what_failed_for_other_reasons() -> None:
    fallen = result(outcome="failed", headline="rank 1 killed by SIGKILL")
    beyond = result(verdict("beyond"), outcome="failed", headline="step 2 s, at most 1 s")
    lines = workflow_commands([result(verdict("missing")), fallen, beyond])

    assert [line.partition(" ")[0] for line in lines] == ["::error", "::error", "::warning"]
    assert "1 case was measured" in lines[-1]
    heading = summary([result(verdict("missing")), fallen, beyond], max_bytes=5000).splitlines()[0]
    assert "there is no baseline for this class of machine yet, 2 of 3 cases failed" in heading


def test_a_new_metric_among_those_that_are_stored_is_a_warning_of_its_own() -> None:
    lines = workflow_commands([result(verdict("missing", reason="none")), result(verdict("unchanged"))])

    assert lines == [f"::warning {WHERE}::missing: step none"]


@pytest.mark.parametrize(
    "case",
    [
        result(verdict("unchanged")),
        result(verdict("regressed"), update="changed"),
        result(verdict("missing"), update="new"),
        result(verdict("missing"), outcome="skipped", headline="no baseline"),
    ],
)
def test_what_is_as_it_should_be_is_not_annotated(case: CaseResult) -> None:
    assert workflow_commands([case]) == []


def test_a_flaky_test_is_one_warning_and_one_line_of_the_summary_however_many_cases_it_has() -> None:
    cases = [result(verdict("unchanged"), flaky=["step +50 %"])] * 2

    assert workflow_commands(cases) == [f"::warning {WHERE}::flaky: passed at attempt 2, before: step +50 %25"]
    assert summary(cases, max_bytes=5000).count("flaky: passed at attempt 2") == 1


def test_more_annotations_than_github_shows_are_counted() -> None:
    lines = workflow_commands([result(outcome="failed", headline="x")] * (MAX_ANNOTATIONS + 5))

    assert len(lines) == MAX_ANNOTATIONS + 1
    assert lines[-1] == "::error::5 more, see the job summary"


def test_an_annotation_stays_one_line() -> None:
    (line,) = workflow_commands([result(outcome="failed", headline="a\n::error::b\r\x1b[31m")])

    assert line == f"::error {WHERE}::a%0A\\::error::b\\r\\x1b[31m"


def test_the_summary_names_what_failed_above_the_table(tmp_path: Path) -> None:
    failed = result(verdict("missing"), outcome="failed", headline="no baseline | for <x>")
    append_summary(tmp_path / "summary.md", [failed, result(verdict("regressed"))])
    text = (tmp_path / "summary.md").read_text()

    assert "### distbench: 1 of 2 metrics failed, 1 of 2 cases failed" in text
    assert "- test_a[ws2]: no baseline &#124; for &lt;x&gt;" in text
    assert text.index("| regressed |") < text.index("| missing |")


def test_a_summary_keeps_below_the_limit() -> None:
    text = summary([result(verdict("regressed"))] * 1000, max_bytes=5000)

    assert len(text.encode()) <= 5000
    assert "more rows left out: see the run record" in text
