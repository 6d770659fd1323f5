"""Verdicts in words: tables of cases for a terminal, and changes of stored entries as lines, the worst first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from statistics import median

from pytest_distbench.judging.links import link_at
from pytest_distbench.judging.outcome import detection, planted_ratio, telling
from pytest_distbench.judging.words import change, current, mde, metric_text, point_text, reference, threshold
from pytest_distbench.machine.secrets import mask_text
from pytest_distbench.records.kinds import METRIC_KINDS
from pytest_distbench.records.metric import PEAK_MEMORY
from pytest_distbench.records.reasons import REASONS, ReasonCode, Severity
from pytest_distbench.records.run import STATISTICS, CaseResult, Finding
from pytest_distbench.report import (
    Line,
    escape,
    escape_markdown,
    layout,
    row_line,
    table_head,
)
from pytest_distbench.store.accept import EntryChange, MetricChange
from pytest_distbench.units import counted, format_change, quantity
from pytest_distbench.workloads.tables.collectives import is_sweep, refusals, sweep_points
from pytest_distbench.workloads.tables.communication import slowest_links

_SHOWN_METRICS = 6
_CONTROL_HEADER = ("", "test", "metric", "slowdown", "injected", "measured", "launches", "time")
_SWEEP_HEADER = ("", "size", "time us", "algbw GB/s", "busbw GB/s", "#wrong", "baseline us", "change", "threshold", "n")


def case_table(result: CaseResult, *, show_all: bool) -> list[Line]:
    """The table of one case. Without ``show_all`` metrics within their thresholds are counted, not listed."""
    if not result.verdicts:
        return _measured_table(result) if show_all else []
    if is_sweep(result) and result.reference.kind != "paired":
        return _sweep_table(result, show_all=show_all)
    return verdict_table(result, show_all=show_all) + refusal_lines(result)


def _measured_table(result: CaseResult) -> list[Line]:
    found: dict[tuple[str, str], list[float]] = {}
    for measurement in (m for launch in result.launches for m in launch.measurements if m.value is not None):
        name = point_text(measurement.name, measurement.at)
        found.setdefault((name, measurement.unit), []).append(measurement.value or 0.0)
    rows = [("", name, quantity(median(values), unit), str(len(values))) for (name, unit), values in found.items()]
    return list(map(Line, layout(("", "metric", "this run", "n"), rows, left=2))) if rows else []


Columns = Mapping[str, Callable[[Finding], str]]
"""Heading -> the text below it."""


def columns_of(result: CaseResult | None = None) -> Columns:
    """What a row of a verdict has; a case that was compared with launches beside its own has them in other words."""
    is_paired = result is not None and result.reference.kind == "paired"

    def launches(verdict: Finding) -> str:
        return str(verdict.launches) if verdict.launches else ""

    return {
        "": lambda verdict: verdict.row.mark,
        "metric": metric_text,
        "candidate" if is_paired else "this run": current,
        "baseline": reference,
        "change": change,
        "threshold": threshold,
        **({"MDE": mde, "pairs": launches} if is_paired else {"n": launches}),
    }


def cells(verdict: Finding, columns: Columns) -> tuple[str, ...]:
    return tuple(text(verdict) for text in columns.values())


def _unchanged(result: CaseResult) -> str:
    """What is said of rows that are not shown."""
    return "unchanged" if result.reference.kind == "paired" else "within their thresholds"


def verdict_table(result: CaseResult, *, show_all: bool) -> list[Line]:
    shown = [v for v in result.verdicts if show_all or not (v.row.is_quiet or v.code == "not-evaluated")]
    columns = columns_of(result)
    if show_all and any(_median(result, v) for v in shown):
        columns = {**columns, "median": lambda v: _median(result, v)}
    columns, note = with_statistic(columns, shown)
    lines = [*_layout([*columns], [(v.code, cells(v, columns)) for v in shown], left=2), *map(Line, note)]
    hidden = sum(v.is_judged and v.row.is_quiet for v in result.verdicts if v not in shown)
    return lines + ([Line(f"  {hidden} more {_unchanged(result)} (-v shows all)")] if hidden else [])


def with_statistic(columns: Columns, shown: Iterable[Finding]) -> tuple[Columns, list[str]]:
    """The columns, with one that names what is judged where that differs between rows; else a line that says it."""
    judged = [v for v in shown if v.is_judged and v.ratio is not None]
    found = sorted({v.statistic for v in judged if METRIC_KINDS[v.better].rule != "exact"})
    if len(found) > 1:
        return {**columns, "statistic": lambda v: v.statistic if v.ratio is not None else ""}, []
    names = [name for name in columns if name in ("this run", "candidate")]
    return columns, [f"  {names[0]}, baseline: {STATISTICS[name]}" for name in found]


def _median(result: CaseResult, verdict: Finding) -> str:
    """Of a timing the median over launches of their median iteration."""
    found = [m.spread for x in result.launches_of(verdict) for m in x.measurements if m.key == verdict.metric]
    values = [spread.median for spread in found if spread is not None]
    return quantity(median(values), verdict.unit) if values and verdict.unit == "s" else ""


def _layout(header: Sequence[str], rows: Sequence[tuple[ReasonCode, Sequence[str]]], *, left: int = 1) -> list[Line]:
    if not rows:
        return []
    head, *texts = layout(header, [row for _, row in rows], left=left)
    severities = (REASONS[code].severity for code, _ in rows)
    return [Line(head), *(Line(text, severity) for text, severity in zip(texts, severities, strict=True))]


def telling_verdicts(result: CaseResult) -> Iterable[Finding]:
    """Of a sweep its ends and the one that moved most, of links the slowest, of many pairs the ends and what moved.

    What accompanies every measurement, memory, is told where it moved.
    """
    judged = [v for v in result.verdicts if v.is_judged and not _is_quiet_company(v)]
    if result.reference.kind == "paired":
        ends = judged if len(judged) <= _SHOWN_METRICS else [judged[0], judged[-1]]
        return [v for v in judged if not v.row.is_quiet or v in ends]
    judged = [v for v in judged if v.current is not None or v.is_failure]
    if slowest := slowest_links(result):
        return [v for v in judged if v in slowest or v.is_failure or link_at(v.at) is None]
    if not is_sweep(result):
        return judged
    of_sizes = [v for v in judged if v.unit == "s" and "message_bytes" in v.at]
    times = sorted(of_sizes, key=lambda v: int(v.at["message_bytes"]))
    if not times:
        return judged[:3]
    largest_change = max(times, key=lambda v: abs((v.ratio or 1.0) - 1.0))
    chosen = {times[0].metric, largest_change.metric, times[-1].metric}
    return [v for v in judged if v.metric in chosen or v.code in ("communication", "bound") or v.name == PEAK_MEMORY]


def _is_quiet_company(verdict: Finding) -> bool:
    return verdict.name == PEAK_MEMORY and verdict.row.is_quiet


def _sweep_table(result: CaseResult, *, show_all: bool) -> list[Line]:
    points = list(sweep_points(result))
    shown = [point for point in points if show_all or not REASONS[point.gravest].is_quiet]
    _, note = with_statistic({"this run": current}, [point.time for point in shown])
    rows = [
        (
            point.gravest,
            (
                REASONS[point.gravest].mark,
                point.text,
                f"{point.time_s * 1e6:.1f}",
                f"{point.algbw:.3f}",
                "-" if point.busbw is None else f"{point.busbw:.3f}",
                "" if point.wrong_elements is None else quantity(point.wrong_elements, ""),
                f"{point.time.baseline * 1e6:.1f}" if point.time.baseline else "-",
                change(point.time),
                threshold(point.time),
                str(point.time.launches),
            ),
        )
        for point in shown
    ]
    lines = [*_layout(_SWEEP_HEADER, rows), *map(Line, note)]
    lines += refusal_lines(result)
    hidden = len(points) - len(shown)
    if hidden:
        lines.append(Line(f"  {counted(hidden, 'size')} {_unchanged(result)} not shown (-v shows all)"))
    return lines


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


def refusal_lines(result: CaseResult) -> list[Line]:
    reasons: dict[str, list[str]] = {}
    for refused in refusals(result):
        facts = refused.facts
        pair = " ".join(str(facts[name]) for name in ("dtype", "redop") if name in facts)
        reasons.setdefault(str(facts["reason"]), []).append(pair)
    backend = result.case.conditions.backend
    return [Line(f"  {backend} has not {', '.join(pairs)}: {reason}") for reason, pairs in reasons.items()]


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
    by_note: dict[str, list[str]] = {}
    for entry in changes:
        for note in entry.notes:
            by_note.setdefault(note, []).append(str(entry.name))
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
        rank = (
            2
            if not verdict.is_judged
            else 1
            if verdict.kind in ("unchanged", "new") and verdict.code != "numerics"
            else 0
        )
        yield rank, verdict.metric, _text(case, verdict)
    if not case.verdicts and case.launches[-1].outcome == "passed":
        values: dict[tuple[str, str], list[float]] = {}
        for measurement in (m for launch in case.launches for m in launch.measurements if m.value is not None):
            values.setdefault((measurement.key, measurement.unit), []).append(measurement.value or 0.0)
        for (metric, unit), of_launches in values.items():
            yield 2, metric, quantity(median(of_launches), unit)


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
