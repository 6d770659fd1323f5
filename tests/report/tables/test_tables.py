"""The tables that a run has."""

from __future__ import annotations

import pytest
from support.results import result, run, verdict

from pytest_distbench.report.tables import TABLES, sections_of
from pytest_distbench.report.tables.table import Column


def test_a_run_has_the_tables_that_have_rows() -> None:
    assert list(sections_of(run(result(verdict())))) == ["verdicts", "environment", "launches"]


@pytest.mark.parametrize("name", TABLES)
def test_no_two_columns_of_a_table_have_one_name(name: str) -> None:
    columns: list[Column[object]] = TABLES[name].columns

    assert len({column.name for column in columns}) == len(columns)
