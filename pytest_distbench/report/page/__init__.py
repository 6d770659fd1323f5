"""The HTML report, one file that opens offline; in this module, kinds of drawing, and a row for each chart.

A row is a function from a case, or from all cases, to what is drawn. Each drawing has its values as a table, in base
units (seconds, bytes); the page scales them where it prints them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, Literal, NamedTuple, TypeVar

from pytest_distbench.errors import error_text
from pytest_distbench.extensions import Table
from pytest_distbench.judging.fingerprint_rule import comparable, compared_fingerprints, count, payload_bytes, ranks_of
from pytest_distbench.judging.places import calls_text, changed_text, rank_text
from pytest_distbench.judging.words import point_text
from pytest_distbench.records.environment import Prices
from pytest_distbench.records.iteration import Collective, of_rank, rank_ranges
from pytest_distbench.records.kinds import grouped
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.metric import EVALUATED, EVALUATION_ENDS, EVERY, PEAK_MEMORY, PHASE, Sample, without
from pytest_distbench.records.places import PlaceRow
from pytest_distbench.records.run import CaseResult
from pytest_distbench.units import format_bytes, format_percent, plural

Point = tuple[float, float]
Chart = dict[str, Any]  # what ``page.js`` draws by its ``type``, in JSON-able values; what is empty is left out
Series = dict[str, Any]


def axis(
    name: str,
    unit: str = "",
    *,
    scale: Literal["linear", "log", "log2"] = "linear",
    from_zero: bool = False,
    ticks: Sequence[str] = (),
) -> dict[str, Any]:
    """One axis; ``log2`` has its ticks at powers of two.

    The unit ``%`` is for shares: 0.5 is 50 %; ``date`` is for seconds since 1970, UTC. ``from_zero``: it begins at 0
    even if its least value is well above. Ticks are the names of the points at 0, 1 and so on.
    """
    special = "" if scale == "linear" else scale
    return {"name": name, **if_any(unit=unit, scale=special, from_zero=from_zero, ticks=ticks)}


def line(
    name: str,
    points: Sequence[Point],
    look: Literal["", "thin", "reference", "dots", "steps"] = "",
    *,
    labels: Sequence[str] = (),
    names: Sequence[str] = (),
) -> Series:
    """A series of a line chart: by default thick, with a dot for each point if they are few.

    Looks: ``thin`` for one launch of several; ``reference``, dotted, for the baseline; ``dots`` without a line;
    ``steps`` if a value holds until the next point. Labels are written next to the points; names are used where points
    are read out.
    """
    return {"name": name, "points": points, **if_any(look=look, labels=labels, names=names)}


def lines(
    title: str,
    x: dict[str, Any],
    y: dict[str, Any],
    series: Sequence[Series],
    *,
    allowed: Sequence[tuple[float, float, float]] = (),
    target: float | None = None,
) -> Chart:
    """A line chart; ``allowed`` is a band (x, least y, most y), ``target`` a value of y."""
    drawn = {"type": "lines", "title": title, "x": x, "y": y, "series": series, **if_any(allowed=allowed)}
    return drawn if target is None else {**drawn, "target": target}


def bars(title: str, unit: str, parts: Sequence[str], rows: Sequence[tuple[str, list[float]]]) -> Chart:
    return {"type": "bars", "title": title, "unit": unit, "parts": parts, "rows": rows}


def pairs(title: str, unit: str, rows: Sequence[tuple[str, str, float, float]], *, note: str = "") -> Chart:
    """A chart of two numbers per row; rows are (name, further text, baseline's number, candidate's number)."""
    return {"type": "pairs", "title": title, "unit": unit, "rows": rows, **if_any(note=note)}


def spans(
    title: str,
    rows: Sequence[str],
    spans: Sequence[tuple[int, float, float, str]],
    marks: Sequence[tuple[float, str]] = (),
) -> Chart:
    """A timeline of each row: (row, begin and end in seconds, what went on); equal names have one colour.

    Marks are moments for all rows: (seconds, name).
    """
    return {"type": "spans", "title": title, "rows": rows, "spans": spans, **if_any(marks=marks)}


def grid(
    title: str,
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    right: Sequence[bool],
    changed: Sequence[bool] = (),
    foot: Sequence[str] = (),
) -> Chart:
    """A table; ``right``: whether each column is right-aligned; ``changed``: whether each row is marked as changed."""
    return {
        "type": "grid", "title": title, "head": head, "right": right, "rows": rows, **if_any(changed=changed, foot=foot)
    }  # fmt: skip


def if_any(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value}


def heat(
    title: str, unit: str, *, down: str, across: str, labels: Sequence[str], cells: Sequence[Sequence[float | None]]
) -> Chart:
    """A heat map; the labels name both its rows and its columns."""
    return {
        "type": "heat",
        "title": title,
        "unit": unit,
        "down": down,
        "across": across,
        "labels": labels,
        "cells": cells,
    }


def choice(ways: Mapping[str, Chart]) -> Chart:
    """A chart that the reader switches between: name of a form -> line chart; at first the first one is shown."""
    return {"type": "choice", "names": [*ways], "charts": [*ways.values()]}


def short(value: float) -> float:
    return float(f"{value:.4g}")


def points(pairs: Iterable[tuple[float, float | None]]) -> list[Point]:
    return [(short(x), short(y)) for x, y in pairs if y is not None]


MOST_POINTS = 300  # of a curve: a screen has not many more

LOSS, LOSS_CURVE = "loss", "loss_curve"  # all losses, and the first ones, which are judged

Curves = dict[str, list[tuple[str, list[Point]]]]  # name -> its launches, each with a name of its own


def curves_of(launches: Sequence[LaunchRecord]) -> Curves:
    """Curves of launches by name; evaluated values replace what the training recorded under the same name."""
    found: Curves = {}
    evaluated = {m.name for launch in launches for m in launch.measurements if m.name.startswith(EVALUATED)}
    for launch in launches:
        for measured in launch.measurements:
            is_curve = measured.better in ("info", "curve") and len(measured.values) > 1
            is_extra = measured.name in (PEAK_MEMORY, EVALUATION_ENDS) or measured.name.startswith(PHASE)
            is_extra |= EVALUATED + measured.name in evaluated
            if is_curve and not is_extra:
                drawn = _thin_out(measured.values, int(measured.facts.get(EVERY, 1)))
                found.setdefault(_name_over_seeds(measured), []).append((_seed_of(measured, launch), drawn))
    return found


def _seed_of(measured: Sample, launch: LaunchRecord) -> str:
    return f"seed {measured.at['seed']}" if "seed" in measured.at else f"launch {launch.index + 1}"


def without_first_losses(curves: Curves) -> Curves:
    """Curves without the first losses if all losses are there."""
    return {name: drawn for name, drawn in curves.items() if name != LOSS_CURVE or LOSS not in curves}


def median_curve(curves: Sequence[Sequence[Point]]) -> list[Point]:
    by_x = grouped(point for curve in curves for point in curve)
    return [(x, short(median(values))) for x, values in sorted(by_x.items())]


def unit_of(results: Sequence[CaseResult], name: str) -> str:
    return next((m.unit for m in _measurements(results) if _name_over_seeds(m) == name), "")


def target_of(results: Sequence[CaseResult], name: str) -> float | None:
    for measured in _measurements(results):
        target = measured.identity.get("target")
        if measured.name == f"steps_to_{name}" and isinstance(target, int | float):
            return float(target)
    return None


def _measurements(results: Sequence[CaseResult]) -> list[Sample]:
    return [m for result in results for launch in result.launches for m in launch.measurements]


def _name_over_seeds(measured: Sample) -> str:
    return point_text(measured.name.removeprefix(EVALUATED), without(measured.at, "seed"))


def _thin_out(series: Sequence[float], every: int) -> list[Point]:
    stride = -(-len(series) // MOST_POINTS)
    return points(((i + 1) * every, series[i]) for i in range(0, len(series), stride))


def curves(result: CaseResult) -> Iterator[Chart]:
    """Charts of the recorded series, step by step: each launch or seed thin, their median thick, the baseline dotted.

    The first losses, which are judged, have a chart of their own if the baseline has them.
    """
    found = curves_of(result.launches)
    measured = {m.key: m for m in _measurements([result])}
    stored = (  # by the names that the curves of this run have
        (_name_over_seeds(measured[key]), ("baseline", _thin_out(metric[0].values, 1)))
        for key, metric in result.reference.metrics.items()
        if metric[0].better == "curve" and key in measured
    )
    before = curves_of(result.reference.launches) or grouped(stored)
    if LOSS_CURVE in before:
        before.setdefault(LOSS, before[LOSS_CURVE])
    else:
        found = without_first_losses(found)
    for name, here in found.items():
        drawn = [*_thick(here, ""), *_thick(before.get(name, []), "baseline")]
        y = axis(name, unit_of([result], name))
        yield lines(f"{name} by step", axis("step"), y, drawn, target=target_of([result], name))


def _thick(curves: Sequence[tuple[str, list[Point]]], whose: str) -> list[Series]:
    if not curves:
        return []
    middle = median_curve([drawn for _, drawn in curves])
    if whose:
        return [line(whose if len(curves) == 1 else f"{whose} median", middle, "reference")]
    if len(curves) == 1:
        return [line(curves[0][0], middle)]
    return [*(line(name, drawn, "thin") for name, drawn in curves), line("median", middle)]


def communication(result: CaseResult) -> Iterator[Chart]:
    """Tables of what an iteration sends, with the baseline, for each loop that differs and for ranks that differ."""
    now, then = compared_fingerprints(result)
    for loop, here in now.items():
        tables: dict[tuple[_Sent, ...], list[int]] = {}
        for rank in sorted({*ranks_of(then[loop]), *ranks_of(here)}):
            rows = _sent(*(of_rank(side.collectives, rank) or [] for side in (then[loop], here)))
            if any(is_changed for _, is_changed in rows):
                tables.setdefault(rows, []).append(rank)
        for rows, ranks in tables.items():
            whose = f", {plural(len(ranks), 'rank')} {rank_ranges(ranks)}" if len(tables) > 1 else ""
            yield grid(
                f"Communication in an iteration of {loop}{whose}",
                ["", "collective", "baseline", "this run", "message", "dtype"],
                [["*" if is_changed else "", *texts] for texts, is_changed in rows],
                right=[False, False, True, True, True, False],
                changed=[is_changed for _, is_changed in rows],
            )


def places(result: CaseResult) -> Iterator[Chart]:
    """Lines of the code that explain a regression, with the time or memory that each side takes there."""
    for found in filter(None, (result.places, result.memory_places)):
        counted, title = (
            ("calls", f"Where an iteration of {found.metric} takes longer")
            if found.unit == "s"
            else ("tensors", f"Where {found.metric} is held")
        )
        rows = [
            (rank_text(row), _explained(row, counted), short(row.amounts[0]), short(row.amounts[1]))
            for row in found.rows
        ]
        yield pairs(title, found.unit, rows, note=found.sentence)


def _explained(row: PlaceRow, counted: str) -> str:
    calls = f" {calls_text(row)} {counted}" if any(row.calls) else ""
    changed = f", changed {'' if text == 'here' else 'at '}{text}" if (text := changed_text(row)) else ""
    return f"{format_percent(row.share)} of the change: {row.what}{calls}{changed}"


_Sent = tuple[tuple[str, str, str, str, str], bool]
"""Row of a table of collectives: its texts, with the counts in the baseline and this run; and whether these differ."""


def _sent(before: Sequence[Collective], now: Sequence[Collective]) -> tuple[_Sent, ...]:
    """Rows of an iteration's collectives, sum last; details that one side has not recorded are left out of both."""
    sides = comparable(before, now)
    then, here = map(count, sides)
    rows: list[_Sent] = []
    for one in {**here, **then}:
        where = "" if one.group == "default" else f" in {one.group}"
        what = f"{one.op}{f' ({one.how})' if one.how else ''}{where}"
        size = format_bytes(one.message_bytes) if one.message_bytes else ""
        before_text, now_text = (str(side[one] or "-") for side in (then, here))
        rows.append(((what, before_text, now_text, size, one.dtype), then[one] != here[one]))
    first, second = (format_bytes(payload_bytes(side)) for side in sides)
    return (*rows, (("sent per rank", first, second, "", ""), first != second))


def epochs(result: CaseResult) -> Iterator[Chart]:
    """Charts of what was recorded at each epoch: an accuracy, a BLEU score."""
    found = grouped(
        (m.name, (_seed_of(m, launch), (float(m.at["epoch"]), short(m.value))))
        for launch in result.launches
        for m in launch.measurements
        if m.at.keys() - {"seed"} == {"epoch"} and m.value is not None
    )
    for name, by_seed in found.items():
        drawn = _thick([(seed, sorted(points)) for seed, points in grouped(by_seed).items()], "")
        yield lines(f"{name} by epoch", axis("epoch"), axis(name), drawn, target=target_of([result], name))


_FEWEST_LOOKS = 4  # a launch of fewer was over in half a second: it has no course
_MOST_LAUNCHES = 3


def utilisation(result: CaseResult) -> Iterator[Chart]:
    series = []
    for launch in result.launches[:_MOST_LAUNCHES]:
        courses = {"CPUs": launch.cpu_course, **{gpu.label: gpu.course for gpu in launch.gpu_reports}}
        series += [
            line(f"{name}, launch {launch.index + 1}", points(course))
            for name, course in courses.items()
            if len(course) >= _FEWEST_LOOKS
        ]
    if series:
        x = axis("time from the start of the launch", "s")
        of = "CPUs and GPUs" if any(launch.gpu_reports for launch in result.launches) else "CPUs"
        yield lines(f"Utilisation of the host's {of}", x, axis("busy", "%", from_zero=True), series)


Charts = Mapping[str, Callable[[CaseResult], Iterable[Chart]]]

OF_CASE: Table[str, Callable[[CaseResult], Iterable[Chart]]] = Table(
    "charts", {"places": places, "communication": communication, "curves": curves, "epochs": epochs}
)
"""Charts in their order below a case; utilisation and those of :data:`PAGE_FILES` follow."""

OF_RUN: Table[str, Callable[[Sequence[CaseResult], Prices | None], Iterable[Chart]]] = Table("charts above tables", {})
"""Charts by the name of the table that they stand above, made of all cases, and of prices if the user gave them."""


class PageFiles(NamedTuple):
    """An option of ``distbench report`` that names a file or folder from which the page gets further charts.

    Attributes:
        charts: takes the path, and returns a function that draws the charts of a case.
    """

    metavar: str
    help: str
    charts: Callable[[Path], Callable[[CaseResult], Iterable[Chart]]]


PAGE_FILES: Table[str, PageFiles] = Table("page files", {})  # by the name of the option, and of the chart that it adds


_Given = TypeVar("_Given")


def charts_of(result: CaseResult, more: Charts) -> tuple[list[Chart], list[str]]:
    """Charts of a case, with those of other files; and messages on those that cannot be made."""
    return _charts({**OF_CASE, "utilisation": utilisation, **more}, result)


def charts_above(
    table: str, results: Sequence[CaseResult], prices: Prices | None = None
) -> tuple[list[Chart], list[str]]:
    """:func:`charts_of` for the charts above a table of the run, which may use prices."""
    row = OF_RUN.get(table)
    return _charts({} if row is None else {table: lambda given: row(given, prices)}, results)


def _charts(rows: Mapping[str, Callable[[_Given], Iterable[Chart]]], given: _Given) -> tuple[list[Chart], list[str]]:
    charts: list[Chart] = []
    problems = []
    for name, make in rows.items():
        try:
            charts += list(make(given))
        except Exception as error:  # noqa: BLE001 a page without one of its charts is still a page, and says so
            problems.append(f"the chart {name!r} cannot be made: {error_text(error)}")
    return charts, problems
