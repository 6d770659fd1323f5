"""Records of runs as flat rows, and rows as CSV and Parquet."""

from __future__ import annotations

import io
import sys

import pytest
from support.results import result, run

from pytest_distbench.errors import DistbenchError
from pytest_distbench.frames import run_rows
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.metric import Bound, Sample
from pytest_distbench.records.run import Finding
from pytest_distbench.report.tables.table import DataTable, write_csv, write_parquet


def test_a_run_has_a_column_per_axis_and_each_seed_has_the_verdict_over_seeds() -> None:
    measurements = [
        Sample(name="latency", unit="s", better="lower", value=0.1, at={"message_bytes": 8}),
        Sample(name="steps", unit="", better="steps", value=3.0, at={"seed": 1, "level": 0.5}),
        Sample(name="steps", unit="", better="steps", value=None, at={"seed": 2, "level": "best"}),
    ]
    bounds = [Bound(side="most", value=limit, where="a.py:1") for limit in (0.07, 0.05)]
    verdicts = [
        Finding(metric="latency[message_bytes=8]", code="bound", unit="s", better="lower", bounds=bounds),
        Finding(metric="steps[level=0.5]", code="within-threshold", unit="", better="steps"),
    ]
    launch = LaunchRecord(index=4, outcome="passed", wall_s=1.0, measurements=measurements)
    table = run_rows(run(result(*verdicts, launches=[launch])))

    assert list(table.columns.items())[-3:] == [("message_bytes", int), ("seed", int), ("level", str)]
    assert [row[6:] for row in table.rows] == [
        (4, "latency", "s", "lower", 0.1, "regressed", None, 0.05, 8, None, None),
        (4, "steps", "", "steps", 3.0, "unchanged", None, None, None, 1, "0.5"),
        (4, "steps", "", "steps", None, "", None, None, None, 2, "best"),
    ]


TABLE = DataTable({"name": str, "n": int, "x": float, "ok": bool}, [("a,b", 1, 0.5, True), ("ü", None, None, None)])


def test_csv_has_a_header_and_empty_cells_and_its_texts_are_made_safe() -> None:
    out = io.BytesIO()
    write_csv(DataTable(TABLE.columns, [*TABLE.rows, ("=1", 1, None, None)]), out)

    assert out.getvalue().decode() == 'name,n,x,ok\n"a,b",1,0.5,True\nü,,,\n\'=1,1,,\n'


def test_parquet_keeps_the_types_also_of_an_empty_table() -> None:
    import pyarrow.parquet

    full, empty = io.BytesIO(), io.BytesIO()
    write_parquet(TABLE, full)
    write_parquet(DataTable(TABLE.columns, []), empty)

    assert pyarrow.parquet.read_table(full).to_pylist() == [
        {"name": "a,b", "n": 1, "x": 0.5, "ok": True},
        {"name": "ü", "n": None, "x": None, "ok": None},
    ]
    assert pyarrow.parquet.read_table(empty).schema == pyarrow.parquet.read_table(full).schema


def test_parquet_without_pyarrow_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)

    with pytest.raises(DistbenchError, match=r"pip install 'pytest-distbench\[parquet\]'"):
        write_parquet(TABLE, io.BytesIO())
