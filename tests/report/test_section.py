"""A section is a table for machines and one for people."""

from __future__ import annotations

from pytest_distbench.report.section import Cell, Section, plain

SECTION = Section(
    columns={"name": str, "seconds": float, "unit": str},
    headings=["name", "time", None],
    rows=[[plain("a"), Cell(0.5, "500 ms"), plain("s")]],
)


def test_machines_get_all_values() -> None:
    assert list(SECTION.table.rows) == [["a", 0.5, "s"]]


def test_people_get_the_texts_that_have_a_heading() -> None:
    assert (SECTION.header, SECTION.texts) == (["name", "time"], [["a", "500 ms"]])
