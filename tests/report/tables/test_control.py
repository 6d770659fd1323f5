"""The table of planted slowdowns."""

from __future__ import annotations

from support.results import result, verdict

from pytest_distbench.records.control import Control
from pytest_distbench.records.record import replace
from pytest_distbench.report.tables.control import CONTROL


def test_each_clock_is_a_row_with_what_was_planted_and_seen() -> None:
    verdicts = [verdict("regressed", ratio=1.19), verdict("inconclusive", metric="rate", better="higher", ratio=0.9)]
    control = Control(share=0.25, step="turns", verdicts=verdicts, launches=16, took_s=4.0)
    section = CONTROL.section([result(), replace(result(), control=control)])

    assert section.texts == [
        ["test_a[ws2]", "step", "+25.0 %", "+19.0 %", "yes", "turns", "16", "4 s"],
        ["test_a[ws2]", "rate", "-20.0 %", "-10.0 %", "no", "turns", "16", "4 s"],
    ]
    assert section.table.rows[1][2:5] == [0.8, 0.9, False]
