"""GitHub: annotations and summary follow what each case says of its outcome."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.results import result, verdict

from pytest_distbench.records.run import CaseResult
from pytest_distbench.report.formats import MAX_ANNOTATIONS, append_summary, summary, workflow_commands

WHERE = "file=suites/test_a.py,title=test_a[ws2]"


@pytest.mark.parametrize(
    ("case", "line"),
    [
        (
            result(verdict("beyond-threshold"), outcome="failed", headline="step +50 %"),
            f"::error {WHERE}::step +50 %25",
        ),
        (
            result(verdict("no-baseline"), outcome="failed", headline="no baseline for cpu-x"),
            f"::error {WHERE}::no baseline for cpu-x",
        ),
        (
            result(verdict("no-baseline"), update="refused", outcome="failed", headline="not stored: x"),
            f"::error {WHERE}::not stored: x",
        ),
        (
            result(verdict("beyond-threshold"), outcome="xfailed", headline="bug 12"),
            f"::warning {WHERE}::expected: bug 12",
        ),
        (
            result(verdict("beyond-threshold"), outcome="advisory", headline="step +50 %"),
            f"::warning {WHERE}::step +50 %25",
        ),
        (result(verdict("noise", reason="noisy")), f"::warning {WHERE}::inconclusive: step noisy"),
    ],
)
def test_a_case_is_annotated_by_its_outcome(case: CaseResult, line: str) -> None:
    assert workflow_commands([case]) == [line]


def test_github_gets_a_few_warnings_of_one_line() -> None:
    cases = [result(verdict("no-baseline"))] * 30
    (line,) = workflow_commands(cases)
    assert line.startswith("::warning title=no baseline for ")
    assert "30 cases were measured without a baseline. Record baselines in a run with --dist" in line
    assert "nothing was judged, there is no baseline for this platform" in summary(cases, max_bytes=5000)

    lines = workflow_commands([result(verdict("no-baseline", reason="none")), result(verdict("within-threshold"))])
    assert lines == [f"::warning {WHERE}::new: step none"]

    cases = [result(verdict("within-threshold"), flaky=["step +50 %"])] * 2
    assert workflow_commands(cases) == [f"::warning {WHERE}::flaky: passed at attempt 2, before: step +50 %25"]
    assert summary(cases, max_bytes=5000).count("flaky: passed at attempt 2") == 1

    lenient = result(verdict("beyond-threshold"), outcome="advisory", headline="step +50 % (advisory: flaky)")
    assert summary([lenient], max_bytes=5000).startswith("### distbench: 0 of 1 metrics failed\n")
    assert "- test_a[ws2]: step +50 % (advisory: flaky)" in summary([lenient], max_bytes=5000)

    lines = workflow_commands([result(outcome="failed", headline="x")] * (MAX_ANNOTATIONS + 5))
    assert len(lines) == MAX_ANNOTATIONS + 1
    assert lines[-1] == "::error::5 more in the job summary"

    (line,) = workflow_commands([result(outcome="failed", headline="a\n::error::b\r\x1b[31m")])
    assert line == f"::error {WHERE}::a%0A\\::error::b\\r\\x1b[31m"

    text = summary([result(verdict("beyond-threshold"))] * 1000, max_bytes=5000)
    assert len(text.encode()) <= 5000
    assert "more rows are left out; the run record has all" in text


@pytest.mark.parametrize(
    "case",
    [
        result(verdict("within-threshold")),
        result(verdict("beyond-threshold"), update="changed"),
        result(verdict("no-baseline"), update="new"),
        result(verdict("no-baseline"), outcome="skipped", headline="no baseline"),
    ],
)
def test_what_is_as_it_should_be_is_not_annotated(case: CaseResult) -> None:
    assert workflow_commands([case]) == []


def test_the_summary_names_what_failed_above_the_table(tmp_path: Path) -> None:
    failed = result(verdict("no-baseline"), outcome="failed", headline="no baseline | for <x>")
    append_summary(tmp_path / "summary.md", [failed, result(verdict("beyond-threshold"))])
    text = (tmp_path / "summary.md").read_text()

    assert "### distbench: 1 of 2 metrics failed, 1 of 2 cases failed" in text
    assert "- test_a[ws2]: no baseline &#124; for &lt;x&gt;" in text
    assert text.index("| regressed |") < text.index("| new |")
