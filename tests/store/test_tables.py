"""Tables as CSV and Parquet."""

from __future__ import annotations

import io
import sys

import pytest

from pytest_distbench.errors import DistbenchError
from pytest_distbench.store.rows import Table
from pytest_distbench.store.tables import write_csv, write_parquet

TABLE = Table({"name": str, "n": int, "x": float, "ok": bool}, [("a,b", 1, 0.5, True), ("ü", None, None, None)])


def test_csv_has_a_header_and_empty_cells_and_its_texts_are_made_safe() -> None:
    out = io.BytesIO()
    write_csv(TABLE, out, show=str.upper)

    assert out.getvalue().decode() == 'NAME,N,X,OK\n"A,B",1,0.5,True\nÜ,,,\n'


def test_parquet_keeps_the_types_also_of_an_empty_table() -> None:
    import pyarrow.parquet

    full, empty = io.BytesIO(), io.BytesIO()
    write_parquet(TABLE, full)
    write_parquet(Table(TABLE.columns, []), empty)

    assert pyarrow.parquet.read_table(full).to_pylist() == [
        {"name": "a,b", "n": 1, "x": 0.5, "ok": True},
        {"name": "ü", "n": None, "x": None, "ok": None},
    ]
    assert pyarrow.parquet.read_table(empty).schema == pyarrow.parquet.read_table(full).schema


def test_parquet_without_pyarrow_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)

    with pytest.raises(DistbenchError, match=r"pip install 'pytest-distbench\[parquet\]'"):
        write_parquet(TABLE, io.BytesIO())
