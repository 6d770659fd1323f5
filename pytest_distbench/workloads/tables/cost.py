"""Set-ups of trainings, as reports 003 and 004 print them, and whether distributing them was worth it.

Price index as MLBench's tasks 4a and 4b: price increase over performance increase, relative to the smallest world size.
Statistical and hardware efficiency as Zhang and Ré (DimmWitted, PVLDB 7, 2014): steps to the goal, and time per step.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from functools import partial
from itertools import accumulate, pairwise
from statistics import median

from pytest_distbench.machine.hardware import mask_addresses
from pytest_distbench.records.case import CPUS, NODES, OVERSUBSCRIBED
from pytest_distbench.records.environment import TERMS, Machine, Prices, Term
from pytest_distbench.records.iteration import SAMPLES
from pytest_distbench.records.kinds import grouped
from pytest_distbench.records.metric import EVALUATION_ENDS, EVERY, Sample, metric_key, without
from pytest_distbench.records.run import CaseResult, RunRecord
from pytest_distbench.report.page import (
    Chart,
    Point,
    axis,
    curves_of,
    line,
    lines,
    median_curve,
    points,
    target_of,
    unit_of,
    without_first_losses,
)
from pytest_distbench.report.tables.table import Cell, Column, TableKind, number, seconds
from pytest_distbench.report.verdicts import judged_number
from pytest_distbench.units import counted
from pytest_distbench.workloads import COMMUNICATION, RATE_COMMUNICATION

STALE_DAYS = 180  # between the day of the prices and that of the run: beyond it the table says so

_GOAL_STEPS = "steps_to_"
_GOAL_TIME = "time_to_"
_STEP_TIME = "step_time"
_RATE = "_per_second"
_MILLION = 1_000_000
_A_RUN = "run"
_LAUNCHER = "launcher"
"""Phase of the first launch: the process that starts ranks loads torch once, for all launches of the pytest run."""


@dataclass(slots=True, kw_only=True)
class CostRow:
    """A row: time and cost of a case for ``what``, which is ``run``, ``accuracy 0.97`` or ``million samples``.

    Times and steps are medians over launches and seeds; the time is None if no training met the goal. ``met`` says how
    many did: ``4 of 5``. ``least`` is the row of the smallest world size, which may be this one.
    """

    result: CaseResult
    what: str
    time_s: float | None
    steps: float | None = None
    step_s: float | None = None
    met: str = ""
    prices: Prices | None = None
    run: RunRecord | None = None
    least: CostRow = field(init=False)

    @property
    def ranks(self) -> int:
        return self.result.case.world_size

    @property
    def machine(self) -> Machine | None:
        return None if self.prices is None else self.prices.machine(self.result.environment.platform)

    @property
    def speedup(self) -> float | None:
        return _over(self.least.time_s, self.time_s)

    @property
    def statistical(self) -> float | None:
        return _over(self.least.steps, self.steps)

    @property
    def hardware(self) -> float | None:
        return _over(self.least.step_s, self.step_s)

    @property
    def nodes(self) -> int | None:
        return None if self.machine is None else self.machine.nodes(self.ranks)

    def cost(self, term: Term) -> float | None:
        if self.machine is None or self.time_s is None:
            return None
        return self.machine.cost(term, ranks=self.ranks, seconds=self.time_s)

    @property
    def price_index(self) -> float | None:
        """Price increase over performance increase; below 1 distributing was worth it.

        Nodes of one kind cost the same, so the term does not matter.
        """
        increases = (_over(self.cost(term), self.least.cost(term)) for term in TERMS)
        increase = next((found for found in increases if found is not None), None)
        return None if increase is None else _over(increase, self.speedup)


def cost_rows(
    results: Sequence[CaseResult], prices: Prices | None = None, run: RunRecord | None = None
) -> list[CostRow]:
    """Rows of cases that trained to a goal or recorded a rate, by test, with ascending ranks; no elastic jobs."""
    found: dict[tuple[object, ...], list[CostRow]] = {}
    for result in results:
        case, platform = result.case, result.environment.platform
        under = case.conditions
        needed = (OVERSUBSCRIBED, NODES)  # cores and nodes differ with the world size
        around = tuple(sorted((by, what) for by, what in under.around.items() if by not in needed))
        alike = (case.test, case.family, case.run, case.device, platform, under.backend, around)
        for row in _purchases(result):
            row.prices, row.run = prices, run
            found.setdefault((*alike, row.what), []).append(row)
    for rows in found.values():
        rows.sort(key=lambda row: row.ranks)
        for row in rows:
            row.least = rows[0]
    return [row for rows in found.values() for row in rows]


def _over(one: float | None, other: float | None) -> float | None:
    return one / other if one is not None and other else None


def _purchases(result: CaseResult) -> Iterator[CostRow]:
    passed = (launch for launch in result.launches if launch.outcome == "passed")
    launches = [launch for launch in passed if not launch.only and not launch.events]
    samples = (m for launch in launches for m in launch.measurements)
    found = grouped(((m.name, metric_key("", without(m.at, "seed"))), m) for m in samples)
    goals = [name for name in found if name[0].startswith(_GOAL_STEPS)]
    if goals:
        time_s = median(launch.wall_s - launch.phases.get(_LAUNCHER, 0.0) for launch in launches)
        yield CostRow(result=result, what=_A_RUN, time_s=time_s)
    for name, at in goals:
        metric, steps = name.removeprefix(_GOAL_STEPS), found[name, at]
        targets = (m.identity.get("target") for m in steps)
        target = next((f" {target:g}" for target in targets if isinstance(target, float)), "")
        yield CostRow(
            result=result,
            what=f"{metric}{at}{target}",
            time_s=judged_number(result, found.get((_GOAL_TIME + metric, at), [])),
            steps=judged_number(result, steps),
            step_s=judged_number(result, found.get((_STEP_TIME, at), [])),
            met=f"{sum(m.value is not None for m in steps)} of {len(steps)}",
        )
    for (name, at), measured in found.items():
        sends = measured[0].facts.get(RATE_COMMUNICATION, COMMUNICATION[0]) == COMMUNICATION[0]
        if name.endswith(_RATE) and sends and (rate := judged_number(result, measured)):
            what = f"million {name.removesuffix(_RATE)}{at}"
            yield CostRow(result=result, what=what, time_s=_MILLION / rate)


def _footer(rows: Sequence[CostRow]) -> Iterator[str]:
    if not rows:
        return
    smallest = (row for row in rows if row.least is row and row.ranks > 1)
    yield from dict.fromkeys(
        f"{row.result.case.series}: relative to {row.ranks} ranks, the fewest that it ran on" for row in smallest
    )
    prices, run = rows[0].prices, rows[0].run
    if prices is None:
        yield "what it costs, and the price index: give --prices FILE.toml (distbench explain prices)"
        return
    yield f"prices by the hour in {prices.currency}, of {prices.date}: {prices.source}"
    for machine in {row.machine.name: row.machine for row in rows if row.machine is not None}.values():
        each = ", ".join(f"{price:.4g} {term}" for term, price in machine.per_hour.items())
        yield f"{machine.name}: {each}; ranks per node: {machine.ranks_per_node}"
    limited = dict.fromkeys(cpus for row in rows if (cpus := row.result.case.conditions.around.get(CPUS)))
    yield from (f"{CPUS}={cpus}: priced as whole nodes, of which each rank may use {cpus} cores" for cpus in limited)
    unknown = dict.fromkeys(row.result.environment.platform for row in rows if row.machine is None)
    yield from (f"no price for the platform {name}: add it to platforms of a machine" for name in unknown)
    if run is not None and (days := abs((date.fromisoformat(run.started[:10]) - prices.date).days)) > STALE_DAYS:
        yield f"these prices are {days} days older or newer than the run of {run.started[:10]}: look them up again"


def _is_priced(rows: Sequence[CostRow]) -> bool:
    return bool(rows) and rows[0].prices is not None


def _cost(term: Term) -> Column[CostRow]:
    def heading(rows: Sequence[CostRow]) -> str | None:
        prices = rows[0].prices if rows else None
        return None if prices is None else f"{term} ({prices.currency})"

    return Column(f"cost_{term}", float, heading, lambda row: number(row.cost(term), ".4g"))


COST: TableKind[CostRow] = TableKind(
    summary="Speed-up and efficiencies by world size; with ``--prices`` also costs.",
    rows=cost_rows,
    columns=[
        Column("test", str, "test", lambda row: Cell(row.result.nodeid, row.result.case.series)),
        Column("of", str, "of", lambda row: row.what),
        Column("world_size", int, "ranks", lambda row: row.ranks),
        Column("nodes", int, lambda rows: "nodes" if _is_priced(rows) else None, lambda row: row.nodes),
        Column("met", str, "met", lambda row: Cell(row.met or None, row.met or "-")),
        Column("time_s", float, "time", lambda row: seconds(row.time_s)),
        Column("speedup", float, "speed-up", lambda row: number(row.speedup, ".2f")),
        Column("steps", float, "steps", lambda row: number(row.steps, ".4g")),
        Column("statistical_efficiency", float, "statistical", lambda row: number(row.statistical, ".2f")),
        Column("step_s", float, "time per step", lambda row: seconds(row.step_s)),
        Column("hardware_efficiency", float, "hardware", lambda row: number(row.hardware, ".2f")),
        *map(_cost, TERMS),
        Column("currency", str, None, lambda row: None if row.prices is None else row.prices.currency),
        Column("machine", str, None, lambda row: None if row.machine is None else row.machine.name),
        Column(
            "price_index",
            float,
            lambda rows: "price index" if _is_priced(rows) else None,
            lambda row: number(row.price_index, ".2f"),
        ),
    ],
    footer=_footer,
    needs="trainings to a goal, or a rate such as samples_per_second",
    takes=["prices", "run"],
)


def cost_charts(results: Sequence[CaseResult], prices: Prices | None = None) -> Iterator[Chart]:
    """Chart the gains of more ranks: speed-up, fewer and faster steps; their cost; and every training over time."""
    found: dict[str, dict[str, list[CostRow]]] = {}
    for row in cost_rows(results, prices):
        if row.speedup is not None and row.time_s:
            found.setdefault(row.result.case.series, {}).setdefault(row.what, []).append(row)
    for test, bought in found.items():
        sizes = {what: rows for what, rows in bought.items() if len(rows) > 1}
        for what, rows in sizes.items():
            if any(row.statistical is not None for row in rows):
                # as the product of its two: fewer steps, and faster ones
                series = [
                    line("speed-up", points((r.ranks, r.speedup) for r in rows)),
                    line("fewer steps (statistical)", points((r.ranks, r.statistical) for r in rows)),
                    line("faster steps (hardware)", points((r.ranks, r.hardware) for r in rows)),
                ]
                ideal = line("ideal", points((r.ranks, r.ranks / rows[0].ranks) for r in rows), "reference")
                x, y = axis("ranks", scale="log2"), axis("speed-up", scale="log2")
                yield lines(f"Speed-up to {what}: {test}", x, y, [*series, ideal])
        goals = {what: rows for what, rows in sizes.items() if rows[0].met}
        yield from _costs(f"Speed-up and its cost: {test}", goals or sizes, prices)
    yield from _courses(results)


def _costs(title: str, bought: Mapping[str, Sequence[CostRow]], prices: Prices | None) -> Iterator[Chart]:
    ways: list[tuple[str, Callable[[CostRow], float | None]]] = [("", lambda row: row.ranks * (row.time_s or 0.0))]
    if prices is not None:
        ways = [(f", {term}", partial(CostRow.cost, term=term)) for term in TERMS]
    series = [
        line(
            f"{what}{way}",
            points((cost_of(row) or 0.0, row.speedup) for row in rows),
            labels=[counted(row.ranks, "rank") for row in rows],
        )
        for what, rows in bought.items()
        for way, cost_of in ways
        if all(cost_of(row) for row in rows)
    ]
    if series:
        name, unit = ("cost: ranks x time", "s") if prices is None else ("cost", prices.currency)
        yield lines(title, axis(name, unit, scale="log"), axis("speed-up", scale="log2"), series)


def _courses(results: Sequence[CaseResult]) -> Iterator[Chart]:
    """Chart losses and evaluations by time, a line for each world size: medians over launches and seeds."""
    tests = grouped((r.case.series, r) for r in results if any(m.name.startswith(_GOAL_STEPS) for m in _measured(r)))
    for test, sizes in tests.items():
        sizes.sort(key=lambda result: result.case.world_size)
        curves = [(result, without_first_losses(curves_of(result.launches))) for result in sizes]
        for name in dict.fromkeys(name for _, found in curves for name in found):
            series = [
                line(counted(result.case.world_size, "rank"), course)
                for result, found in curves
                if (middle := median_curve([drawn for _, drawn in found.get(name, [])]))
                if (course := over_time(result, middle))
            ]
            if series:
                x, y = axis("time from the first step, evaluations included", "s"), axis(name, unit_of(sizes, name))
                yield lines(f"{name} by time: {test}", x, y, series, target=target_of(sizes, name))


def over_time(result: CaseResult, curve: Sequence[Point]) -> list[Point]:
    """A curve by step, over the seconds of its steps from the first on; [] if these are unknown.

    Steps between the ends of evaluations, which a goal knows, are interpolated; else each takes the median step. The
    ends are medians of the times from one to the next, so that none ends before another.
    """
    measured = _measured(result)
    lasted: dict[float, list[float]] = {}
    for m in measured:
        for i, (began, ended) in enumerate(pairwise([0.0, *m.values]), 1) if m.name == EVALUATION_ENDS else ():
            lasted.setdefault(float(i * int(m.facts.get(EVERY, 1))), []).append(ended - began)
    if steps := [m.value for m in measured if m.name == _STEP_TIME and m.value]:
        lasted = lasted or {1.0: steps}
    if not lasted:
        return []
    at_steps = sorted(lasted)
    known = [(0.0, 0.0), *zip(at_steps, accumulate(median(lasted[step]) for step in at_steps), strict=True)]

    def at(step: float) -> float:
        """Seconds at which a step ended, interpolated between the two known steps around it, or extrapolated."""
        i = min(max(1, bisect_left(known, (step, 0.0))), len(known) - 1)
        (before, began), (after, ended) = known[i - 1], known[i]
        return began + (ended - began) * (step - before) / (after - before)

    return points((at(step), value) for step, value in curve)


PARAMETERS, TENSORS = "parameters", "tensors"
"""Metrics: trained parameters of the model, and their tensors. The facts of the first are its set-up in words."""

_NOT_SHOWN = ("communication", "data", "goal", "storage")
"""Parameters that have a row of their own, are a path of this machine, or are set by a fixture."""


def setup_rows(results: Sequence[CaseResult], run: RunRecord | None = None) -> list[tuple[str, str, list[str]]]:
    """(test, parameter, its values by world size) of each training that recorded its set-up or had a goal."""
    trained = [r for r in results if any(m.name == PARAMETERS or m.name.startswith(_GOAL_STEPS) for m in _measured(r))]
    tests = grouped((r.case.shown_test + (f"[{r.case.family}]" if r.case.family else ""), r) for r in trained)
    hide = str if run is not None and "addresses" in run.settings else mask_addresses
    rows = []
    for test, sizes in tests.items():
        found: dict[str, dict[str, None]] = {}
        for result in sorted(sizes, key=lambda result: result.case.world_size):
            for parameter, value in _setup_of(result):
                if value not in (None, ""):
                    text = f"{value:,.6g}" if isinstance(value, float) else str(value)
                    found.setdefault(parameter, {})[hide(text)] = None
        rows += [(test, parameter, [*values]) for parameter, values in found.items()]
    return rows


def _measured(result: CaseResult) -> list[Sample]:
    return [m for launch in result.launches for m in launch.measurements]


def _setup_of(result: CaseResult) -> Iterator[tuple[str, object]]:
    case, environment, around = result.case, result.environment, result.case.conditions.around
    measured = {m.name: m for m in _measured(result)}
    facts = measured[PARAMETERS].facts if PARAMETERS in measured else {}
    yield from facts.items()
    for name in (PARAMETERS, TENSORS):
        if name in measured and measured[name].value is not None:
            yield f"trainable {name}", f"{measured[name].value:,.0f}"
    yield from ((name, value) for name, value in case.params.items() if name not in (*facts, *_NOT_SHOWN))
    yield "data", next((m.identity["data"] for m in measured.values() if "data" in m.identity), "")
    for m in measured.values():
        if m.name.startswith(_GOAL_STEPS) and "target" in m.identity:
            yield "goal", f"{m.name.removeprefix(_GOAL_STEPS)} {m.identity['target']:g}"
            yield "steps between evaluations", m.identity.get("every")
    yield "samples per step", measured[SAMPLES].value if SAMPLES in measured else None
    yield "workers", case.world_size
    yield "backend", case.conditions.backend
    yield from sorted((name, text) for name, text in around.items() if name not in (CPUS, OVERSUBSCRIBED))
    yield "CPUs of a worker", around.get(CPUS)
    yield "device", environment.device
    yield from ((name, environment.system.get(name)) for name in ("machine", "memory"))
    yield "CPU cores", environment.cores


SETUP: TableKind[tuple[str, str, list[str]]] = TableKind(
    summary="What each training consists of: model, batch, optimizer, goal, workers.",
    rows=setup_rows,
    columns=[
        Column("test", str, "test", lambda row: row[0]),
        Column("parameter", str, "Experiment parameter", lambda row: row[1].replace("_", " ")),
        Column("value", str, "Value", lambda row: ", ".join(row[2])),
    ],
    needs="a training that calls record_setup(...), or has a goal",
    takes=["run"],
)
