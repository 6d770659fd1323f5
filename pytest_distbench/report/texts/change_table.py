"""Changes of stored entries as lines: for a terminal, and as Markdown for a pull request. Worst first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from pytest_distbench.records.kinds import METRIC_KINDS
from pytest_distbench.report.texts.layout import escape_markdown, layout, row_line, table_head
from pytest_distbench.report.texts.words import quantity
from pytest_distbench.store.changes import EntryChange, MetricChange
from pytest_distbench.units import format_change

MOST_ROWS = 100
"""Of metrics, and of other differences: GitHub cuts a comment at 64 KiB, and nobody reads more."""

_HEADER = ("test", "metric", "old", "new", "change", "launches")


def change_lines(changes: Sequence[EntryChange], *, unchanged: int) -> list[str]:
    """For a terminal. ``unchanged``: entries that are the same on both sides, counted only."""
    rows = _rows(changes)
    lines = layout(_HEADER, rows[:MOST_ROWS], left=2) if rows else []
    lines += _left_out(rows, "metrics, less worse than these")
    lines += [f"{what}: {note}" for what, note in [*_whole(changes), *_notes(changes)]]
    return [*lines, _counts(changes, unchanged)]


def change_markdown(changes: Sequence[EntryChange], *, unchanged: int) -> list[str]:
    """For a pull request: the counts, a table of metrics, then what else differs."""
    rows = _rows(changes)
    lines = [f"### baselines: {_counts(changes, unchanged)}", ""]
    if rows:
        lines += [*table_head(_HEADER, left=2), *map(row_line, rows[:MOST_ROWS])]
        lines += ["", *_left_out(rows, "metrics, less worse than these")]
    return lines + [
        f"- {escape_markdown(what)}: {escape_markdown(note)}" for what, note in [*_whole(changes), *_notes(changes)]
    ]


def _rows(changes: Sequence[EntryChange]) -> list[tuple[str, ...]]:
    found = [(change, metric) for change in changes if change.kind == "changed" for metric in change.metrics]
    found.sort(key=lambda pair: -pair[1].worse_by)
    return [_row(change, metric) for change, metric in found]


def _row(change: EntryChange, metric: MetricChange) -> tuple[str, ...]:
    moved = "" if metric.ratio is None or METRIC_KINDS[metric.better].rule == "exact" else format_change(metric.ratio)
    return (
        str(change.name),
        metric.metric,
        quantity(metric.old, metric.unit),
        quantity(metric.new, metric.unit),
        moved or ("exact" if METRIC_KINDS[metric.better].rule == "exact" else ""),
        f"{metric.old_launches} -> {metric.new_launches}",
    )


def _whole(changes: Sequence[EntryChange]) -> list[tuple[str, str]]:
    """New and removed entries, by name."""
    found = []
    for change in changes:
        if change.kind != "changed":
            launches = max((max(m.old_launches, m.new_launches) for m in change.metrics), default=0)
            metrics = f"{len(change.metrics)} metric{'s' * (len(change.metrics) != 1)}"
            found.append((change.kind, f"{change.name} ({metrics}, {launches} launches)"))
    return [*found[:MOST_ROWS], *(("and", line) for line in _left_out(found, "entries"))]


def _notes(changes: Sequence[EntryChange]) -> list[tuple[str, str]]:
    """Other differences; one that many entries share, such as a new torch, is told once."""
    by_note: dict[str, list[str]] = {}
    for change in changes:
        for note in change.notes:
            by_note.setdefault(note, []).append(str(change.name))
    found = [(names[0] if len(names) == 1 else f"{len(names)} entries", note) for note, names in by_note.items()]
    return [*found[:MOST_ROWS], *(("and", line) for line in _left_out(found, "differences"))]


def _left_out(found: Sequence[object], what: str) -> list[str]:
    return [f"{len(found) - MOST_ROWS} more {what}"] if len(found) > MOST_ROWS else []


def _counts(changes: Sequence[EntryChange], unchanged: int) -> str:
    kinds = Counter(change.kind for change in changes)
    return f"{kinds['changed']} changed, {kinds['new']} new, {kinds['removed']} removed, {unchanged} unchanged"
