"""The verdicts of cases as tables for a terminal: of one case, and a few telling rows of many."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median

from pytest_distbench.judging.links import link_at
from pytest_distbench.records.kinds import VERDICT_KINDS
from pytest_distbench.records.metric import PEAK_MEMORY
from pytest_distbench.records.run import CaseResult
from pytest_distbench.records.verdict import Verdict
from pytest_distbench.report.axes import point_text
from pytest_distbench.report.layout import layout
from pytest_distbench.report.links import slowest_links
from pytest_distbench.report.rows import cells, change, limit, make_row, quantity, words_for
from pytest_distbench.report.sweep import OF_WHOLE_SWEEP, is_sweep, refusals, sweep_points

FAST_SIDE = "change: of the fast side of the launches, which is what is judged"
MEAN_OVER_PAIRS = "change: mean over pairs, which is what is judged"
FINDS = "finds: the smallest slowdown called regressed in nine of ten runs, with as many pairs as a run makes at most"

_NOTICEABLE = 0.01
_SHOWN_CASES = 20
_SHOWN_METRICS = 6
_SWEEP_HEADER = ("", "size", "time us", "algbw GB/s", "busbw GB/s", "#wrong", "baseline us", "change", "limit", "n")


def case_table(result: CaseResult, *, show_all: bool) -> list[str]:
    """The table of one case. Without ``show_all`` metrics within their limits are counted, not listed."""
    if not result.verdicts:
        return _measured_table(result) if show_all else []
    if is_sweep(result) and result.reference.kind != "paired":
        return _sweep_table(result, show_all=show_all)
    return verdict_table(result, result.verdicts, show_all=show_all) + refusal_lines(result)


def _measured_table(result: CaseResult) -> list[str]:
    """What a case measured that was not judged: medians over its launches."""
    found: dict[tuple[str, str], list[float]] = {}
    for measurement in (m for launch in result.launches for m in launch.measurements if m.value is not None):
        name = point_text(measurement.name, measurement.at)
        found.setdefault((name, measurement.unit), []).append(measurement.value or 0.0)
    rows = [("", name, quantity(median(values), unit), str(len(values))) for (name, unit), values in found.items()]
    return layout(("", "metric", "this run", "n"), rows, left=2) if rows else []


def verdict_table(result: CaseResult, verdicts: Sequence[Verdict], *, show_all: bool) -> list[str]:
    """Verdicts of a case under the columns that its reference asks for."""
    words = words_for(result)
    shown = [v for v in verdicts if show_all or not VERDICT_KINDS[v.kind].is_quiet]
    lines = layout([*words.columns], [cells(make_row(v), words.columns) for v in shown], left=2) if shown else []
    hidden = sum(v.is_judged for v in verdicts) - sum(v.is_judged for v in shown)
    return lines + ([f"  {hidden} more {words.unchanged} (-v shows all)"] if hidden else [])


def overview(results: Sequence[CaseResult]) -> list[str]:
    """A few telling rows per case, under the columns of its reference."""
    lines: list[str] = []
    shown = results[:_SHOWN_CASES]
    paired = [r for r in shown if r.reference.kind == "paired"]
    others = [r for r in shown if r.reference.kind != "paired"]
    for group in (others, paired):
        rows = []
        for result in group:
            name = result.case.title
            for verdict in telling_verdicts(result):
                mark, *rest = cells(make_row(verdict), words_for(result).columns)
                rows.append((mark, name, *rest))
                name = ""
        if rows:
            mark, *headings = words_for(group[0]).columns
            lines += layout((mark, "test", *headings), rows, left=3)
    if paired:
        lines += [MEAN_OVER_PAIRS, FINDS]
    lines += note_on_change(v for result in others for v in telling_verdicts(result))
    if len(results) > _SHOWN_CASES:
        lines.append(f"  {len(results) - _SHOWN_CASES} more cases (-v shows all)")
    return lines


def telling_verdicts(result: CaseResult) -> Iterable[Verdict]:
    """Of a sweep its ends and the one that moved most, of links the slowest, of many pairs the ends and what moved.

    What accompanies every measurement, memory, is told where it moved.
    """
    judged = [v for v in result.verdicts if v.is_judged and not _is_quiet_company(v)]
    if result.reference.kind == "paired":
        ends = judged if len(judged) <= _SHOWN_METRICS else [judged[0], judged[-1]]
        return [v for v in judged if not VERDICT_KINDS[v.kind].is_quiet or v in ends]
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
    return [v for v in judged if v.metric in chosen or v.kind in ("changed", "beyond") or v.name == PEAK_MEMORY]


def _is_quiet_company(verdict: Verdict) -> bool:
    return verdict.name == PEAK_MEMORY and VERDICT_KINDS[verdict.kind].is_quiet


def note_on_change(verdicts: Iterable[Verdict]) -> list[str]:
    """A line that explains changes which are not those of the two values beside them; none where all are."""
    return [FAST_SIDE] if any(map(_is_of_the_fast_side, verdicts)) else []


def _is_of_the_fast_side(verdict: Verdict) -> bool:
    """Whether the change shown is clearly not that of the two values beside it."""
    if verdict.ratio is None or verdict.current is None or not verdict.baseline:
        return False
    return abs(verdict.ratio - verdict.current / verdict.baseline) > _NOTICEABLE


def _sweep_table(result: CaseResult, *, show_all: bool) -> list[str]:
    points = list(sweep_points(result))
    shown = [point for point in points if show_all or not VERDICT_KINDS[point.gravest].is_quiet]
    rows = [
        (
            VERDICT_KINDS[point.gravest].mark,
            point.text,
            f"{point.time_s * 1e6:.1f}",
            f"{point.algbw:.3f}",
            "-" if point.busbw is None else f"{point.busbw:.3f}",
            "" if point.wrong_elements is None else quantity(point.wrong_elements, ""),
            f"{point.time.baseline * 1e6:.1f}" if point.time.baseline else "-",
            change(point.time),
            limit(point.time),
            str(point.time.launches),
        )
        for point in shown
    ]
    lines = layout(_SWEEP_HEADER, rows) if rows else []
    lines += refusal_lines(result)
    hidden = len(points) - len(shown)
    plural = "s" * (hidden != 1)
    if hidden:
        lines.append(f"  {hidden} size{plural} {words_for(result).unchanged} not shown (-v shows all)")
    whole = [v for v in result.verdicts if v.name in OF_WHOLE_SWEEP]
    whole = [v for v in whole if show_all or not VERDICT_KINDS[v.kind].is_quiet]
    return lines + (["", *verdict_table(result, whole, show_all=True)] if whole else [])


def refusal_lines(result: CaseResult) -> list[str]:
    """What the backend has not, by its reasons."""
    reasons: dict[str, list[str]] = {}
    for refused in refusals(result):
        facts = refused.facts
        pair = " ".join(str(facts[name]) for name in ("dtype", "redop") if name in facts)
        reasons.setdefault(str(facts["reason"]), []).append(pair)
    backend = result.case.conditions.backend
    return [f"  {backend} has not {', '.join(pairs)}: {reason}" for reason, pairs in reasons.items()]
