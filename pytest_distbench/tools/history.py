"""Metrics over many run records, and changes of their level: ``distbench history``, and charts of a page.

A trend is a metric of a case on one platform, with a point for each run: the judged number of the launches that passed.

A level holds for at least :data:`LEAST_RUNS` runs: one that stands out alone is noise. The segments are those whose
squared deviations from their means are smallest, at a price for each further one (PELT: Killick, Fearnhead and Eckley,
2012, in the library *ruptures*), of the logarithms, with single outliers taken out by a running median of three. Each
change is then tested by itself: the runs before it, back to the change before, against those after it, by the rank-sum
test of Mann and Whitney. What is not certain enough is taken out again, the least certain first. Runs of one machine
are not independent of each other: a machine that is slower for a week is a change, too.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import math
import statistics
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from pytest_distbench.commands import Subcommand, choose_names
from pytest_distbench.errors import ConfigurationError, DistbenchError, StoredFileError
from pytest_distbench.judging.comparison import unjudged
from pytest_distbench.records.kinds import METRIC_KINDS, grouped
from pytest_distbench.records.metric import Sample
from pytest_distbench.records.run import CaseResult, RunRecord
from pytest_distbench.report import escape_markdown, layout, row_line, table_head
from pytest_distbench.report.formats import BINARY, TABLE_FORMATS
from pytest_distbench.report.page import Chart, PageFiles, axis, choice, line, lines, short
from pytest_distbench.report.tables.table import Cell, Column, DataTable, table_of_rows
from pytest_distbench.store.files import read_run_record, replace_file
from pytest_distbench.units import counted, format_change, format_quantity

MOST_LAST = 10_000
MOST_COMMANDS = 5  # that find the commits: the largest changes for the worse come first


USUAL_LAST = 500  # so many runs are looked at where nobody says another number: the last ones


class Point(NamedTuple):
    """The value of a metric in one run.

    Attributes:
        at: start of the run, UTC, ISO 8601.
        commit: the measured commit, or "" if unknown.
        value: the judged number of the run's launches, in the metric's unit.
    """

    at: str
    commit: str
    value: float


@dataclass(slots=True, kw_only=True)
class Trend:
    """The history of a metric of a case on one platform.

    Attributes:
        result: the case in the first run that measured it.
        sample: the metric in the first launch of that case.
        is_slow: whether only runs with the slow tests measured it.
        points: one per run, oldest first.
    """

    result: CaseResult
    sample: Sample
    is_slow: bool = False
    points: list[Point] = field(default_factory=list)

    @property
    def platform(self) -> str:
        return self.result.environment.platform

    @property
    def case(self) -> tuple[str, str, str]:
        """The identity of a case over runs: the platform, the test and the name of its baseline."""
        return self.platform, self.result.case.test, self.result.case.key

    @property
    def metric(self) -> str:
        return self.sample.key

    @property
    def values(self) -> list[float]:
        return [point.value for point in self.points]


def read_history(folder: Path, *, last: int = USUAL_LAST) -> tuple[list[Trend], list[str], list[str]]:
    """Read the last run records of a folder and the folders below.

    Returns:
        The trends of their metrics; the start of each run, the oldest first; and problems with files that are no
        records.

    Raises:
        DistbenchError: it is no folder.
    """
    if not folder.is_dir():
        raise DistbenchError(f"{folder} is not a folder: give one that holds run records, written by --distbench-json")
    runs: list[tuple[str, str, RunRecord]] = []
    problems = []
    for path in sorted(folder.rglob("*.json")):
        if any(part.startswith(".") for part in path.relative_to(folder).parts[:-1]) or path.is_dir():
            continue
        try:
            record = read_run_record(path)
        except StoredFileError as error:
            problems.append(str(error))
        else:
            runs.append((record.started, str(path), record))
    runs = sorted(runs, key=lambda run: run[:2])[-last:]
    trends: dict[tuple[str, ...], Trend] = {}
    for at, _, record in runs:
        is_slow = "full" in record.settings
        for result in record.results:
            passed = (launch for launch in result.launches if launch.outcome == "passed")
            measured = grouped((m.key, m) for launch in passed for m in launch.measurements)
            for samples in measured.values():
                if (number := unjudged(samples).current) is not None:
                    trend = Trend(result=result, sample=samples[0])
                    key = (*trend.case, trend.metric, trend.sample.unit, trend.sample.better)
                    known = trends.setdefault(key, trend)
                    known.is_slow = is_slow and (known.is_slow or not known.points)
                    known.points.append(Point(at, record.commit, float(number)))
    return [trends[key] for key in sorted(trends)], [run[0] for run in runs], problems


LEAST_RUNS = 5  # fewer on one side of a change show no level

PRICE = 4.0  # of a further segment, times the logarithm of the number of runs, in variances of the noise

ERROR_RATE = 1e-3  # that a series without a change is said to have one, for all its runs together

LEAST_CHANGE = 0.01  # smaller changes are not worth a line, as a fraction

_MOST_EXACT = 60  # of more numbers the exact distribution of the rank sum takes long, and the normal one is as good

_TO_STDEV = 1.4826 / math.sqrt(2)
"""Factor from the median absolute difference of neighbours to the standard deviation of normal noise."""


_INSTALL = "pip install 'pytest-distbench[history]'"

Change = tuple[int, float, float]
"""A lasting change: the index of the first run on the new level, the level before it and the new one."""


def change_points(values: Sequence[float]) -> list[Change]:
    """Changes of the level of a metric, oldest first; [] unless all values are above 0.

    Logarithms are segmented, and the rank-sum test of Mann and Whitney checks each change, at one error rate for all.
    """
    if len(values) < 2 * LEAST_RUNS or not all(value > 0 for value in values):
        return []
    logs = [math.log(value) for value in values]
    ends = _certain(logs, _segmented(logs))
    levels = [statistics.median(values[begin:end]) for begin, end in zip([0, *ends], [*ends, len(values)], strict=True)]
    found = zip(ends, levels, levels[1:], strict=False)
    return [change for change in found if abs(math.log(change[2] / change[1])) >= math.log1p(LEAST_CHANGE)]


def _segmented(logs: Sequence[float]) -> list[int]:
    try:
        import ruptures
    except ImportError:
        raise ConfigurationError(f"change points need ruptures, which is not installed: {_INSTALL}") from None
    import numpy

    middles = [statistics.median(logs[i - 1 : i + 2]) for i in range(1, len(logs) - 1)]
    smooth = numpy.array([logs[0], *middles, logs[-1]])
    steps = [later - earlier for earlier, later in itertools.pairwise(logs)]
    noise = _TO_STDEV * statistics.median(abs(step) for step in steps) or LEAST_CHANGE  # exact numbers have none
    search = ruptures.KernelCPD(kernel="linear", min_size=LEAST_RUNS).fit((smooth / noise).reshape(-1, 1))
    return [int(end) for end in search.predict(pen=PRICE * math.log(len(logs)))[:-1]]


def fewest_runs() -> int:
    """Fewest runs in which a change can be significant: with fewer, chance separates runs as well as two levels do."""
    return next(n for n in itertools.count(2 * LEAST_RUNS) if 2 / math.comb(n, n // 2) <= ERROR_RATE / n)


def _certain(logs: Sequence[float], begins: list[int]) -> list[int]:
    from scipy.stats import mannwhitneyu

    def chance(before: Sequence[float], after: Sequence[float]) -> float:
        """Probability that numbers of one level are separated like these; exact if they are few and all differ."""
        both = [*before, *after]
        is_exact = len(both) <= _MOST_EXACT and len(set(both)) == len(both)
        return float(mannwhitneyu(before, after, method="exact" if is_exact else "asymptotic").pvalue)

    begins = list(begins)
    while begins:
        edges = [0, *begins, len(logs)]
        chances = [
            chance(logs[begin:middle], logs[middle:end])
            for begin, middle, end in zip(edges, edges[1:], edges[2:], strict=False)
        ]
        if max(chances) <= ERROR_RATE / len(logs):
            break
        del begins[chances.index(max(chances))]
    return begins


@dataclass(frozen=True, slots=True)
class TrendRow:
    """A change of a trend's level at run ``index``. Index 0: no change, and the levels of the first and last runs."""

    trend: Trend
    index: int
    before: float
    after: float

    @property
    def ratio(self) -> float | None:
        return self.after / self.before if self.before else None

    @property
    def is_worse(self) -> bool:
        return self.index > 0 and METRIC_KINDS[self.trend.sample.better].sign * (self.after - self.before) > 0

    @property
    def size(self) -> float:
        """Size of the change, in either direction: the absolute logarithm of the ratio."""
        ratio = self.ratio
        return abs(math.log(ratio)) if ratio is not None and ratio > 0 else 0.0

    @property
    def kind(self) -> str:
        """``worse`` or ``better``, or ``changed`` if neither is known; without a change ``steady``, or why unknown."""
        if not self.index:
            return why_unknown(self.trend) or "steady"
        return "worse" if self.is_worse else "better" if METRIC_KINDS[self.trend.sample.better].sign else "changed"

    @property
    def commits(self) -> tuple[str, str]:
        """The last commit on the old level and the first on the new one; "" if unknown or without a change."""
        points, index = self.trend.points, self.index
        return (points[index - 1].commit, points[index].commit) if index else ("", "")

    @property
    def bisect(self) -> str:
        """The command that finds the commit, or "" if commits are unknown or the same."""
        good, bad = (commit.removesuffix("-dirty")[:10] for commit in self.commits)
        if not good or not bad or good == bad:
            return ""
        result = self.trend.result
        test = f"'{result.nodeid}' --world-size {result.case.world_size}"
        slow = " --distbench-full" if self.trend.is_slow else ""
        run = f"distbench verdict --metric '{self.trend.metric}' {test}{slow} --distbench-against {good}"
        return f"git bisect start {bad} {good} && git bisect run {run}"


def rows_of(trend: Trend, *, is_shown: bool) -> list[TrendRow]:
    """A row per change of a trend's level; without changes none, or with ``is_shown`` one of first and last levels."""
    changes = [] if why_unknown(trend) else change_points(trend.values)
    if not changes and is_shown:
        few = max(1, min(LEAST_RUNS, len(trend.points) // 2))
        ends = statistics.median(trend.values[:few]), statistics.median(trend.values[-few:])
        changes = [(0, *ends)]
    return [TrendRow(trend, *change) for change in changes]


def why_unknown(trend: Trend) -> str:
    """Why it is unknown whether the level of a metric changed, or ""."""
    if len(trend.points) < fewest_runs():
        return f"not enough runs ({len(trend.points)} of {fewest_runs()})"
    if not finds_changes():
        return "changes not searched"
    values = {*trend.values}
    return "not compared: values of 0" if len(values) > 1 and min(values) <= 0 else ""


def finds_changes() -> bool:
    """Whether the library that finds changes is installed; without it, first and last levels are shown."""
    return importlib.util.find_spec("ruptures") is not None


def trends_table(rows: Sequence[TrendRow]) -> DataTable:
    return table_of_rows(rows, _COLUMNS)


def points_table(trends: Sequence[Trend]) -> DataTable:
    return table_of_rows([(trend, point) for trend in trends for point in trend.points], _POINT_COLUMNS)


def _machine(trends: Iterable[Trend]) -> str | None:
    return "machine" if len({trend.platform for trend in trends}) > 1 else None


def _value(row: TrendRow, value: float) -> Cell:
    return Cell(value, format_quantity(value, row.trend.sample.unit))


def _level_change(row: TrendRow) -> Cell:
    ratio = row.ratio
    return Cell(None if ratio is None else ratio - 1, "-" if ratio is None else format_change(ratio))


def _since(row: TrendRow) -> Cell:
    at = row.trend.points[row.index].at if row.index else ""
    return Cell(at or None, at[:10])


def _title(trend: Trend) -> Cell:
    return Cell(trend.result.nodeid, trend.result.case.title)


def _commit(commit: str) -> Cell:
    shown = commit.removesuffix("-dirty")[:10]
    return Cell(commit or None, f"{shown}-dirty" if commit.endswith("-dirty") else shown)


_COLUMNS: list[Column[TrendRow]] = [
    Column("platform", str, lambda rows: _machine(row.trend for row in rows), lambda row: row.trend.platform),
    Column("test", str, "test", lambda row: _title(row.trend)),
    Column("metric", str, "metric", lambda row: row.trend.metric),
    Column("unit", str, None, lambda row: row.trend.sample.unit),
    Column("runs", int, "runs", lambda row: len(row.trend.points)),
    Column("before", float, "before", lambda row: _value(row, row.before)),
    Column("after", float, "after", lambda row: _value(row, row.after)),
    Column("change", float, "change", _level_change),
    Column("kind", str, "", lambda row: row.kind),
    Column("since", str, "since", _since),
    Column("last_before", str, "last before", lambda row: _commit(row.commits[0])),
    Column("first_after", str, "first after", lambda row: _commit(row.commits[1])),
]

_OfTrend = tuple[Trend, Point]

_POINT_COLUMNS: list[Column[_OfTrend]] = [
    Column("platform", str, lambda rows: _machine(trend for trend, _ in rows), lambda row: row[0].platform),
    Column("test", str, "test", lambda row: _title(row[0])),
    Column("metric", str, "metric", lambda row: row[0].metric),
    Column("unit", str, None, lambda row: row[0].sample.unit),
    Column("at", str, "at", lambda row: row[1].at),
    Column("commit", str, "commit", lambda row: _commit(row[1].commit)),
    Column("value", float, "value", lambda row: Cell(row[1].value, format_quantity(row[1].value, row[0].sample.unit))),
]


def charts_of_trends(trends: Sequence[Trend]) -> Callable[[CaseResult], Iterator[Chart]]:
    """Charts of a case: each metric that changed, or is unknown to, over the runs before and after this one."""

    def charts(result: CaseResult) -> Iterator[Chart]:
        case = result.environment.platform, result.case.test, result.case.key
        shown = {verdict.metric for verdict in result.verdicts if verdict.is_judged and not verdict.row.is_quiet}
        for trend in trends:
            if trend.case == case and trend.metric in shown and len(trend.points) > 1:
                yield trend_chart(trend, change_points(trend.values))

    return charts


def trend_chart(trend: Trend, changes: Sequence[Change]) -> Chart:
    """Chart each run as a dot, and the levels between changes as lines that are labelled with the change.

    The x axis is the date of a run, or its commit, at equal distances.
    """
    commits = list(dict.fromkeys(point.commit[:10] for point in trend.points))
    by_date = [datetime.fromisoformat(point.at).timestamp() for point in trend.points]
    by_commit = [float(commits.index(point.commit[:10])) for point in trend.points]
    ways = {"by date": (axis("date", "date"), by_date)}
    if len(commits) > 1:
        ways["by commit"] = (axis("commit", ticks=[commit or "unknown" for commit in commits]), by_commit)
    names = [" ".join(filter(None, [point.at[:10], point.commit[:10]])) for point in trend.points]
    begins = [0, *(index for index, _, _ in changes)] if changes else []
    labels = ["", *(format_change(after / before) for _, before, after in changes)]
    charts = {}
    for way, (x, places) in ways.items():
        runs = [(place, short(value)) for place, value in zip(places, trend.values, strict=True)]
        series = [line("a run", runs, "dots", names=names)]
        if changes:
            levels = [changes[0][1], *(after for _, _, after in changes)]
            level = [(places[begin], short(value)) for begin, value in zip(begins, levels, strict=True)]
            series.append(line("level", level, "steps", labels=labels, names=[names[begin] for begin in begins]))
        charts[way] = lines(f"History of {trend.metric}", x, axis(trend.metric, trend.sample.unit), series)
    return choice(charts)


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
    trends, starts, problems = read_history(options.folder, last=options.last)
    if not starts:
        raise DistbenchError("; ".join([f"{options.folder} contains no run record", *problems[:1]]))
    parts = [part.casefold() for part in options.parts]
    chosen = []
    for trend in trends:
        names = (trend.result.nodeid, *trend.case[1:], trend.result.case.title, trend.metric)
        is_named = not parts or any(part in name.casefold() for part in parts for name in names)
        if is_named and (options.all or METRIC_KINDS[trend.sample.better].is_judged):
            chosen.append(trend)
    if options.parts and not chosen:
        shown = ", ".join(sorted({trend.result.case.title for trend in trends})[:5])
        raise DistbenchError(f"history -k {' -k '.join(options.parts)} matches nothing; there are {shown}, ...")
    if options.output is None and options.format in BINARY:
        raise ConfigurationError(f"history --format {options.format} is no text: give -o FILE")
    is_shown = options.all or not finds_changes()
    rows = [] if options.points else [row for trend in chosen for row in rows_of(trend, is_shown=is_shown)]
    table = points_table(chosen) if options.points else trends_table(rows)
    write = TABLE_FORMATS[options.format]
    if options.output is not None:
        with replace_file(options.output, next_step="Give -o a writable place") as out:
            write(table, out)
        yield f"{counted(len(table.texts), 'row')} written to {options.output}"
    elif options.points or options.format not in ("text", "markdown"):
        write(table, sys.stdout.buffer)
    elif options.format == "markdown":
        yield from map(escape_markdown, _head(starts, problems, chosen, rows))
        if rows:
            yield from ["", *table_head(table.header, left=3), *map(row_line, table.texts)]
    else:
        yield from _head(starts, problems, chosen, rows)
        if rows:
            yield from ["", *layout(table.header, table.texts, left=2)]
        worst = sorted((row for row in rows if row.bisect), key=lambda row: (not row.is_worse, -row.size))
        if worst:
            between = {row.commits: row for row in reversed(worst)}  # of metrics that changed together the worst one's
            yield from ["", "find the commit:"]
            yield from (f"  {row.bisect}" for row in [*reversed(between.values())][:MOST_COMMANDS])


def _number(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= MOST_LAST:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 to {MOST_LAST}")
    return int(text)


def _head(starts: list[str], problems: list[str], chosen: list[Trend], rows: list[TrendRow]) -> Iterator[str]:
    span = f"{starts[0][:10]} to {starts[-1][:10]}"
    changed = len({id(row.trend) for row in rows if row.index})
    unknown = Counter(why for trend in chosen if (why := why_unknown(trend)))
    counts = [f"{changed} changed"] if unknown.total() < len(chosen) else []
    counts += [f"{'' if number == len(chosen) else f'{number} '}{why}" for why, number in unknown.most_common(2)]
    metrics = ", ".join([counted(len(chosen), "metric"), *counts])
    yield f"{counted(len(starts), 'run')}, {span}: {metrics}"
    if not finds_changes():
        yield f"before and after are of the first and the last runs; to find where a level changed: {_INSTALL}"
    if problems:
        yield f"{counted(len(problems), 'file')} not read, such as {problems[0]}"


HISTORY = Subcommand("show metrics over many runs, and where their level changed", _add_history, _history)
CHARTS = PageFiles(
    "DIR", "run records for the history of changed metrics", lambda folder: charts_of_trends(read_history(folder)[0])
)
