"""Texts of failed tests: the same questions are answered whatever the case was compared with."""

from __future__ import annotations

import pytest
from support.results import PAIRED, STORED, point, result, verdict

from pytest_distbench.records.run import ReferenceRecord
from pytest_distbench.records.verdict import Verdict
from pytest_distbench.report.texts.case_text import missing_text, regression_headline, regression_text, unaccepted_text

CHANGED = Verdict(metric="fingerprint", kind="changed", unit="", better="exact", reason="2 became 3")
EXACT = verdict("regressed", metric="steps", unit="", better="exact", current=3, baseline=2, limit=0.0)


@pytest.mark.parametrize(
    ("verdicts", "reference", "line"),
    [
        ([verdict("regressed")], STORED, "step +50.0 % (limit +10%)"),
        (
            [verdict("regressed", current=0.019, ratio=1.22)],
            STORED,
            "step +22.0 % in its fastest iterations (limit +10%)",
        ),
        ([verdict("regressed", current=0.019, ratio=1.22)], PAIRED, "step +22.0 % against main (123) (limit +10%)"),
        ([verdict("regressed")], PAIRED, "step +50.0 % against main (123) (limit +10%)"),
        ([verdict("regressed"), verdict("regressed")], STORED, "step +50.0 % (limit +10%), 2 of 2 metrics"),
        ([point(8), point(4096, "regressed")], STORED, "latency at 4 KiB +50.0 % (limit +10%), 1 of 2 sizes"),
        (
            [point(8), point(4096, "regressed")],
            PAIRED,
            "latency at 4 KiB +50.0 % against main (123) (limit +10%), 1 of 2 sizes",
        ),
        ([EXACT], STORED, "steps: 3, baseline 2 (exact)"),
        ([EXACT], PAIRED, "steps against main (123): 3, reference 2 (exact)"),
        ([CHANGED], STORED, "fingerprint changed: 2 became 3"),
        ([CHANGED], PAIRED, "fingerprint changed against main (123): 2 became 3"),
        ([verdict("regressed"), CHANGED], STORED, "step +50.0 % (limit +10%); the fingerprint changed"),
        (
            [verdict("regressed", current=None, ratio=None, reason="no value in 1 of 5 launches")],
            STORED,
            "step: no value (no value in 1 of 5 launches), baseline 20 ms",
        ),
    ],
)
def test_the_headline_says_what_moved_by_how_much_against_what(
    verdicts: list[Verdict], reference: ReferenceRecord, line: str
) -> None:
    assert regression_headline(result(*verdicts, reference=reference)) == line


def test_a_regression_against_a_baseline_tells_how_to_accept_it() -> None:
    lines = regression_text(result(verdict("regressed", reason="why")), command="pytest x").splitlines()

    assert lines == [
        "step +50.0 % (limit +10%)",
        "",
        "   metric  this run  baseline   change  limit  n",
        "!  step       30 ms     20 ms  +50.0 %   +10%  5",
        "",
        "step: why",
        "baseline  cpu-x  torch 2.13.0  baselines/x.json",
        "this run  cpu-x  torch 2.14.0",
        "differs   torch 2.13.0 -> 2.14.0",
        "",
        "If this change is intended:  pytest x --distbench-update",
    ]


def test_a_regression_against_another_revision_has_its_columns_and_no_update() -> None:
    text = regression_text(result(verdict("regressed", detectable=0.05), reference=PAIRED), command="pytest x")

    assert "   metric  this tree  reference   change  limit  finds  pairs" in text
    assert "reference  main (123)  torch 2.13.0\nthis tree  torch 2.14.0\n" in text
    assert text.endswith("again:  pytest x")
    assert "update" not in text


def test_what_is_not_accepted_names_the_option() -> None:
    improved = verdict("improved", ratio=0.5)
    text = unaccepted_text(result(improved), [improved], command="pytest x")

    assert text.startswith("step: improved: -50.0 %; --distbench-fail-on-improvement\n")
    assert text.endswith("If what was measured is right:  pytest x --distbench-update")


def test_a_missing_baseline_says_where_there_are_some() -> None:
    text = missing_text(result(verdict("missing")), platforms=["gpu-y"], command="pytest x")

    assert text.splitlines() == [
        "no baseline for cpu-x (have: gpu-y)",
        "",
        "looked in baselines/x.json for ws2.gloo.warm",
        "record it:  pytest x --distbench-update=new",
    ]
