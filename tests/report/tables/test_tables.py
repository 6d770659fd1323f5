"""The tables that a run has."""

from __future__ import annotations

import dataclasses

import pytest
from support.results import result, run, verdict

from pytest_distbench.report.tables import TABLES, sections_of
from pytest_distbench.report.tables.table import Column


def test_a_run_has_the_tables_that_have_rows() -> None:
    sections, errors = sections_of(run(result(verdict())))

    assert (list(sections), errors) == (["verdicts", "environment", "launches"], [])


def test_a_table_that_cannot_be_made_is_told_and_takes_no_other_down(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = Column("ratio", float, "ratio", lambda row: 1 / 0)
    monkeypatch.setitem(TABLES, "launches", dataclasses.replace(TABLES["launches"], columns=[broken]))
    monkeypatch.setitem(TABLES, "environment", dataclasses.replace(TABLES["environment"], rows=lambda results: {}[0]))
    sections, errors = sections_of(run(result(verdict())))

    assert list(sections) == ["verdicts"]
    assert [str(error) for error in errors] == [
        "the table 'environment' cannot be made: KeyError: 0",
        f"the table 'launches' cannot be made: column 'ratio' of {__name__}: ZeroDivisionError: division by zero",
    ]


@pytest.mark.parametrize("name", TABLES)
def test_no_two_columns_of_a_table_have_one_name(name: str) -> None:
    columns: list[Column[object]] = TABLES[name].columns

    assert len({column.name for column in columns}) == len(columns)
