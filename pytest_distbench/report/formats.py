"""The formats that a run, or a table of it, can be written in: a new format is one row here.

On GitHub Actions a run is a table in the job summary, a comment, and annotations on the lines of failed tests.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any, BinaryIO

from pytest_distbench.errors import DistbenchError, TableError, error_text
from pytest_distbench.extensions import Table
from pytest_distbench.judging.remarks import flaky_lines, flaky_tests
from pytest_distbench.judging.words import change, metric_text
from pytest_distbench.records.kinds import grouped
from pytest_distbench.records.run import CaseResult, RunRecord, name_in_file
from pytest_distbench.report import escape, escape_lines, escape_markdown, layout, row_line, table_head
from pytest_distbench.report.page.content import again, headline_of, page_of, write_page
from pytest_distbench.report.tables import VERDICTS, OfCase
from pytest_distbench.report.tables.table import Column, DataTable, as_text, table_of_rows, write_csv, write_parquet
from pytest_distbench.report.terminal import headline, judged_nothing
from pytest_distbench.report.verdicts import accept_command
from pytest_distbench.units import and_more, counted

MAX_SUMMARY_BYTES = 900 * 1024  # GitHub drops a step's whole summary above 1024 KiB

MAX_ANNOTATIONS = 9  # GitHub shows ten of a kind per step; the tenth says how many more there are

MAX_COMMENT_BYTES = 60 * 1024  # GitHub refuses a comment above 64 KiB

COMMENT_MARK = "<!-- distbench -->"
"""The first line of a comment, by which the next run finds the comment that it replaces."""

_NO_BASELINE = frozenset({"no-baseline", "within-bound", "bound"})

_SHOWN_COMMANDS = 10

_SHOWN_CASES = 50  # of those that failed, and of flaky ones, above the table


def append_summary(path: Path, results: Sequence[CaseResult], *, besides: int = 0) -> None:
    """Append a Markdown table to the step's summary file, failures first, cut below GitHub's limit.

    It is written in one piece, so that two runs that append at once do not mix.
    """
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK, 0o644), "ab", 0) as file:
        room = MAX_SUMMARY_BYTES - os.fstat(file.fileno()).st_size
        file.write(summary(results, headline(results, besides=besides), max_bytes=room).encode())


def summary(results: Sequence[CaseResult], head: str, *, max_bytes: int, commands: Sequence[str] = ()) -> str:
    """A Markdown summary: failed cases with their numbers, then commands, and all other numbers folded.

    Rows that do not fit are counted below their table.
    """
    rows = list(VERDICTS.rows(results))
    by_case = grouped((id(result), (result, v)) for result, v in rows if v.is_failure)
    red = [row for of_case in by_case.values() for row in of_case]
    others = [row for row in rows if not row[1].is_failure]
    lines = [f"### distbench: {escape_markdown(head)}", ""]
    if _without_baseline(results):
        lines += [f"{'Nothing was judged: t' if not red else 'T'}here is no baseline for this platform yet.", ""]
    if results and (nothing := judged_nothing(results)):
        lines += [escape_markdown(nothing), ""]
    without_rows = [r for r in results if r.outcome in ("failed", "advisory") and id(r) not in by_case]
    lines += _list([f"{result.case.title}: {result.headline}" for result in without_rows])
    below = [*commands, *_list(flaky_lines(results))]
    if results:
        kinds = Counter(row[1].kind for row in rows)
        counts = ", ".join(f"{number} {kind}" for kind, number in kinds.items())
        where = f"{results[0].environment.device}, {results[0].environment.platform}"
        below += [escape_markdown(f"{counted(len(rows), 'metric')} on {where}{counts and f': {counts}'}"), ""]
    room = max_bytes - _size([*lines, *below]) - _ROOM_AROUND
    table = _fitting(red, room)
    if folded := _fitting(others, room - _size(table)):
        folded = _folded(f"{'The other' if red else 'All'} {len(others)} metrics", folded)
    return "\n".join([*lines, *table, *below, *folded]) + "\n"


_ROOM_AROUND = 400  # bytes for what stands around two tables, and says how many rows are left out of each


def _size(lines: Sequence[str]) -> int:
    return sum(len(line.encode()) + 1 for line in lines)


def _folded(title: str, lines: Sequence[str]) -> list[str]:
    return ["<details>", f"<summary>{title}</summary>", "", *lines, "", "</details>", ""]


def _verdict(row: OfCase) -> str:
    result, verdict = row
    notes = {"advisory": " (advisory)", "xfailed": " (expected)"}
    return f"{verdict.kind}{notes.get(result.outcome, '') if verdict.is_failure else ''}"


def _change(row: OfCase) -> str:
    """Text of a row's change: what differs in the communication, or the relative change of a number."""
    _, verdict = row
    return and_more(verdict.differences) if verdict.code == "communication" and verdict.differences else change(verdict)


_OF_VERDICTS = {column.name: column for column in VERDICTS.columns}
_FIRST: list[Column[OfCase]] = [Column("verdict", str, "verdict", _verdict), Column("ratio", str, "change", _change)]
_NAMES = ("metric", "test", "current", "baseline", "threshold", "mde", "launches")
_COLUMNS = [*_FIRST, *(_OF_VERDICTS[name] for name in _NAMES)]
"""Columns of a table on GitHub, the most important first, for narrow windows."""


def _fitting(rows: Sequence[OfCase], room: int) -> list[str]:
    """A table of the rows that fit; of consecutive rows of a test, only the first names it."""
    made = table_of_rows(rows, _COLUMNS)
    test = [column.name for column in _COLUMNS].index("test")
    texts = [
        [*row[:test], "" if i and rows[i - 1][0] is rows[i][0] else row[test], *row[test + 1 :]]
        for i, row in enumerate(made.texts)
    ]
    head = table_head(made.header, left=test + 1)
    ends = accumulate((_size([row_line(row)]) for row in texts), initial=_size(head))
    fitting = sum(end <= room for end in ends) - 1
    table = [*head, *map(row_line, texts[:fitting]), ""] if fitting > 0 else []
    more = len(rows) - max(0, fitting)
    return table + ([f"{more} more rows are left out; the run record has all", ""] if more else [])


def write_comment(record: RunRecord, out: BinaryIO) -> None:
    """Write a comment: summary, commit, link to the run on GitHub, and folded commands that run or accept red cases."""
    names = ("GITHUB_SERVER_URL", "GITHUB_REPOSITORY", "GITHUB_RUN_ID")
    server, repository, run = (os.environ.get(name, "") for name in names)
    link = f"[this run]({server}/{repository}/actions/runs/{run})" if server and repository and run else ""
    source = ", ".join(filter(None, [record.commit and f"commit {escape_markdown(record.commit[:10])}", link]))
    commands = []
    for result in [r for r in record.results if r.outcome in ("failed", "advisory")][:_SHOWN_COMMANDS]:
        command = again(result, record)
        commands += [command, accept_command(result, command)]
    code = [f"    {escape(command)}" for command in commands if command]  # indented: nothing in it is markup
    folded = _folded("Run again, or accept as the new baseline", code) if code else []
    text = summary(record.results, headline_of(record), max_bytes=MAX_COMMENT_BYTES, commands=folded)
    out.write(f"{COMMENT_MARK}\n{text}{source and f'Measured: {source}'}\n".encode())


def _list(texts: Sequence[str]) -> list[str]:
    more = [f"- and {len(texts) - _SHOWN_CASES} more"] if len(texts) > _SHOWN_CASES else []
    return [*(f"- {escape_markdown(text)}" for text in texts[:_SHOWN_CASES]), *more, ""] if texts else []


def workflow_commands(results: Sequence[CaseResult]) -> list[str]:
    """Workflow commands: an error per case that failed its test, a warning per case without a clear answer."""
    errors, warnings = [], []
    unjudged = _without_baseline(results)
    if unjudged:
        platform = unjudged[0].environment.platform
        message = (
            f"{len(unjudged)} {'case was' if len(unjudged) == 1 else 'cases were'} measured without a baseline. "
            f"Record baselines in a run with --distbench-update=new, in CI one that keeps them as an artifact; "
            f"review them, and commit the folder {platform}"
        )
        warnings.append(f"::warning title={_property(f'no baseline for {platform} yet')}::{escape_annotation(message)}")
    if nothing := judged_nothing(results):
        warnings.append(f"::warning title=judged nothing::{escape_annotation(nothing)}")
    for result in results:
        test, at = result.nodeid, result.line
        if result.outcome == "failed":
            errors.append(_command("error", test, result.headline, line=at))
        elif result.outcome in ("xfailed", "advisory"):
            expected = "expected: " * (result.outcome == "xfailed")
            warnings.append(_command("warning", test, f"{expected}{result.headline}", line=at))
        elif result.outcome == "passed" and not result.update:
            warns = (v for v in result.verdicts if v.is_judged and v.row.warns)
            unclear = [v for v in warns if not (unjudged and v.kind == "new")]
            for first in unclear[:1]:
                message = f"{first.kind}: {metric_text(first)} {first.reason}".rstrip()
                warnings.append(_command("warning", test, message, line=at))
    for nodeid, text in flaky_tests(results).items():
        warnings.append(_command("warning", nodeid, text))
    return [*_cap(errors, "error"), *_cap(warnings, "warning")]


def _without_baseline(results: Sequence[CaseResult]) -> list[CaseResult]:
    judged = [verdict for result in results for verdict in result.verdicts if verdict.is_judged]
    if any(verdict.code not in _NO_BASELINE for verdict in judged):
        return []
    passed = (result for result in results if result.outcome == "passed" and not result.update)
    return [r for r in passed if any(v.kind == "new" for v in r.verdicts if v.is_judged)]


def _command(kind: str, nodeid: str, message: str, *, line: int = 0) -> str:
    file, title = _property(nodeid.partition("::")[0]), _property(name_in_file(nodeid))
    place = f"file={file},line={line}" if line else f"file={file}"
    return f"::{kind} {place},title={title}::{escape_annotation(message)}"


def _cap(commands: list[str], kind: str) -> list[str]:
    if len(commands) <= MAX_ANNOTATIONS + 1:
        return commands
    return [*commands[:MAX_ANNOTATIONS], f"::{kind}::{len(commands) - MAX_ANNOTATIONS} more in the job summary"]


def escape_annotation(text: str) -> str:
    return escape_lines(text).replace("%", "%25").replace("\n", "%0A")


def _property(text: str) -> str:
    return escape_annotation(text).replace(":", "%3A").replace(",", "%2C")


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """A format for a run.

    Attributes:
        write: writes a run record into a file, with its tables by name: all that have rows, or the requested one.
        is_whole: whether a file holds the whole run; else it holds one table, which ``--table`` names.
        opens_in: the program that opens such a file, as shown to users, or "" if they know.
        needs: what a run must have to be written so, as shown to users, or "" for nothing.
        left_out: returns the judged numbers of a run that the format cannot hold, with reasons.
    """

    write: Callable[[RunRecord, Mapping[str, DataTable], BinaryIO], None]
    is_text: bool = True
    is_whole: bool = False
    opens_in: str = ""
    needs: str = ""
    left_out: Callable[[RunRecord], Sequence[str]] = lambda record: ()


def _write_tables(
    write: Callable[[DataTable, BinaryIO], None], _run: RunRecord, tables: Mapping[str, DataTable], out: BinaryIO
) -> None:
    for table in tables.values():
        write(table, out)


def of_run(write: Callable[[RunRecord, BinaryIO], None], **fields: Any) -> Format:
    return Format(write=lambda record, _sections, out: write(record, out), is_whole=True, **fields)


def _write_text(table: DataTable, out: BinaryIO) -> None:
    with as_text(out) as text:
        text.writelines(f"{escape(line)}\n" for line in layout(table.header, table.texts, left=3))
        text.writelines(f"{escape(line)}\n" for line in table.footer)


def _write_markdown(table: DataTable, out: BinaryIO) -> None:
    with as_text(out) as text:
        text.writelines(f"{line}\n" for line in [*table_head(table.header, left=3), *map(row_line, table.texts)])
        if table.footer:
            text.writelines(["\n", *(f"{escape_markdown(line)}<br>\n" for line in table.footer)])


TABLE_FORMATS: dict[str, Callable[[DataTable, BinaryIO], None]] = {
    "text": _write_text,
    "markdown": _write_markdown,
    "csv": write_csv,
    "parquet": write_parquet,
}
"""Formats of a table, whether it is of one run or of many."""

BINARY = ("parquet",)  # those of them that are no text

FORMATS: Table[str, Format] = Table(
    "formats",
    {
        **{
            name: Format(write=partial(_write_tables, write), is_text=name not in BINARY)
            for name, write in TABLE_FORMATS.items()
        },
        "github-comment": of_run(write_comment),
        "html": Format(
            write=lambda record, tables, out: write_page(page_of(record, tables), out),
            is_whole=True,
            opens_in="a browser",
        ),
    },
)
"""Formats by the name that ``--format`` takes."""


def write_as(name: str, record: RunRecord, tables: Mapping[str, DataTable], out: BinaryIO) -> None:
    """Write a run in a format: a row of :data:`FORMATS`.

    Raises:
        TableError: the format cannot describe the run, as its record is damaged or of another version.
    """
    try:
        FORMATS[name].write(record, tables, out)
    except (DistbenchError, OSError):
        raise
    except Exception as error:
        raise TableError(f"--format {name} cannot describe this run: {error_text(error)}") from error
