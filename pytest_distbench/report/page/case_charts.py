"""Charts of one case: its sweep, what it learns, where its steps go, its links."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from statistics import median
from typing import NamedTuple

from pytest_distbench.judging.collective_text import alike_told, count, payload_bytes
from pytest_distbench.judging.fingerprint_rule import compared_fingerprints, ranks_of
from pytest_distbench.judging.links import Link
from pytest_distbench.judging.words import point_text
from pytest_distbench.records.iteration import UNACCOUNTED, Collective, of_rank, rank_ranges
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.metric import (
    EVALUATED,
    EVALUATION_ENDS,
    EVERY,
    PEAK_MEMORY,
    PHASE,
    Sample,
    without,
)
from pytest_distbench.records.run import CaseResult
from pytest_distbench.report.page import Axis, Bars, Chart, Grid, Heat, Lines, Point, Series, points, short
from pytest_distbench.units import GIGABYTE, quantity
from pytest_distbench.workloads.tables.collectives import SweepPoint, sweep_points
from pytest_distbench.workloads.tables.communication import link_points
from pytest_distbench.workloads.tables.phases import PHASES, whole_of

MOST_POINTS = 300
"""Of a curve: a screen has not many more."""


LOSS, LOSS_CURVE = "loss", "loss_curve"
"""All losses, and the first ones, which are judged."""


Curves = dict[str, list[tuple[str, list[Point]]]]
"""Name -> its launches, each with a name of its own."""


def curves_of(launches: Sequence[LaunchRecord]) -> Curves:
    """Of launches; what was evaluated stands for what the training computed under the same name."""
    found: Curves = {}
    evaluated = {m.name for launch in launches for m in launch.measurements if m.name.startswith(EVALUATED)}
    for launch in launches:
        for measured in launch.measurements:
            is_curve = measured.better in ("info", "curve") and len(measured.values) > 1
            is_beside = measured.name in (PEAK_MEMORY, EVALUATION_ENDS) or measured.name.startswith(PHASE)
            is_beside |= EVALUATED + measured.name in evaluated
            if is_curve and not is_beside:
                seed = f"seed {measured.at['seed']}" if "seed" in measured.at else f"launch {launch.index + 1}"
                every = int(measured.facts.get(EVERY, 1))
                found.setdefault(_name_over_seeds(measured), []).append((seed, _thin_out(measured.values, every)))
    return found


def without_first_losses(curves: Curves) -> Curves:
    """All losses stand for the first ones."""
    return {name: drawn for name, drawn in curves.items() if name != LOSS_CURVE or LOSS not in curves}


def median_curve(curves: Sequence[Sequence[Point]]) -> list[Point]:
    by_x: dict[float, list[float]] = {}
    for x, y in (point for curve in curves for point in curve):
        by_x.setdefault(x, []).append(y)
    return [(x, short(median(values))) for x, values in sorted(by_x.items())]


def over_time(result: CaseResult, curve: Sequence[Point]) -> list[Point]:
    """A curve by step at the moments of its steps, in seconds from the first on; empty where nobody knows these.

    They are between the ends of evaluations, which a goal knows; else at the median step.
    """
    measured = [m for launch in result.launches for m in launch.measurements]
    ends = _ends([m for m in measured if m.name == EVALUATION_ENDS])
    steps = [m.value for m in measured if m.name == "step_time" and m.value]
    if not ends and not steps:
        return []
    known = [(0.0, 0.0), *(ends or [(1.0, median(steps))])]
    return points((_at(known, step), value) for step, value in curve)


def _ends(measured: Sequence[Sample]) -> list[Point]:
    """When each evaluation ended: by medians of the times from one to the next, so that none ended before another."""
    lasted: dict[int, list[float]] = {}
    for m in measured:
        for i, (began, ended) in enumerate(pairwise([0.0, *m.values]), 1):
            lasted.setdefault(i * int(m.facts.get(EVERY, 1)), []).append(ended - began)
    medians = [median(lasted[step]) for step in sorted(lasted)]
    return [*zip(map(float, sorted(lasted)), accumulate(medians), strict=True)]


def _at(known: Sequence[Point], step: float) -> float:
    """When a step was taken: on the line between the two known ones about it, or on the last such line."""
    i = min(max(1, bisect_left(known, (step, 0.0))), len(known) - 1)
    (before, began), (after, ended) = known[i - 1], known[i]
    return began + (ended - began) * (step - before) / (after - before)


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


_MESSAGE = Axis(name="message size", unit="B", scale="log2")


def bandwidth(result: CaseResult) -> Iterator[Chart]:
    """Bus bandwidth against message size; algorithm bandwidth where a collective has no factor."""
    sweeps = _sweeps(result)
    if not any(len(found) > 1 for found in sweeps.values()):
        return
    has_factor = all(point.busbw is not None for found in sweeps.values() for point in found)
    series = []
    for name, found in sweeps.items():
        rates = [(point.busbw if has_factor else point.algbw) or 0.0 for point in found]
        series.append(Series(name=name or "this run", points=_rates(found, rates)))
        before = [
            rate * point.time_s / point.time.baseline if point.time.baseline else None
            for point, rate in zip(found, rates, strict=True)
        ]
        if any(before):
            called = f"{name} baseline".strip()
            series.append(Series(name=called, points=_rates(found, before), look="reference"))
    title = "Bus bandwidth by message size" if has_factor else "Bandwidth by message size"
    yield Lines(title=title, x=_MESSAGE, y=Axis(name="bandwidth", unit="B/s", scale="log"), series=series)


def _rates(found: Sequence[SweepPoint], rates: Sequence[float | None]) -> list[Point]:
    pairs = zip(found, rates, strict=True)
    return points((point.message_bytes, rate * GIGABYTE) for point, rate in pairs if rate)


def change_by_size(result: CaseResult) -> Iterator[Chart]:
    """The time of each message size as a share of the baseline's: a loss that no axis of decades shows."""
    sweeps = _sweeps(result)
    series: list[Series] = []
    allowed: list[tuple[float, float, float]] = []
    for name, found in sweeps.items():
        judged = [(p.message_bytes, p.time.ratio, p.time.threshold) for p in found if p.time.ratio is not None]
        if len(judged) > 1:
            series.append(Series(name=name or "this run", points=points((size, ratio) for size, ratio, _ in judged)))
            limits = [(size, limit) for size, _, limit in judged if limit is not None]
            allowed = allowed or [(float(size), short(1 / (1 + limit)), short(1 + limit)) for size, limit in limits]
    if series:
        y = Axis(name="time, % of the baseline", unit="%")
        yield Lines(title="Time as % of the baseline", x=_MESSAGE, y=y, series=series, allowed=allowed)


def _sweeps(result: CaseResult) -> dict[str, list[SweepPoint]]:
    """By what tells the points of one size apart."""
    sweeps: dict[str, list[SweepPoint]] = {}
    for point in sweep_points(result):
        others = (str(value) for axis, value in point.time.at.items() if axis != "message_bytes")
        sweeps.setdefault(" ".join(others), []).append(point)
    return sweeps


def curves(result: CaseResult) -> Iterator[Chart]:
    """Series that the record keeps, step by step: every launch or seed thin, their median thick, the baseline dotted.

    The first losses, which are judged, are drawn apart from all losses: a baseline has no more of them.
    """
    before = curves_of(result.reference.launches) or _stored_curves(result)
    found = curves_of(result.launches)
    if LOSS_CURVE in before:
        before.setdefault(LOSS, before[LOSS_CURVE])
    else:
        found = without_first_losses(found)
    for name, here in found.items():
        drawn = [*_thick(here, ""), *_thick(before.get(name, []), "baseline")]
        y = Axis(name=name, unit=unit_of([result], name))
        yield Lines(title=f"{name} by step", x=Axis(name="step"), y=y, series=drawn, target=target_of([result], name))


def _stored_curves(result: CaseResult) -> Curves:
    """Of a stored baseline, by the names that the curves of this run have."""
    found: Curves = {}
    measured = {m.key: m for m in _measurements([result])}
    for key, stored in result.reference.metrics.items():
        if stored[0].better == "curve" and key in measured:
            found.setdefault(_name_over_seeds(measured[key]), []).append(("baseline", _thin_out(stored[0].values, 1)))
    return found


def _thick(curves: Sequence[tuple[str, list[Point]]], whose: str) -> list[Series]:
    """The launches of one side, and their median; of the baseline only that, dotted."""
    if not curves:
        return []
    middle = median_curve([drawn for _, drawn in curves])
    if whose:
        return [Series(name=whose if len(curves) == 1 else f"{whose} median", points=middle, look="reference")]
    if len(curves) == 1:
        return [Series(name=curves[0][0], points=middle)]
    return [
        *(Series(name=name, points=drawn, look="thin") for name, drawn in curves),
        Series(name="median", points=middle),
    ]


def communication(result: CaseResult) -> Iterator[Chart]:
    """What an iteration sends, next to the baseline: of each loop in which that differs, and of ranks that differ."""
    now, then = compared_fingerprints(result)
    for loop, here in now.items():
        tables: dict[tuple[_Sent, ...], list[int]] = {}
        for rank in sorted({*ranks_of(then[loop]), *ranks_of(here)}):
            rows = _sent(*(of_rank(side.collectives, rank) or [] for side in (then[loop], here)))
            if any(row.is_changed for row in rows):
                tables.setdefault(rows, []).append(rank)
        for rows, ranks in tables.items():
            whose = f", rank{'s' * (len(ranks) > 1)} {rank_ranges(ranks)}" if len(tables) > 1 else ""
            yield Grid(
                title=f"Communication in an iteration of {loop}{whose}",
                head=["", "collective", "baseline", "this run", "message", "dtype"],
                right=[False, False, True, True, True, False],
                rows=[["*" if row.is_changed else "", *row[:-1]] for row in rows],
                changed=[row.is_changed for row in rows],
            )


class _Sent(NamedTuple):
    """Equal collectives of an iteration: how many the baseline has of them, and how many this run."""

    what: str
    before: str
    now: str
    size: str
    dtype: str
    is_changed: bool


def _sent(before: Sequence[Collective], now: Sequence[Collective]) -> tuple[_Sent, ...]:
    """The sum last; what one side has not recorded of reductions, roots and partners is left out of both."""
    sides = alike_told(before, now)
    then, here = map(count, sides)
    rows = []
    for one in {**here, **then}:
        where = "" if one.group == "default" else f" in {one.group}"
        what = f"{one.op}{f' ({one.how})' if one.how else ''}{where}"
        size = quantity(one.message_bytes, "B") if one.message_bytes else ""
        told = [str(side[one] or "-") for side in (then, here)]
        rows.append(_Sent(what, told[0], told[1], size, one.dtype, then[one] != here[one]))
    sums = [payload_bytes(side) for side in sides]
    told = [quantity(size, "B") for size in sums]
    return (*rows, _Sent("sent per rank", told[0], told[1], "", "", sums[0] != sums[1]))


def epochs(result: CaseResult) -> Iterator[Chart]:
    """What was recorded at each epoch: an accuracy, a BLEU score."""
    found: dict[str, dict[str, list[Point]]] = {}
    for launch in result.launches:
        for measured in launch.measurements:
            if measured.at.keys() - {"seed"} == {"epoch"} and measured.value is not None:
                seed = f"seed {measured.at['seed']}" if "seed" in measured.at else f"launch {launch.index + 1}"
                epoch = float(measured.at["epoch"])
                found.setdefault(measured.name, {}).setdefault(seed, []).append((epoch, short(measured.value)))
    for name, by_seed in found.items():
        drawn = _thick([(seed, sorted(drawn)) for seed, drawn in by_seed.items()], "")
        yield Lines(
            title=f"{name} by epoch",
            x=Axis(name="epoch"),
            y=Axis(name=name),
            series=drawn,
            target=target_of([result], name),
        )


def phases(result: CaseResult) -> Iterator[Chart]:
    """Where a step of each rank goes: its outermost phases, and what is in none."""
    loops: dict[str, dict[str, Sequence[float]]] = {}
    for row in PHASES.rows([result]):
        if (row.kind == "phase" and len(row.path) == 1) or row.kind == UNACCOUNTED:
            loops.setdefault(row.loop, {})[row.path[0] if row.path else UNACCOUNTED] = row.times_s
    for loop, parts in loops.items():
        rows = [
            (f"rank {rank}", [short(max(0.0, times_s[rank])) for times_s in parts.values()])
            for rank in range(min(map(len, parts.values())))
        ]
        yield Bars(title=f"Where {whole_of(loop)} goes, by rank", unit="s", parts=[*parts], rows=rows)


def links(result: CaseResult) -> Iterator[Chart]:
    found = list(link_points(result))
    ranks = 1 + max((max(point.link) for point in found), default=0)
    latencies = {point.link: point.latency_s for point in found}
    rates = {p.link: None if p.bandwidth is None else p.bandwidth * GIGABYTE for p in found}
    for title, unit, values in (("Latency of links", "s", latencies), ("Bandwidth of links", "B/s", rates)):
        if any(value is not None for value in values.values()):
            cells = [[values.get(Link(source, target)) for target in range(ranks)] for source in range(ranks)]
            labels = [f"rank {rank}" for rank in range(ranks)]
            yield Heat(title=title, unit=unit, down="from", across="to", labels=labels, cells=cells)


_FEWEST_LOOKS = 4
"""A launch of fewer was over in half a second: it has no course."""
_MOST_LAUNCHES = 3


def utilisation(result: CaseResult) -> Iterator[Chart]:
    series = []
    for launch in result.launches[:_MOST_LAUNCHES]:
        courses = {"CPUs": launch.cpu_course, **{gpu.label: gpu.course for gpu in launch.gpu_witnesses}}
        series += [
            Series(name=f"{name}, launch {launch.index + 1}", points=points(course))
            for name, course in courses.items()
            if len(course) >= _FEWEST_LOOKS
        ]
    if series:
        x = Axis(name="time from the start of the launch", unit="s")
        yield Lines(title="Utilisation over time", x=x, y=Axis(name="busy", unit="%", from_zero=True), series=series)
