"""GitHub: annotations and summary follow what each case says of its outcome."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path

import pytest
from support.results import STORED, end_of, result, run, verdict

from pytest_distbench.records.record import replace
from pytest_distbench.records.run import CaseResult, Finding
from pytest_distbench.report.formats import MAX_ANNOTATIONS, append_summary, summary, workflow_commands, write_comment
from pytest_distbench.report.terminal import headline, judged_nothing

WHERE = "file=suites/test_a.py,title=test_a[ws2]"


RED, NEW = verdict("beyond-threshold"), verdict("no-baseline")
ERROR, WARNING = f"::error {WHERE}::", f"::warning {WHERE}::"
UNSTORED = result(NEW, update="refused", outcome="failed", headline="not stored: x")


@pytest.mark.parametrize(
    ("case", "lines"),
    [
        (result(RED, outcome="failed", headline="step +50 %"), [f"{ERROR}step +50 %25"]),
        (result(NEW, outcome="failed", headline="no baseline for cpu-x"), [f"{ERROR}no baseline for cpu-x"]),
        (UNSTORED, [f"{ERROR}not stored: x"]),
        (result(RED, outcome="xfailed", headline="bug 12"), [f"{WARNING}expected: bug 12"]),
        (result(RED, outcome="advisory", headline="step +50 %"), [f"{WARNING}step +50 %25"]),
        (result(verdict("noise", reason="noisy")), [f"{WARNING}inconclusive: step noisy"]),
        (result(verdict("within-threshold")), []),
        (result(RED, update="changed"), []),
        (result(NEW, update="new"), []),
        (result(NEW, outcome="skipped", headline="no baseline"), []),
    ],
)
def test_a_case_is_annotated_by_its_outcome_unless_it_is_as_it_should_be(case: CaseResult, lines: list[str]) -> None:
    assert workflow_commands([case]) == lines


def test_github_gets_a_few_warnings_of_one_line() -> None:
    cases = [result(verdict("no-baseline"))] * 30
    (line,) = workflow_commands(cases)
    assert line.startswith("::warning title=no baseline for ")
    assert "30 cases were measured without a baseline. Record baselines in a run with --dist" in line
    text = summary(cases, headline(cases), max_bytes=5000)
    assert text.startswith("### distbench: none of 30 cases failed, 30 without a baseline\n")
    assert "Nothing was judged: there is no baseline for this platform yet." in text

    lines = workflow_commands([result(verdict("no-baseline", reason="none")), result(verdict("within-threshold"))])
    assert lines == [f"::warning {WHERE}::new: step none"]

    cases = [result(verdict("within-threshold"), flaky=["step +50 %"])] * 2
    assert workflow_commands(cases) == [f"::warning {WHERE}::flaky: passed at attempt 2, before: step +50 %25"]
    assert summary(cases, headline(cases), max_bytes=5000).count("flaky: passed at attempt 2") == 1

    lenient = result(verdict("beyond-threshold"), outcome="advisory", headline="step +50 % (advisory: flaky)")
    text = summary([lenient], headline([lenient]), max_bytes=5000)
    assert text.startswith("### distbench: 1 of 1 case would have failed (advisory): a timing regressed in test_a")
    assert "| regressed (advisory) | +50.0 % | step | test_a[ws2] |" in text
    assert "- test_a[ws2]" not in text, "each case stands there once"
    assert "<details>" not in text

    lines = workflow_commands([result(outcome="failed", headline="x")] * (MAX_ANNOTATIONS + 5))
    assert len(lines) == MAX_ANNOTATIONS + 1
    assert lines[-1] == "::error::5 more in the job summary"

    (line,) = workflow_commands([result(outcome="failed", headline="a\n::error::b\r\x1b[31m")])
    assert line == f"::error {WHERE}::a%0A\\::error::b\\r\\x1b[31m"

    text = summary([result(verdict("beyond-threshold"), verdict())] * 1000, "x", max_bytes=5000)
    assert len(text.encode()) <= 5000
    assert "more rows are left out; the run record has all" in text


UNCOMPARED = result(
    verdict(
        "other-software", metric="tokens", better="exact", reason="the number changed, and so did the software versions"
    ),
    reference=replace(STORED, software={"torch": "2.13.0"}),
)
SKIPPED = result(outcome="skipped", headline="not run: needs values")


@pytest.mark.parametrize(
    ("cases", "why"),
    [
        (
            [UNCOMPARED, SKIPPED],
            "test_a[ws2] tokens: the number changed, and so did the software versions (torch 2.13.0 -> 2.14.0)",
        ),
        ([SKIPPED], "test_a[ws2]: not run: needs values; add a test that runs here"),
        ([], "no test was measured (-rs says why); add one that runs here"),
    ],
)
def test_a_run_that_could_compare_nothing_says_so_in_one_line_everywhere(cases: list[CaseResult], why: str) -> None:
    told = f"judged nothing: {why}"
    assert workflow_commands(cases)[0].startswith(f"::warning title=judged nothing::{told}")
    lines = [line.text for line in end_of(cases) if line.text.startswith("judged nothing")]
    assert [line.startswith(told) for line in lines] == [True] * bool(cases)
    assert ("judged nothing" in summary(cases, headline(cases), max_bytes=5000)) == bool(cases)


@pytest.mark.parametrize(
    ("other", "text"),
    [
        (verdict("equal", better="exact"), ""),
        (verdict("no-baseline", better="exact"), ""),
        (verdict("within-threshold"), "judged nothing but memory and timings: test_a[ws2] tokens: the number"),
    ],
)
def test_a_run_that_compared_something_judged_that(other: Finding, text: str) -> None:
    assert judged_nothing([UNCOMPARED, result(other)])[: len(text) or None] == text


def test_the_summary_has_what_failed_in_words_its_numbers_and_the_rest_folded(tmp_path: Path) -> None:
    failed = result(verdict("no-baseline"), outcome="failed", headline="no baseline | for <x>")
    red = result(verdict("beyond-threshold"), verdict("within-threshold", metric="other"), outcome="failed")
    append_summary(tmp_path / "summary.md", [failed, red], besides=1)
    text = (tmp_path / "summary.md").read_text()

    assert (
        "### distbench: 1 other test or module failed, "
        "2 of 2 cases failed: no baseline &#124; for &lt;x&gt; in test_a[ws2]; a timing regressed" in text
    )
    assert "3 metrics on X, cpu-x: 1 regressed, 1 new, 1 unchanged" in text
    assert "- test_a[ws2]: no baseline &#124; for &lt;x&gt;" in text
    above, _, folded = text.partition("<details>\n<summary>The other 2 metrics</summary>")
    assert [word in above for word in ("| regressed |", "| new |", "| unchanged |")] == [True, False, False]
    assert [word in folded for word in ("| regressed |", "| new |", "| unchanged |")] == [False, True, True]
    assert text.endswith("</details>\n\n")


def test_a_comment_names_commit_and_run_and_has_the_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"SERVER_URL": "https://g.x", "REPOSITORY": "a/b", "RUN_ID": "7"}.items():
        monkeypatch.setenv(f"GITHUB_{name}", value)
    out = BytesIO()
    red = result(verdict("beyond-threshold", mde=0.25), outcome="failed", reference=STORED)
    write_comment(run(red, commit="0123456789abcdef", failed_besides=1), out)
    text = out.getvalue().decode()

    assert "### distbench: 1 other test or module failed, 1 of 1 case failed" in text
    assert "Measured: commit 0123456789, [this run](https://g.x/a/b/actions/runs/7)\n" in text
    assert "\n    pytest 'suites/test_a.py::test_a[ws2]'\n" in text
    assert "\n    pytest 'suites/test_a.py::test_a[ws2]' --distbench-update\n" in text

    assert "| verdict | change | metric | test | this run | baseline | threshold | detects from | n |" in text
    assert "| regressed | +50.0 % | step | test_a[ws2] | 30 ms |" in text
    assert text.index("| regressed |") < text.index("<details>"), "what failed stands above what is folded"
    assert "- test_a[ws2]" not in text, "the row says it"
    assert "| +25.0% |" in text

    sent = verdict(
        "communication", metric="fingerprint", better="exact", current=None, baseline=None,
        differences=["step: 1 all_reduce of 4 B was added", "step: 4 B sent per rank became 8 B"],
    )  # fmt: skip
    out = BytesIO()
    write_comment(run(result(sent, verdict("beyond-threshold"), outcome="failed", reference=STORED)), out)
    text = out.getvalue().decode()
    assert "| changed | step: 1 all_reduce of 4 B was added and 1 more | communication |  |" in text, (
        "below the other number of its case"
    )

    out = BytesIO()
    write_comment(run(replace(red, verdicts=[], outcome="passed")), out)
    assert "0 metrics on X, cpu-x\n" in out.getvalue().decode()
