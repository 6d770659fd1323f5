"""Tables of a run: columns, formats, and the one of verdicts."""

from __future__ import annotations

import dataclasses

import pytest
from support.results import PAIRED, result, run, verdict

from pytest_distbench.errors import TableError
from pytest_distbench.records.record import replace
from pytest_distbench.records.run import CaseResult, Control
from pytest_distbench.report.tables import CONTROL, TABLES, VERDICTS, table_of, tables_of
from pytest_distbench.report.tables.table import (
    LAUNCH,
    TEST,
    Cell,
    Column,
    OfLaunch,
    TableKind,
    microseconds,
    number,
    seconds,
)

KIND: TableKind[CaseResult] = TableKind(
    summary="Cases.",
    rows=list,
    columns=[
        Column("name", str, "name", lambda row: row.case.title),
        Column("cores", int, lambda rows: f"of {len(rows)}", lambda row: row.environment.cores),
        Column("wall_s", float, "time", lambda row: Cell(row.launches[0].wall_s, "short")),
        Column("unit", str, None, lambda row: "s"),
    ],
    further=lambda rows: [
        Column("third", float, "third", lambda row: 1 / 3),
        Column("no", int, "no", lambda row: None),
    ],
    footer=lambda rows: ["the end"],
)


def test_machines_get_values_and_people_texts() -> None:
    table = KIND.table([result()])
    assert table.columns == {"name": str, "cores": int, "wall_s": float, "unit": str, "third": float, "no": int}
    assert list(table.rows) == [["test_a[ws2]", 2, 1.5, "s", 1 / 3, None]]

    section = KIND.table([result()])
    assert section.header == ["name", "of 1", "time", "third", "no"]
    assert section.texts == [["test_a[ws2]", "2", "short", "0.3333", "-"]]
    assert section.footer == ["the end"]

    assert KIND.table([]).header == ["name", "of 0", "time", "third", "no"]

    assert number(0.5, ".2f", unit=" s") == (0.5, "0.50 s")
    assert number(None, ".2f", nothing="N/A") == (None, "N/A")
    assert (seconds(0.5), seconds(None)) == ((0.5, "500 ms"), (None, "-"))
    assert microseconds(1e-5, ".1f") == (1e-5, "10.0")

    case = result()
    row = OfLaunch(case, case.launches[0], None)
    assert TEST.make_cell(row) == ("suites/test_a.py::test_a[ws2]", "test_a[ws2]")
    assert LAUNCH.make_cell(row) == (0, "1")


@pytest.mark.parametrize("made", ["abc", Cell("abc", "a text")])
def test_a_cell_of_another_type_is_an_error_that_names_its_column(made: object) -> None:
    column: Column[CaseResult] = Column("third", float, "third", lambda row: made)

    with pytest.raises(TableError, match=f"column 'third' of {__name__}: TypeError: wanted float or None, found 'abc'"):
        column.make_cell(result())


def test_a_table_that_cannot_be_made_is_reported_and_the_others_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = Column("ratio", float, "ratio", lambda row: 1 / 0)
    monkeypatch.setitem(TABLES, "launches", dataclasses.replace(TABLES["launches"], columns=[broken]))
    broken_rows = dataclasses.replace(TABLES["environment"], rows=lambda results, run: {}[0])
    monkeypatch.setitem(TABLES, "environment", broken_rows)
    sections, errors = tables_of(run(result(verdict())))

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

    assert table_of("named", record).texts == [["pytest none"]]
    assert table_of("named", record, {"prices": "some", "others": 1}).texts == [["pytest some"]]


def test_each_timing_is_a_row_with_the_injected_and_the_measured_slowdown() -> None:
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


def test_verdicts_come_the_most_severe_first_with_the_other_side() -> None:
    section = VERDICTS.table([result(verdict("within-threshold")), result(verdict("beyond-threshold"))])
    assert [row[0] for row in section.rows] == ["regressed", "unchanged"]
    header = "verdict|reason|test|metric|this run|baseline|judged by|change|threshold|detects from|n"
    assert "|".join(section.header) == header
    text = "regressed|beyond-threshold|test_a[ws2]|step|30 ms|20 ms|median launch|+50.0 %|+10%||5"
    assert "|".join(section.texts[0]) == text
    row = dict(zip(section.columns, next(iter(section.rows)), strict=True))
    assert (row["test"], row["current"], row["ratio"]) == ("suites/test_a.py::test_a[ws2]", 0.03, 1.5)

    assert "baseline" in VERDICTS.table([result(verdict(), reference=PAIRED)]).header
