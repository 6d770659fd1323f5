"""``distbench history``: metrics over many run records, and where their level changed."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from pytest_distbench.commands import Command, choose_names
from pytest_distbench.errors import ConfigurationError, DistbenchError
from pytest_distbench.judging.stats import change_points
from pytest_distbench.records.kinds import METRIC_KINDS
from pytest_distbench.records.run import USUAL_LAST, History, Trend
from pytest_distbench.report.formats import BINARY, TABLE_FORMATS
from pytest_distbench.report.tables.verdicts import TrendRow, points_section, trends_section, why_unknown
from pytest_distbench.report.texts import escape_markdown, layout, row_line, table_head
from pytest_distbench.store.files import replace_file
from pytest_distbench.store.run_record import read_history

MOST_LAST = 10_000
MOST_COMMANDS = 5
"""That find the commits: the largest changes for the worse come first."""


def _add_history(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "folder", metavar="DIR", type=Path, help="folder of run records, written by pytest --distbench-json"
    )
    choose_names(parser, "only tests and metrics with this in their name; several select those that match any")
    parser.add_argument(
        "--last",
        metavar="N",
        type=_number,
        default=USUAL_LAST,
        help=f"the last runs (default: {USUAL_LAST}, at most {MOST_LAST})",
    )
    parser.add_argument("--all", action="store_true", help="also unchanged and unjudged metrics")
    parser.add_argument("--points", action="store_true", help="a row for each metric in each run")
    parser.add_argument("--format", choices=[*TABLE_FORMATS], default="text", help="of the table (default: text)")
    parser.add_argument("-o", "--output", metavar="FILE", type=Path, help="default: standard output")


def _history(options: argparse.Namespace) -> Iterator[str]:
    history = read_history(options.folder, last=options.last)
    if not history.records:
        raise DistbenchError("; ".join([f"{options.folder} contains no run record", *history.problems[:1]]))
    chosen = [trend for trend in history.trends if _is_chosen(trend, options)]
    if options.parts and not chosen:
        shown = ", ".join(sorted({trend.title for trend in history.trends})[:5])
        raise DistbenchError(f"history -k {' -k '.join(options.parts)} matches nothing; there are {shown}, ...")
    if options.output is None and options.format in BINARY:
        raise ConfigurationError(f"history --format {options.format} is no text: give -o FILE")
    rows = [] if options.points else [row for trend in chosen for row in _rows(trend, options)]
    section = points_section(chosen) if options.points else trends_section(rows)
    write = TABLE_FORMATS[options.format]
    if options.output is not None:
        with replace_file(options.output, next_step="Give -o a writable place") as out:
            write(section, out)
        yield f"{len(section.rows)} row{'s' * (len(section.rows) != 1)} written to {options.output}"
    elif options.points or options.format not in ("text", "markdown"):
        write(section, sys.stdout.buffer)
    elif options.format == "markdown":
        yield from map(escape_markdown, _head(history, chosen, rows))
        if rows:
            yield from ["", *table_head(section.header, left=3), *map(row_line, section.texts)]
    else:
        yield from _head(history, chosen, rows)
        yield from _told(rows)


def _number(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= MOST_LAST:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 to {MOST_LAST}")
    return int(text)


def _is_chosen(trend: Trend, options: argparse.Namespace) -> bool:
    names = (trend.nodeid, trend.test, trend.case, trend.title, trend.metric)
    parts = [part.casefold() for part in options.parts]
    is_named = not parts or any(part in name.casefold() for part in parts for name in names)
    return is_named and (options.all or METRIC_KINDS[trend.better].is_judged)


def _rows(trend: Trend, options: argparse.Namespace) -> list[TrendRow]:
    changes = change_points([point.value for point in trend.points])
    if not changes and options.all:
        return [TrendRow(trend=trend, change=None)]
    return [TrendRow(trend=trend, change=change) for change in changes]


def _head(history: History, chosen: list[Trend], rows: list[TrendRow]) -> Iterator[str]:
    span = f"{history.first[:10]} to {history.last[:10]}"
    changed = len({id(row.trend) for row in rows if row.change is not None})
    unknown = Counter(why for trend in chosen if (why := why_unknown(trend)))
    told = [f"{changed} changed"] if unknown.total() < len(chosen) else []
    told += [f"{'' if number == len(chosen) else f'{number} '}{why}" for why, number in unknown.most_common(2)]
    counted = ", ".join([f"{len(chosen)} metric{'s' * (len(chosen) != 1)}", *told])
    yield f"{history.records} run{'s' * (history.records != 1)}, {span}: {counted}"
    if history.problems:
        number = len(history.problems)
        yield f"{number} file{'s' * (number != 1)} not read, such as {history.problems[0]}"


def _told(rows: list[TrendRow]) -> Iterator[str]:
    if rows:
        section = trends_section(rows)
        yield ""
        yield from layout(section.header, section.texts, left=2)
    worst = sorted((row for row in rows if row.bisect), key=lambda row: (not row.is_worse, -row.moved))
    if worst:
        between = {row.commits: row for row in reversed(worst)}  # of metrics that changed together the worst one's
        yield ""
        yield "find the commit:"
        yield from (f"  {row.bisect}" for row in [*reversed(between.values())][:MOST_COMMANDS])


HISTORY = Command("show metrics over many runs, and where their level changed", _add_history, _history)
