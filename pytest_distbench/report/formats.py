"""The formats a table of a run can be written in: a new format is one row here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import BinaryIO

from pytest_distbench.records.run import RunRecord
from pytest_distbench.report.escape import escape, escape_cell
from pytest_distbench.report.layout import layout
from pytest_distbench.report.markdown import escape_markdown, row_line, table_head
from pytest_distbench.report.nccl_json import write_nccl_json
from pytest_distbench.report.section import Section
from pytest_distbench.store.rows import as_text, write_csv, write_parquet


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """A way to write a table.

    Attributes:
        write: the table, of a run, into a file.
        is_text: whether it may go to a terminal.
        table: the only one it is for; empty: any.
    """

    write: Callable[[Section, RunRecord, BinaryIO], None]
    is_text: bool = True
    table: str = ""


def _write_text(section: Section, _record: RunRecord, out: BinaryIO) -> None:
    with as_text(out) as text:
        text.writelines(f"{escape(line)}\n" for line in layout(section.header, section.texts, left=3))
        text.writelines(f"{escape(line)}\n" for line in section.footer)


def _write_markdown(section: Section, _record: RunRecord, out: BinaryIO) -> None:
    with as_text(out) as text:
        text.writelines(f"{line}\n" for line in [*table_head(section.header, left=3), *map(row_line, section.texts)])
        if section.footer:
            text.writelines(["\n", *(f"{escape_markdown(line)}<br>\n" for line in section.footer)])


FORMATS: dict[str, Format] = {
    "text": Format(write=_write_text),
    "markdown": Format(write=_write_markdown),
    "csv": Format(write=lambda section, _record, out: write_csv(section.table, out, show=escape_cell)),
    "parquet": Format(write=lambda section, _record, out: write_parquet(section.table, out), is_text=False),
    "nccl-tests-json": Format(write=lambda _section, record, out: write_nccl_json(record, out), table="collectives"),
}
"""By the name that ``--format`` takes."""
