"""A table of a run in each format."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from markdown_it import MarkdownIt
from support.results import result, verdict

from pytest_distbench.records.run import RunRecord
from pytest_distbench.report.formats import FORMATS
from pytest_distbench.report.sections import verdict_section

RECORD = RunRecord(
    schema=2, distbench="0", started="2026-01-01T00:00:00+00:00", duration_s=1.0, world_sizes=[2], gpu=False, results=[]
)
SECTION = verdict_section([result(verdict("regressed", metric="a|\x1bb"))])


@pytest.mark.parametrize(
    ("name", "first", "cell"),
    [
        ("text", "verdict    test         metric", "a|\\x1bb"),
        ("markdown", "| verdict | test | metric |", "| a&#124; b |"),
        ("csv", "verdict,test,metric", "a|\\x1bb"),
    ],
)
def test_a_table_is_written_so_that_its_readers_are_safe(name: str, first: str, cell: str) -> None:
    out = io.BytesIO()
    FORMATS[name].write(SECTION, RECORD, out)
    text = out.getvalue().decode()

    assert text.startswith(first)
    assert cell in text


def test_only_parquet_is_no_text() -> None:
    assert [name for name, row in FORMATS.items() if not row.is_text] == ["parquet"]


def test_lines_below_a_table_are_no_markup() -> None:
    section = replace(SECTION, footer=["# <img src=x onerror=a>", "# Avg bus bandwidth: 1"])
    out = io.BytesIO()
    FORMATS["markdown"].write(section, RECORD, out)
    below = out.getvalue().decode().rpartition("\n\n")[2]

    assert MarkdownIt("gfm-like").render(below) == (
        "<p>#<!-- --> &lt;img src=x onerror=a&gt;<br>\n#<!-- --> Avg bus bandwidth: 1<br></p>\n"
    )
