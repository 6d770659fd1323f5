"""The tables of verdicts: those of a run, and of planted slowdowns."""

from __future__ import annotations

import pytest
from support.results import PAIRED, result, verdict

from pytest_distbench.records.record import replace
from pytest_distbench.records.run import Control
from pytest_distbench.report.tables import CONTROL, VERDICTS


def test_each_clock_is_a_row_with_what_was_planted_and_seen() -> None:
    verdicts = [verdict("beyond-threshold", ratio=1.19), verdict("noise", metric="rate", better="higher", ratio=0.9)]
    control = Control(share=0.25, step="turns", verdicts=verdicts, launches=16, took_s=4.0)
    section = CONTROL.table([result(), replace(result(), control=control)])

    assert section.texts == [
        ["test_a[ws2]", "step", "+25.0 %", "+19.0 %", "yes", "turns", "16", "4 s"],
        ["test_a[ws2]", "rate", "-20.0 %", "-10.0 %", "no", "turns", "16", "4 s"],
    ]
    assert section.rows[1][2:5] == [0.8, pytest.approx(0.9), False]


def test_a_code_that_repeats_its_verdict_is_for_programs_alone() -> None:
    section = VERDICTS.table([result(verdict("not-evaluated"))])
    assert [row[:2] for row in section.rows] == [["not evaluated", "not-evaluated"]]
    assert [row[:2] for row in section.texts] == [["not evaluated", ""]]


def test_verdicts_come_the_gravest_first_beside_the_other_side() -> None:
    section = VERDICTS.table([result(verdict("within-threshold")), result(verdict("beyond-threshold"))])
    assert [row[0] for row in section.rows] == ["regressed", "unchanged"]
    header = "verdict|reason|test|metric|this run|baseline|statistic|change|threshold|MDE|n"
    assert "|".join(section.header) == header
    told = "regressed|beyond-threshold|test_a[ws2]|step|30 ms|20 ms|median|+50.0 %|+10%||5"
    assert "|".join(section.texts[0]) == told
    row = dict(zip(section.columns, next(iter(section.rows)), strict=True))
    assert (row["test"], row["current"], row["ratio"]) == ("suites/test_a.py::test_a[ws2]", 0.03, 1.5)

    assert "baseline" in VERDICTS.table([result(verdict(), reference=PAIRED)]).header
