"""A run, or a table of it, in each format."""

from __future__ import annotations

import io
from dataclasses import replace

import pyarrow.parquet
import pytest
from markdown_it import MarkdownIt
from support.results import result, run, verdict

from pytest_distbench.report.formats import FORMATS
from pytest_distbench.report.tables.launches import LAUNCHES
from pytest_distbench.report.tables.table import Section
from pytest_distbench.report.tables.verdicts import VERDICTS

SECTION = VERDICTS.section([result(verdict("regressed", metric="a|\x1bb"))])


def written(name: str, section: Section) -> bytes:
    out = io.BytesIO()
    FORMATS[name].write(run(), {"one": section}, out)
    return out.getvalue()


@pytest.mark.parametrize(
    ("name", "first", "cell"),
    [
        ("text", "verdict    test         metric", "a|\\x1bb"),
        ("markdown", "| verdict | test | metric |", "| a&#124; b |"),
        ("csv", "verdict,test,metric", "a|\\x1bb"),
    ],
)
def test_a_table_is_written_so_that_its_readers_are_safe(name: str, first: str, cell: str) -> None:
    text = written(name, SECTION).decode()

    assert text.startswith(first)
    assert cell in text


def test_text_is_aligned_and_markdown_too() -> None:
    section = LAUNCHES.section([result()])

    assert written("text", section).decode().splitlines() == [
        "test         launch  outcome   time  memory  cores of others  reason",
        "test_a[ws2]  1       passed   1.5 s       -                -",
    ]
    assert written("markdown", section).decode().splitlines()[1] == "|---|---|---|---:|---:|---:|---:|"


def test_parquet_holds_the_values() -> None:
    table = pyarrow.parquet.read_table(io.BytesIO(written("parquet", LAUNCHES.section([result()]))))

    assert table.to_pylist()[0]["wall_s"] == 1.5


def test_only_parquet_is_no_text() -> None:
    assert [name for name, row in FORMATS.items() if not row.is_text] == ["parquet"]


def test_lines_below_a_table_are_no_markup() -> None:
    section = replace(SECTION, footer=["# <img src=x onerror=a>", "# Avg bus bandwidth: 1"])
    below = written("markdown", section).decode().rpartition("\n\n")[2]

    assert MarkdownIt("gfm-like").render(below) == (
        "<p>#<!-- --> &lt;img src=x onerror=a&gt;<br>\n#<!-- --> Avg bus bandwidth: 1<br></p>\n"
    )
