"""The tables that a run has."""

from __future__ import annotations

import dataclasses

import pytest
from support.results import result, run, verdict

from pytest_distbench.report.tables import TABLES, section_of, sections_of
from pytest_distbench.report.tables.table import Column, TableKind


def test_a_table_that_cannot_be_made_is_told_and_takes_no_other_down(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = Column("ratio", float, "ratio", lambda row: 1 / 0)
    monkeypatch.setitem(TABLES, "launches", dataclasses.replace(TABLES["launches"], columns=[broken]))
    broken_rows = dataclasses.replace(TABLES["environment"], rows=lambda results, run: {}[0])
    monkeypatch.setitem(TABLES, "environment", broken_rows)
    sections, errors = sections_of(run(result(verdict())))

    assert list(sections) == ["verdicts", "record"]
    assert [str(error) for error in errors] == [
        "the table 'environment' cannot be made: KeyError: 0",
        f"the table 'launches' cannot be made: column 'ratio' of {__name__}: ZeroDivisionError: division by zero",
    ]


@pytest.mark.parametrize("name", TABLES)
def test_no_two_columns_of_a_table_have_one_name(name: str) -> None:
    columns: list[Column[object]] = TABLES[name].columns

    assert len({column.name for column in columns}) == len(columns)


def test_a_table_is_given_the_run_and_what_the_user_gave_where_it_takes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    named: TableKind[str] = TableKind(
        summary="Names.",
        rows=lambda results, run, prices="none": [f"{run.command} {prices}"],
        columns=[Column("name", str, "name", lambda row: row)],
        takes=["run", "prices"],
    )
    monkeypatch.setitem(TABLES, "named", named)
    record = run(result(), command="pytest")

    assert section_of("named", record).texts == [["pytest none"]]
    assert section_of("named", record, {"prices": "some", "others": 1}).texts == [["pytest some"]]
