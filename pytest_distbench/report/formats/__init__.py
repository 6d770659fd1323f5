"""The formats a run, or a table of it, can be written in: a new format is one row here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import BinaryIO

from pytest_distbench.errors import DistbenchError, TableError, tell
from pytest_distbench.records.run import RunRecord
from pytest_distbench.report.formats.exports import write_github_action_benchmark, write_pytorch_benchmark, write_trace
from pytest_distbench.report.formats.github import write_comment
from pytest_distbench.report.page.content import page_of
from pytest_distbench.report.page.document import write_page
from pytest_distbench.report.tables.table import Section
from pytest_distbench.report.texts.layout import escape, escape_cell, escape_markdown, layout, row_line, table_head
from pytest_distbench.store.rows import as_text, write_csv, write_parquet


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """A way to write a run.

    Attributes:
        write: a run into a file, with its tables by name: all that have rows, or the one that was asked for.
        is_whole: whether it is of the whole run; else of one table, which ``--table`` names.
        opens_in: what shows the file, for people; empty: they know.
    """

    write: Callable[[RunRecord, Mapping[str, Section], BinaryIO], None]
    is_text: bool = True
    is_whole: bool = False
    opens_in: str = ""


def _of_table(
    write: Callable[[Section, BinaryIO], None],
) -> Callable[[RunRecord, Mapping[str, Section], BinaryIO], None]:
    def write_tables(_record: RunRecord, sections: Mapping[str, Section], out: BinaryIO) -> None:
        for section in sections.values():
            write(section, out)

    return write_tables


def _of_run(write: Callable[[RunRecord, BinaryIO], None]) -> Format:
    return Format(write=lambda record, _sections, out: write(record, out), is_whole=True)


def _write_text(section: Section, out: BinaryIO) -> None:
    with as_text(out) as text:
        text.writelines(f"{escape(line)}\n" for line in layout(section.header, section.texts, left=3))
        text.writelines(f"{escape(line)}\n" for line in section.footer)


def _write_markdown(section: Section, out: BinaryIO) -> None:
    with as_text(out) as text:
        text.writelines(f"{line}\n" for line in [*table_head(section.header, left=3), *map(row_line, section.texts)])
        if section.footer:
            text.writelines(["\n", *(f"{escape_markdown(line)}<br>\n" for line in section.footer)])


TABLE_FORMATS: dict[str, Callable[[Section, BinaryIO], None]] = {
    "text": _write_text,
    "markdown": _write_markdown,
    "csv": lambda section, out: write_csv(section.table, out, show=escape_cell),
    "parquet": lambda section, out: write_parquet(section.table, out),
}
"""Those of a table, whether it is of a run or of many."""

BINARY = ("parquet",)
"""Those of them that are no text."""

FORMATS: dict[str, Format] = {
    **{name: Format(write=_of_table(write), is_text=name not in BINARY) for name, write in TABLE_FORMATS.items()},
    "github-action-benchmark-smaller": _of_run(write_github_action_benchmark("smaller")),
    "github-action-benchmark-bigger": _of_run(write_github_action_benchmark("bigger")),
    "pytorch-benchmark": _of_run(write_pytorch_benchmark),
    "github-comment": _of_run(write_comment),
    "trace": Format(
        write=lambda record, _sections, out: write_trace(record, out),
        is_whole=True,
        opens_in="chrome://tracing or ui.perfetto.dev",
    ),
    "html": Format(
        write=lambda record, sections, out: write_page(page_of(record, sections), out),
        is_whole=True,
        opens_in="a browser",
    ),
}
"""By the name that ``--format`` takes."""


def write_as(name: str, record: RunRecord, sections: Mapping[str, Section], out: BinaryIO) -> None:
    """Write a run in a format: a row of :data:`FORMATS`.

    Raises:
        TableError: the run holds what the format cannot tell of: no run wrote such a record, or not of this version.
    """
    try:
        FORMATS[name].write(record, sections, out)
    except (DistbenchError, OSError):
        raise
    except Exception as error:
        raise TableError(f"--format {name} cannot tell of this run: {tell(error)}") from error
