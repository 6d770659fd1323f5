"""Sweeps in tables, on the terminal and in charts: as nccl-tests prints them, and several sweeps side by side.

Sweeps side by side are as MLBench's task 0a draws backends: a row per message, a column for each way to send it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean
from typing import Any, NamedTuple

from pytest_distbench.judging.words import change, threshold
from pytest_distbench.records.case import NETWORK
from pytest_distbench.records.kinds import grouped
from pytest_distbench.records.metric import LINK_PEAK, PEAK_MEMORY, Scalar
from pytest_distbench.records.reasons import REASONS, VERDICTS, ReasonCode, severity_order
from pytest_distbench.records.run import CaseResult, Finding
from pytest_distbench.report import Line
from pytest_distbench.report.page import Chart, Point, axis, line, lines, points, short
from pytest_distbench.report.tables.table import Cell, Column, TableKind, microseconds, number
from pytest_distbench.report.verdicts import CaseText, coded_lines, statistics_of, words_of_unchanged
from pytest_distbench.units import GIGABYTE, counted, format_bytes, quantity

_AXIS = "message_bytes"


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepPoint:
    """Results of a sweep at one message size. Bandwidths are in GB/s (1e9 bytes).

    ``busbw`` is None for a collective without a factor, ``busbw_share`` if the peak of the links is unknown, and
    ``wrong_elements`` if nothing was checked. ``time`` is the verdict on the time of a call, with a ``current`` number.
    """

    message_bytes: int
    time: Finding
    most_severe: ReasonCode
    time_s: float
    algbw: float
    busbw: float | None
    busbw_share: float | None
    wrong_elements: float | None

    @property
    def text(self) -> str:
        return " ".join([*(str(v) for k, v in self.time.at.items() if k != _AXIS), format_bytes(self.message_bytes)])


def is_sweep(result: CaseResult) -> bool:
    """Whether some metric of a case has a message size."""
    return any(_AXIS in v.at for v in result.verdicts)


def sweeps(result: CaseResult) -> dict[str, list[SweepPoint]]:
    """Points with a time, by their other axes as text, the smallest size first."""
    series: dict[str, dict[int, dict[str, Finding]]] = {}
    for verdict in result.verdicts:
        if _AXIS in verdict.at:
            name = " ".join(str(value) for axis, value in verdict.at.items() if axis != _AXIS)
            series.setdefault(name, {}).setdefault(int(verdict.at[_AXIS]), {})[verdict.name] = verdict
    made: dict[str, list[SweepPoint]] = {name: [] for name in series}
    for name, size in ((name, size) for name, sizes in series.items() for size in sorted(sizes)):
        found = series[name][size]
        time, wrong = found.get("latency"), found.get("wrong_elements")
        if time is None or time.current is None:
            continue
        factor, peak = (float(time.facts.get(fact, 0.0)) for fact in ("busbw_factor", LINK_PEAK))
        algbw = size / time.current / GIGABYTE if time.current else 0.0
        point = SweepPoint(
            message_bytes=size,
            time=time,
            most_severe=min((v.code for v in found.values()), key=severity_order),
            time_s=time.current,
            algbw=algbw,
            busbw=algbw * factor if factor else None,
            busbw_share=algbw * factor / peak if factor and peak else None,
            wrong_elements=wrong.current if wrong else None,
        )
        made[name].append(point)
    return made


def sweep_points(result: CaseResult) -> list[SweepPoint]:
    """Points of all series, one after the other."""
    return [point for found in sweeps(result).values() for point in found]


def _refusals(result: CaseResult) -> list[Finding]:
    return [v for v in result.verdicts if v.name == "supported" and v.current == 0 and "reason" in v.facts]


_HEADER = ("", "size", "time us", "algbw GB/s", "busbw GB/s", "#wrong", "baseline us", "change", "threshold", "n")


def _sweep_table(result: CaseResult, *, show_all: bool) -> list[Line]:
    points = sweep_points(result)
    shown = [point for point in points if show_all or not REASONS[point.most_severe].is_quiet]
    _, note = statistics_of([point.time for point in shown])
    rows = [
        (
            point.most_severe,
            (
                REASONS[point.most_severe].mark,
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
    lines = [*coded_lines(_HEADER, rows), *map(Line, note)]
    hidden = len(points) - len(shown)
    if hidden:
        lines.append(Line(f"  {counted(hidden, 'size')} {words_of_unchanged(result)} not shown (-v shows all)"))
    return lines


def _refusal_lines(result: CaseResult) -> list[Line]:
    all_facts = [refused.facts for refused in _refusals(result)]
    pairs = [" ".join(str(facts[name]) for name in ("dtype", "redop") if name in facts) for facts in all_facts]
    reasons = grouped((str(facts["reason"]), pair) for facts, pair in zip(all_facts, pairs, strict=True))
    backend = result.case.conditions.backend
    return [Line(f"  {backend} has not {', '.join(pairs)}: {reason}") for reason, pairs in reasons.items()]


def _choose(judged: list[Finding]) -> list[Finding]:
    of_sizes = [v for v in judged if v.unit == "s" and _AXIS in v.at]
    times = sorted(of_sizes, key=lambda v: int(v.at[_AXIS]))
    if not times:
        return judged[:3]
    largest_change = max(times, key=lambda v: abs((v.ratio or 1.0) - 1.0))
    chosen = {times[0].metric, largest_change.metric, times[-1].metric}
    return [v for v in judged if v.metric in chosen or v.code in ("communication", "bound") or v.name == PEAK_MEMORY]


SWEEP = CaseText(is_of=is_sweep, choose=_choose, table=_sweep_table, remarks=_refusal_lines)


_HOW = ("cache", "group", "together", "parts", "over_ranks", "buffers")
"""Facts, besides the mode, that describe how a call was made, in the order of printing."""

_USUAL = {"cache": "rotate"}  # not worth a word; of the others nothing is noted where they are as usual

_ON_A_COPY = "out of place: in place on a copy, made outside the timed part"  # torch has some collectives in place only

NO_ROOT = "-1"  # as nccl-tests writes it


class Sent(NamedTuple):
    """What a sweep sends and how: what its rows have in common. ``network``: the chosen one, or ""."""

    test: str
    collective: str
    backend: str
    world_size: int
    mode: str
    how: str
    dtype: str
    redop: str
    root: str
    device: str
    network: str
    transport: str


@dataclass(slots=True, kw_only=True)
class CollectiveRow:
    """A row of the table: one message size of a sweep. ``sides``: whether it is in place -> results.

    The size is None if the sweep failed; ``count`` is elements, as nccl-tests counts them; ``verdict`` is the most
    severe one, ``unsupported`` or ``failed``; ``note`` says why numbers are missing, or how to read them.
    """

    sent: Sent
    message_bytes: int | None
    count: int | None
    sides: dict[bool, SweepPoint]
    verdict: str
    note: str

    @property
    def called(self) -> Cell:
        return Cell(self.sent.mode, f"{self.sent.mode} {self.sent.how}".rstrip())


def collective_rows(results: Sequence[CaseResult]) -> list[CollectiveRow]:
    """Rows by sweep and message size, as in the tables of nccl-tests."""
    rows: dict[tuple[object, ...], list[CollectiveRow]] = {}
    for result in results:
        for row in _rows_of(result):
            known = rows.setdefault((row.sent, row.message_bytes), [])
            other = next((r for r in known if r.sides and row.sides and not r.sides.keys() & row.sides.keys()), None)
            if other is None:
                known.append(row)
                continue
            other.sides |= row.sides
            other.note = other.note or row.note
            other.verdict = min(other.verdict, row.verdict, key=[*map(str, VERDICTS)].index)
    return [row for found in rows.values() for row in found]


def _rows_of(result: CaseResult) -> Iterator[CollectiveRow]:
    for point in sweep_points(result):
        facts = point.time.facts
        if "collective" in facts:  # else message sizes of something that has a table of its own
            verdict = REASONS[point.most_severe].verdict
            note = _ON_A_COPY if facts.get("copies") else ""
            sides = {bool(facts.get("in_place", True)): point}
            yield _row(result, facts, point.message_bytes, verdict, note, sides)
    for refused in _refusals(result):
        reason = f"{result.case.conditions.backend}: {refused.facts['reason']}"
        had_it = refused.baseline == 1 or any(
            v.name == "latency" and v.current is None and v.baseline is not None for v in result.verdicts
        )
        size = refused.facts.get(_AXIS)
        note = f"{reason} (the baseline has it)" if had_it else reason
        yield _row(result, refused.facts, size, "unsupported", note, {})
    last = result.launches[-1] if result.launches else None
    if last is not None and last.outcome == "failed" and "collective" in result.case.params:
        yield _row(result, {}, None, "failed", (last.reason.splitlines() or [""])[0], {})


def _row(
    result: CaseResult,
    facts: dict[str, Scalar],
    size: Scalar | None,
    verdict: str,
    note: str,
    sides: dict[bool, SweepPoint],
) -> CollectiveRow:
    case, count = result.case, facts.get("count")
    said = {**{k: v for k, v in case.params.items() if isinstance(v, str | int)}, **facts}
    how = [name for name in _HOW if name in facts and said[name] != _USUAL.get(name)]
    return CollectiveRow(
        sent=Sent(
            test=case.test,
            collective=str(said.get("collective", "?")),
            backend=case.conditions.backend,
            world_size=case.world_size,
            mode=str(said.get("mode", "per-iteration")),
            how=" ".join(str(said[name]) if name in ("cache", "together") else f"{name}={said[name]}" for name in how),
            dtype=str(said.get("dtype", "?")),
            redop=str(said.get("redop", "none")),
            root=str(said.get("root", NO_ROOT)),
            device=case.device,
            network=case.conditions.around.get(NETWORK, ""),
            transport=str(said.get("transport", "")),
        ),
        message_bytes=None if size is None else int(size),
        count=None if count is None else int(count),
        sides=sides,
        verdict=verdict,
        note=note,
    )


def footer(rows: Sequence[CollectiveRow]) -> list[str]:
    """The last lines of nccl-tests; with a mean for each collective, backend and world size if there are several."""
    wrong = sum(int(side.wrong_elements or 0) for row in rows for side in row.sides.values())
    failed = sum(row.verdict == "failed" for row in rows)
    state = "OK" if not wrong and not failed else "FAILED"
    more = f", and {counted(failed, 'sweep')} without numbers" if failed else ""
    lines = [f"# Out of bounds values : {wrong} {state}{more}"]
    programs = grouped(
        ((row.sent.collective, row.sent.backend, row.sent.world_size, row.sent.network), row) for row in rows
    )
    for (collective, backend, ranks, network), own in programs.items():
        if found := [side.busbw for row in own for side in row.sides.values() if side.busbw is not None]:
            over = f", {network}" if network else ""
            whose = f"  {collective}, {backend}, {ranks} ranks{over}" if len(programs) > 1 else ""
            lines.append(f"# Avg bus bandwidth    : {fmean(found):g}{whose}")
    return lines


def _placement(name: str, *, in_place: bool) -> list[Column[CollectiveRow]]:
    def column(
        what: str, heading: str, cell: Callable[[SweepPoint], Cell], *, if_any: bool = False
    ) -> Column[CollectiveRow]:
        return Column(
            f"{name}_{what}",
            float,
            lambda rows: heading if any(in_place in row.sides for row in rows) else None,
            lambda row: cell(row.sides[in_place]) if in_place in row.sides else Cell(None, ""),
            if_any=if_any,
        )

    return [
        column("time_s", f"{name.replace('_', '-')} time(us)", lambda point: microseconds(point.time_s, ".2f")),
        column("algbw_gb_per_s", "algbw(GB/s)", lambda point: number(point.algbw, ".3f")),
        column("busbw_gb_per_s", "busbw(GB/s)", lambda point: number(point.busbw, ".3f")),
        column("busbw_share", "of peak", lambda point: number(point.busbw_share, ".1%"), if_any=True),
        column("wrong_elements", "#wrong", lambda point: number(point.wrong_elements, ".0f", nothing="N/A")),
    ]


COLLECTIVES: TableKind[CollectiveRow] = TableKind(
    summary="Every message of every sweep, as nccl-tests prints it.",
    rows=collective_rows,
    columns=[
        Column("test", str, None, lambda row: row.sent.test),
        Column("collective", str, "collective", lambda row: row.sent.collective),
        Column("backend", str, "backend", lambda row: row.sent.backend),
        Column("mode", str, "mode", lambda row: row.called),
        Column("how", str, None, lambda row: row.sent.how),
        Column("transport", str, "transport", lambda row: row.sent.transport, if_any=True),
        Column("world_size", int, "ranks", lambda row: row.sent.world_size),
        Column("network", str, "network", lambda row: row.sent.network, if_any=True),
        Column("message_bytes", int, "size(B)", lambda row: number(row.message_bytes, "", nothing="")),
        Column("count", int, "count", lambda row: number(row.count, "", nothing="")),
        Column("type", str, "type", lambda row: row.sent.dtype),
        Column("redop", str, "redop", lambda row: row.sent.redop),
        Column("root", str, "root", lambda row: row.sent.root),
        *_placement("out_of_place", in_place=False),
        *_placement("in_place", in_place=True),
        Column("verdict", str, "verdict", lambda row: row.verdict),
        Column("note", str, "note", lambda row: row.note, if_any=True),
    ],
    footer=lambda rows: footer(rows) if rows else (),
)


_UNNAMED = {"transport": "usual"}
"""Name of a way that nobody has chosen; a way without a name is no side of a comparison."""

_Ways = tuple[bool, dict[str, CollectiveRow | None]]
"""Whether a message is in place; and way to send it -> its row, or None if not measured, in the order of the sweeps."""


def _ways(results: Sequence[CaseResult], way: str) -> Iterator[_Ways]:
    """Rows that compare the ways of an operation, for each size and placement, if it was measured in more than one.

    ``way`` is the field of :class:`Sent` that distinguishes them. A size that the backend does not support in one way
    has the placements of the others.
    """
    kinds: dict[Sent, dict[str, dict[int, CollectiveRow]]] = {}
    for row in collective_rows(results):
        name: str = getattr(row.sent, way) or _UNNAMED.get(way, "")
        if row.message_bytes is not None and name:
            whatever: dict[str, Any] = {"test": "", way: ""}
            known = kinds.setdefault(row.sent._replace(**whatever), {}).setdefault(name, {})
            other = known.setdefault(row.message_bytes, row)
            if other is not row:
                other.sides |= row.sides
    for ways in kinds.values():
        for size in dict.fromkeys(size for rows in ways.values() for size in rows) if len(ways) > 1 else ():
            found = {name: rows.get(size) for name, rows in ways.items()}
            placements = dict.fromkeys(in_place for row in found.values() if row for in_place in row.sides)
            yield from ((in_place, found) for in_place in placements)


def _any(row: _Ways) -> CollectiveRow:
    return next(found for found in row[1].values() if found is not None)


def _time(name: str) -> Column[_Ways]:
    def cell(row: _Ways) -> Cell:
        in_place, ways = row
        found = ways.get(name)
        if found is None or (found.sides and in_place not in found.sides):
            return Cell(None, "-")
        return microseconds(found.sides[in_place].time_s, ".2f") if found.sides else Cell(None, found.verdict)

    return Column(f"{name}_time_s", float, f"{name} time(us)", cell)


def _times_first(name: str) -> Column[_Ways]:
    def cell(row: _Ways) -> Cell:
        in_place, ways = row
        own, first = (ways.get(of) for of in (name, next(iter(ways))))
        if own is None or first is None or in_place not in own.sides or in_place not in first.sides:
            return Cell(None, "-")
        return number(own.sides[in_place].time_s / first.sides[in_place].time_s, ".3f")

    return Column(f"{name}_times_first", float, f"x {name}", cell)


def _if_chosen(way: str) -> Column[_Ways]:
    return Column(way, str, way, lambda row: getattr(_any(row).sent, way), if_any=True)


def _side_by_side(way: str, *, summary: str, needs: str, has_ratios: bool = False) -> TableKind[_Ways]:
    others = [other for other in ("backend", "transport", "network") if other != way]

    def further(rows: Sequence[_Ways]) -> list[Column[_Ways]]:
        names = list(dict.fromkeys(name for _, ways in rows for name in ways))
        if not has_ratios:
            return list(map(_time, sorted(names)))
        return [*map(_time, names), *map(_times_first, names[1:])]

    return TableKind(
        summary=summary,
        rows=partial(_ways, way=way),
        columns=[
            Column("collective", str, "collective", lambda row: _any(row).sent.collective),
            Column("device", str, "device", lambda row: _any(row).sent.device),
            *map(_if_chosen, others),
            Column("mode", str, "mode", lambda row: _any(row).called),
            Column("world_size", int, "ranks", lambda row: _any(row).sent.world_size),
            Column("message_bytes", int, "size(B)", lambda row: _any(row).message_bytes),
            Column("count", int, "elements", lambda row: number(_any(row).count, "", nothing="")),
            Column("type", str, "type", lambda row: _any(row).sent.dtype),
            Column("redop", str, "redop", lambda row: _any(row).sent.redop),
            Column("in_place", bool, None, lambda row: row[0]),
        ],
        further=further,
        needs=needs,
    )


BACKENDS = _side_by_side(
    "backend",
    summary="Sweeps of several backends, side by side.",
    needs="a sweep with --distbench-backend NAME,NAME",
)
TRANSPORTS = _side_by_side(
    "transport",
    summary="Sweeps of several transports, side by side.",
    needs="a sweep with transport=[NAME, NAME]",
)
NETWORKS = _side_by_side(
    "network",
    summary="Sweeps over several networks, side by side, with the ratio to the first.",
    needs="a sweep over several networks: network=",
    has_ratios=True,
)


_MESSAGE = axis("message size", "B", scale="log2")


def bandwidth(result: CaseResult) -> Iterator[Chart]:
    """Chart bus bandwidth against message size; algorithm bandwidth for a collective without a factor."""
    found_by_name = {name: found for name, found in sweeps(result).items() if found}
    if not any(len(found) > 1 for found in found_by_name.values()):
        return
    has_factor = all(point.busbw is not None for found in found_by_name.values() for point in found)
    series = []
    for name, found in found_by_name.items():
        rates = [(point.busbw if has_factor else point.algbw) or 0.0 for point in found]
        series.append(line(name or "this run", _rates(found, rates)))
        before = [
            rate * point.time_s / point.time.baseline if point.time.baseline else None
            for point, rate in zip(found, rates, strict=True)
        ]
        if any(before):
            called = f"{name} baseline".strip()
            series.append(line(called, _rates(found, before), "reference"))
    title = "Bus bandwidth by message size" if has_factor else "Bandwidth by message size"
    yield lines(title, _MESSAGE, axis("bandwidth", "B/s", scale="log"), series)


def _rates(found: Sequence[SweepPoint], rates: Sequence[float | None]) -> list[Point]:
    pairs = zip(found, rates, strict=True)
    return points((point.message_bytes, rate * GIGABYTE) for point, rate in pairs if rate)


def change_by_size(result: CaseResult) -> Iterator[Chart]:
    """Chart the time of each message size as a share of the baseline's: a loss that no axis of decades shows."""
    found_by_name = {name: found for name, found in sweeps(result).items() if found}
    series = []
    allowed: list[tuple[float, float, float]] = []
    for name, found in found_by_name.items():
        judged = [(p.message_bytes, p.time.ratio, p.time.threshold) for p in found if p.time.ratio is not None]
        if len(judged) > 1:
            series.append(line(name or "this run", points((size, ratio) for size, ratio, _ in judged)))
            limits = [(size, limit) for size, _, limit in judged if limit is not None]
            allowed = allowed or [(float(size), short(1 / (1 + limit)), short(1 + limit)) for size, limit in limits]
    if series:
        y = axis("time, % of the baseline", "%")
        yield lines("Time as % of the baseline", _MESSAGE, y, series, allowed=allowed)
