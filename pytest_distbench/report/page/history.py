"""The page of many runs: each case whose level moved, its metrics' ways, and the command that finds the commit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from pytest_distbench.records.kinds import Severity
from pytest_distbench.records.trend import History
from pytest_distbench.report.page.chart import Lines
from pytest_distbench.report.page.charts.trends import trend_chart
from pytest_distbench.report.page.content import Page, PageCase, table_of
from pytest_distbench.report.tables.trends import TrendRow, trends_section
from pytest_distbench.report.texts.layout import Line
from pytest_distbench.units import format_change, format_quantity

STEADY = "steady"
"""State of a case none of whose metrics changed."""

_KINDS: dict[str, tuple[str, Severity, str, str]] = {
    "worse": ("!", "failure", "A metric has a new level, which is worse.", ""),
    "changed": ("~", "doubt", "A metric has a new level, of which nobody said whether it is better.", ""),
    "better": ("+", "plain", "A metric has a new level, which is better.", ""),
}


def page_of_history(
    history: History, rows: Sequence[TrendRow], *, name: str, notes: Sequence[str], without: str = STEADY
) -> Page:
    """The page of these rows of a history.

    Args:
        history: many runs.
        rows: metrics and their changes, oldest first.
        name: where the runs came from.
        notes: what is to be known of them.
        without: state of a case that has no change.
    """
    kinds = {**_KINDS, without: (" ", "plain", "No change of a level was found.", "")}
    groups: dict[tuple[str, str, str], list[TrendRow]] = {}
    for row in rows:
        groups.setdefault((row.trend.platform, row.trend.test, row.trend.case), []).append(row)
    cases = [_case(found, [*kinds], without) for found in groups.values()]
    cases.sort(key=lambda case: [*kinds].index(case.state))
    counts = Counter(case.state for case in cases)
    worse = counts["worse"]
    return Page(
        title=f"distbench: {worse or 'none'} of {len(cases)} case{'s' * (len(cases) != 1)} changed for the worse",
        headings=("Worse", "The rest" if worse else "Cases", "All changes"),
        name=name,
        facts=[
            ("runs", str(history.records)),
            ("from", history.first.replace("T", " ")),
            ("to", history.last.replace("T", " ")),
            ("in", name),
        ],
        kinds=kinds,
        counts={kind: counts[kind] for kind in kinds if counts[kind]},
        notes=[Line(note) for note in notes],
        cases=cases,
        tables=[table_of("changes", "of all cases", trends_section(rows))],
    )


def _case(rows: Sequence[TrendRow], kinds: Sequence[str], without: str) -> PageCase:
    """A case: what became worse first, then what changed most."""
    rows = sorted(rows, key=lambda row: (row.change is None, not row.is_worse, -row.moved))
    first, state = rows[0].trend, min((row.kind or without for row in rows), key=kinds.index)
    changed = [row for row in rows if row.change is not None]
    commands = list(dict.fromkeys(row.bisect for row in changed if row.bisect))
    trends: dict[str, list[TrendRow]] = {}
    for row in rows:
        trends.setdefault(row.trend.metric, []).append(row)
    return PageCase(
        key="|".join([first.platform, first.test, first.case]),
        title=first.title,
        nodeid=first.nodeid,
        state=state,
        is_first=state == "worse",
        headline=_told(changed[0]) if changed else "",
        how=f"{first.platform}, {len(first.points)} run{'s' * (len(first.points) != 1)}",
        story=[*map(_told, changed[1:]), *commands[1:]],
        command=commands[0] if commands else "",
        reference="",
        rows=[],
        charts=[_chart(found) for found in trends.values()],
    )


def _chart(rows: Sequence[TrendRow]) -> Lines:
    changes = [row.change for row in rows if row.change is not None]
    return trend_chart(rows[0].trend, sorted(changes, key=lambda change: change.index))


def _told(row: TrendRow) -> str:
    """``step: 19.99 ms -> 22.06 ms (+10.4 %), worse since 2026-02-04, between 3f2a91c0d4 and 91be0d4c11``."""
    trend = row.trend
    moved = " -> ".join(format_quantity(value, trend.unit) for value in (row.first, row.last))
    since = "" if row.change is None else f" since {trend.points[row.change.index].at[:10]}"
    share = "" if row.ratio is None else f" ({format_change(row.ratio)})"
    between = " and ".join(commit.removesuffix("-dirty")[:10] for commit in row.commits if commit)
    return f"{trend.metric}: {moved}{share}, {row.kind}{since}{between and f', between {between}'}"
