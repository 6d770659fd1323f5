"""The table of verdicts."""

from __future__ import annotations

from support.results import PAIRED, result, verdict

from pytest_distbench.report.tables.verdicts import VERDICTS


def test_verdicts_come_the_gravest_first_with_values_for_machines_and_texts_for_people() -> None:
    section = VERDICTS.section([result(verdict("unchanged")), result(verdict("regressed"))])

    assert [row[0].value for row in section.rows] == ["regressed", "unchanged"]
    assert section.header == ["verdict", "test", "metric", "this run", "baseline", "change", "limit", "n"]
    assert section.texts[0] == ["regressed", "test_a[ws2]", "step", "30 ms", "20 ms", "+50.0 %", "+10%", "5"]
    row = dict(zip(section.columns, next(iter(section.table.rows)), strict=True))
    assert (row["test"], row["current"], row["ratio"]) == ("suites/test_a.py::test_a[ws2]", 0.03, 1.5)


def test_beside_another_revision_the_other_side_has_its_name() -> None:
    assert "reference" in VERDICTS.section([result(verdict(), reference=PAIRED)]).header
