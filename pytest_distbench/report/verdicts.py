"""Verdicts in words: tables of cases for a terminal, and changes of stored entries as lines, the worst first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from statistics import median
from types import MappingProxyType
from typing import NamedTuple

from pytest_distbench.extensions import Table
from pytest_distbench.judging.outcome import detection, planted_ratio, telling
from pytest_distbench.judging.words import change, current, metric_text, reference, threshold
from pytest_distbench.machine.secrets import mask_text
from pytest_distbench.records.kinds import METRIC_KINDS
from pytest_distbench.records.metric import PEAK_MEMORY
from pytest_distbench.records.reasons import REASONS, ReasonCode, Severity
from pytest_distbench.records.run import STATISTICS, CaseResult, Finding
from pytest_distbench.records.summaries import grouped
from pytest_distbench.report import (
    Line,
    escape,
    escape_markdown,
    layout,
    row_line,
    table_head,
)
from pytest_distbench.report.tables import COLUMNS
from pytest_distbench.store.accept import EntryChange, MetricChange
from pytest_distbench.units import counted, format_change, quantity

_SHOWN_METRICS = 6
_CONTROL_HEADER = ("", "test", "metric", "slowdown", "injected", "measured", "launches", "time")


class CaseText(NamedTuple):
    """How cases of a kind are told, where a list of their metrics does not do.

    Attributes:
        is_of: whether a case is of the kind.
        choose: the findings that stand for its judged ones where they are too many.
        table: its lines, where a row is more than a metric; takes ``show_all`` as :func:`case_table`.
        remarks: what is said below the table of any case.
    """

    is_of: Callable[[CaseResult], bool]
    choose: Callable[[list[Finding]], list[Finding]]
    table: Callable[..., list[Line]] | None = None
    remarks: Callable[[CaseResult], list[Line]] = lambda result: []


CASE_TEXTS: Table[str, CaseText] = Table("case texts", {})


def _text_of(result: CaseResult) -> CaseText | None:
    return next((text for text in CASE_TEXTS.values() if text.is_of(result)), None)


def case_table(result: CaseResult, *, show_all: bool) -> list[Line]:
    """The table of one case. Without ``show_all`` metrics within their thresholds are counted, not listed."""
    if not result.verdicts:
        rows = [("", metric_text(v), current(v), str(v.launches)) for v in measured(result)] if show_all else []
        return list(map(Line, layout(("", "metric", "this run", "n"), rows, left=2))) if rows else []
    text = _text_of(result)
    if text is not None and text.table is not None and result.reference.kind != "paired":
        lines = text.table(result, show_all=show_all)
    else:
        lines = verdict_table(result, show_all=show_all)
    return lines + remarks_of(result)


def remarks_of(result: CaseResult) -> list[Line]:
    """What is said of a case below its table."""
    return [line for text in CASE_TEXTS.values() for line in text.remarks(result)]


def measured(result: CaseResult) -> list[Finding]:
    """What was measured in a case without verdicts: of each metric the median of its launches."""
    found = grouped((m.key, m) for launch in result.launches for m in launch.measurements if m.value is not None)
    return [
        Finding(
            metric=key,
            code="not-judged",
            unit=samples[-1].unit,
            better=samples[-1].better,
            at=samples[-1].at,
            current=median(m.value for m in samples if m.value is not None),
            launches=len(samples),
        )
        for key, samples in found.items()
    ]


def verdict_rows(
    shown: Sequence[Finding], *, is_paired: bool = False, further: Mapping[str, Sequence[str]] = MappingProxyType({})
) -> tuple[list[str], list[list[str]], list[str]]:
    """The header of a table of verdicts, its rows, and a line that says what both sides are of their launches.

    That is a column where it differs between rows. Launches that ran in pairs have other headings; ``further`` has a
    heading and its texts.
    """
    names = {"metric": "metric", "current": "candidate" if is_paired else "this run", "baseline": "baseline"}
    names |= {"ratio": "change", "threshold": "threshold"}
    names |= {"mde": "MDE", "launches": "pairs"} if is_paired else {"launches": "n"}
    statistics, note = statistics_of(shown, names["current"])
    columns = {column.name: column for column in COLUMNS}
    texts = [[v.row.mark, *(columns[name].make_cell(v).text for name in names)] for v in shown]
    for more in [*further.values(), *([statistics] if statistics else [])]:
        texts = [[*row, text] for row, text in zip(texts, more, strict=True)]
    return ["", *names.values(), *further, *(["statistic"] if statistics else [])], texts, note


def statistics_of(shown: Sequence[Finding], current: str = "this run") -> tuple[list[str], list[str]]:
    """The statistic of each verdict, if they differ; else a line below the table that says what it is."""
    judged = [v for v in shown if v.is_judged and v.ratio is not None]
    found = sorted({v.statistic for v in judged if METRIC_KINDS[v.better].rule != "exact"})
    if len(found) > 1:
        return [v.statistic if v.ratio is not None else "" for v in shown], []
    return [], [f"  {current}, baseline: {STATISTICS[name]}" for name in found]


def words_of_unchanged(result: CaseResult) -> str:
    """What is said of rows that are not shown."""
    return "unchanged" if result.reference.kind == "paired" else "within their thresholds"


def verdict_table(result: CaseResult, *, show_all: bool) -> list[Line]:
    shown = [v for v in result.verdicts if show_all or not (v.row.is_quiet or v.code == "not-evaluated")]
    medians = [_median(result, v) for v in shown] if show_all else []
    further = {"median": medians} if any(medians) else {}
    is_paired = result.reference.kind == "paired"
    header, texts, note = verdict_rows(shown, is_paired=is_paired, further=further)
    lines = [*coded_lines(header, list(zip([v.code for v in shown], texts, strict=True)), left=2), *map(Line, note)]
    hidden = sum(v.is_judged and v.row.is_quiet for v in result.verdicts if v not in shown)
    return lines + ([Line(f"  {hidden} more {words_of_unchanged(result)} (-v shows all)")] if hidden else [])


def _median(result: CaseResult, verdict: Finding) -> str:
    """Of a timing the median over launches of their median iteration."""
    found = [m.spread for x in result.launches_of(verdict) for m in x.measurements if m.key == verdict.metric]
    values = [spread.median for spread in found if spread is not None]
    return quantity(median(values), verdict.unit) if values and verdict.unit == "s" else ""


def coded_lines(
    header: Sequence[str], rows: Sequence[tuple[ReasonCode, Sequence[str]]], *, left: int = 1
) -> list[Line]:
    """A table whose rows are as severe as the reasons that they stand behind."""
    if not rows:
        return []
    head, *texts = layout(header, [row for _, row in rows], left=left)
    severities = (REASONS[code].severity for code, _ in rows)
    return [Line(head), *(Line(text, severity) for text, severity in zip(texts, severities, strict=True))]


def telling_verdicts(result: CaseResult) -> Iterable[Finding]:
    """Of many pairs the ends and what moved, else what tells of a case of its kind.

    What accompanies every measurement, memory, is told where it moved.
    """
    judged = [v for v in result.verdicts if v.is_judged and not (v.name == PEAK_MEMORY and v.row.is_quiet)]
    if result.reference.kind == "paired":
        ends = judged if len(judged) <= _SHOWN_METRICS else [judged[0], judged[-1]]
        return [v for v in judged if not v.row.is_quiet or v in ends]
    judged = [v for v in judged if v.current is not None or v.is_failure]
    text = _text_of(result)
    return judged if text is None else text.choose(judged)


def control_table(results: Sequence[CaseResult]) -> list[Line]:
    """A row for each case into which a slowdown was injected."""
    rows: list[tuple[str, ...]] = []
    severities: list[Severity] = ["plain"]
    for result in results:
        control = result.control
        if control is None or control.why_not:
            continue
        shown = telling(control)
        more = f" and {len(control.verdicts) - 1} more" if len(control.verdicts) > 1 else ""
        severities.append("plain" if control.found else "doubt")
        rows.append(
            (
                " " if control.found else "?",
                result.case.title,
                f"{metric_text(shown)}{more}",
                detection(control),
                format_change(planted_ratio(control, shown)),
                format_change(shown.ratio) if shown.ratio is not None else "-",
                str(control.launches),
                f"{control.took_s:.1f} s",
            )
        )
    lines = layout(_CONTROL_HEADER, rows, left=4) if rows else []
    return [Line(text, severity) for text, severity in zip(lines, severities[: len(lines)], strict=True)]


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
    found = []
    for entry in changes:
        if entry.kind != "changed":
            launches = max((max(m.old_launches, m.new_launches) for m in entry.metrics), default=0)
            metrics = counted(len(entry.metrics), "metric")
            found.append((entry.kind, f"{entry.name} ({metrics}, {launches} launches)"))
    return [*found[:MOST_ROWS], *(("and", line) for line in _left_out(found, "entries"))]


def _notes(changes: Sequence[EntryChange]) -> list[tuple[str, str]]:
    by_note = grouped((note, str(entry.name)) for entry in changes for note in entry.notes)
    found = [(names[0] if len(names) == 1 else f"{len(names)} cases", note) for note, names in by_note.items()]
    return [*found[:MOST_ROWS], *(("and", line) for line in _left_out(found, "differences"))]


def _left_out(found: Sequence[object], what: str) -> list[str]:
    return [f"{len(found) - MOST_ROWS} more {what}"] if len(found) > MOST_ROWS else []


def _counts(changes: Sequence[EntryChange], unchanged: int) -> str:
    kinds = Counter(entry.kind for entry in changes)
    return f"{kinds['changed']} changed, {kinds['new']} new, {kinds['removed']} removed, {unchanged} unchanged"


PREFIX = "distbench."
MOST = 60
"""Of one test. Viewers show them all in one list: of a long sweep what did not stay the same comes before the rest."""

_LONGEST_NAME = 150
_LONGEST_TEXT = 250


def number_properties(cases: Sequence[CaseResult]) -> list[tuple[str, str]]:
    """Name and text of every number of the cases of a test, as many as fit, without secrets."""
    found = [(rank, _property(_name_of(case, metric), text)) for case in cases for rank, metric, text in _numbers(case)]
    found += [(0, _property(_name_of(c, "advisory"), c.headline)) for c in cases if c.outcome == "advisory"]
    if len(found) <= MOST:
        return [text for _, text in found]
    kept = sorted(sorted(range(len(found)), key=lambda i: found[i][0])[: MOST - 1])
    left_out = f"{len(found) - len(kept)} numbers are left out; --distbench-json FILE has all"
    return [*(found[i][1] for i in kept), (f"{PREFIX}more", left_out)]


def _numbers(case: CaseResult) -> Iterator[tuple[int, str, str]]:
    """How much each number matters (0: most), its metric, and its text."""
    for verdict in case.verdicts:
        is_usual = verdict.kind in ("unchanged", "new") and verdict.code != "numerics"
        yield (1 if is_usual else 0) if verdict.is_judged else 2, verdict.metric, _text(case, verdict)
    if not case.verdicts and case.launches[-1].outcome == "passed":
        yield from ((2, found.metric, current(found)) for found in measured(case))


def _text(case: CaseResult, verdict: Finding) -> str:
    value = "" if verdict.current is None else current(verdict)
    if not verdict.is_judged:
        return value or "no value"
    answer = "no baseline" if verdict.kind == "new" else verdict.kind
    moved = change(verdict) if change(verdict) != verdict.kind else ""
    most = threshold(verdict)
    allowed = {"": "", "exact": "(exact)"}.get(most, f"(threshold {most})")
    told = " ".join(filter(None, [moved, allowed])) or verdict.reason
    compared = f"baseline {reference(verdict)}" if verdict.baseline is not None else ""
    stored = f"{case.update} baseline" if case.is_written else ""
    return ", ".join(filter(None, [value, f"{answer}: {told}" if told else answer, compared, stored]))


def _name_of(case: CaseResult, metric: str) -> str:
    """The metric, after the name of its run if that has one that says more."""
    run = case.case.label
    return metric if run in ("", metric) else f"{run}.{metric}"


def _property(name: str, text: str) -> tuple[str, str]:
    return f"{PREFIX}{_bounded(name, _LONGEST_NAME)}", _bounded(text, _LONGEST_TEXT)


def _bounded(text: str, most: int) -> str:
    text = escape(mask_text(text))
    return text if len(text) <= most else f"{text[: most - 3]}..."
