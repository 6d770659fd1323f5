"""The table and the charts of scaling tests: n workers compared to one, as reports 001 and 003 print them."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median, variance

from pytest_distbench.judging.thresholds import STANDARD_ERRORS, variance_of_iterations
from pytest_distbench.records.case import CPUS, NETWORK, OVERSUBSCRIBED, Case
from pytest_distbench.records.environment import Prices
from pytest_distbench.records.iteration import RATE, SAMPLES
from pytest_distbench.records.kinds import grouped
from pytest_distbench.records.run import CaseResult, Finding
from pytest_distbench.report.page import Chart, axis, line, lines, points
from pytest_distbench.report.tables.table import Cell, Column, TableKind, number, seconds
from pytest_distbench.report.verdicts import judged_number
from pytest_distbench.workloads import (
    COMMUNICATION,
    EFFICIENCY,
    RATE_COMMUNICATION,
    RATE_JITTER,
    RATE_OF,
    RATE_RANKS_PER_NODE,
    RATE_UNCERTAINTY,
)

NEGATIVE = "negative scaling"  # more workers do less than fewer did

_LESS = "< "  # before what communication is at most, where noise hides how much it is

CALL = "scaling"  # the parameter that names which call of ``scaling`` a training is of, where its test has several

_OF_THE_SIZE = ("batch", "communication")  # parameters in which the runs of one scaling test differ


@dataclass(slots=True, kw_only=True)
class ScalingRow:
    """A row: a training on some number of workers. Medians over its launches; times in seconds, rates per second.

    ``samples`` are of all workers in a step. ``step_variance`` is that of the logarithm of the step time, from launches
    and iterations. ``busy``: share of a step under the profiler in which collectives ran, or None without a trace. Rows
    to compare with: ``local``, one worker without communication; ``apart``, as many without communication; ``fewer``,
    the next smaller number of workers. ``verdict`` is that on the efficiency.
    """

    result: CaseResult
    communicates: bool
    samples: float
    ranks_per_node: int | None
    step_s: float
    step_variance: float | None
    rate: float
    uncertainty: float | None
    jitter: float | None
    busy: float | None
    local: ScalingRow | None = None
    apart: ScalingRow | None = None
    fewer: ScalingRow | None = None
    verdict: Finding | None = None

    @property
    def workers(self) -> int:
        return self.result.case.world_size

    @property
    def work_rate(self) -> float:
        return self.samples / self.step_s

    @property
    def efficiency(self) -> float | None:
        """The judged number, which is made launch by launch; without a verdict, that of the two steps, or None."""
        if self.verdict is not None and self.verdict.current is not None:
            return self.verdict.current
        return None if self.local is None else self.work_rate / self.local.work_rate / self.workers

    @property
    def speedup(self) -> float | None:
        return None if self.efficiency is None else self.efficiency * self.workers

    @property
    def gain(self) -> float | None:
        """Factor of the work rate with every doubling of the workers since the next fewer ones, or None."""
        if self.fewer is None:
            return None
        doublings = math.log2(self.workers / self.fewer.workers)
        return float((self.work_rate / self.fewer.work_rate) ** (1 / doublings))

    @property
    def exposed(self) -> float | None:
        """Share of the step that communication adds to the same step without it, at least 0, or None if unknown."""
        return None if self.apart is None else max(0.0, 1 - self.apart.step_s / self.step_s)

    @property
    def exposed_at_most(self) -> float | None:
        """Upper limit of the exposed share if it is within the noise of the two steps, or None."""
        if self.apart is None or self.apart.step_variance is None or self.step_variance is None:
            return None
        share = self.apart.step_s / self.step_s
        noise = share * STANDARD_ERRORS * math.sqrt(self.apart.step_variance + self.step_variance)
        return max(0.0, 1 - share) + noise if 1 - share <= noise else None

    @property
    def communication(self) -> Cell:
        """The exposed share; its upper limit if noise hides it."""
        if self.exposed_at_most is not None:
            return Cell(None, f"{_LESS}{self.exposed_at_most:.1%}")
        return number(self.exposed or None, ".1%")

    @property
    def ratio(self) -> Cell:
        """Ratio of computation to communication, as report 003 has it: ``10 : 3``."""
        share, less = (self.exposed, "") if self.exposed_at_most is None else (self.exposed_at_most, _LESS)
        if not share or share >= 1:
            return Cell(None, "-")
        text = f"10 : {less}{10 * share / (1 - share):.1f}"
        return Cell(None if less else text, text)

    @property
    def note(self) -> str:
        around = self.result.case.conditions.around
        notes = [NEGATIVE] if self.gain is not None and self.gain < 1 else []
        if cores := around.get(OVERSUBSCRIBED):
            notes.append(f"{OVERSUBSCRIBED}: {cores.replace('-', ' ')}")
        return "; ".join([*notes, *([f"{CPUS}={around[CPUS]}"] if CPUS in around else [])])


def scaling_rows(results: Sequence[CaseResult]) -> list[ScalingRow]:
    """Rows by test: its one worker without communication first, then ascending sizes."""
    tests: dict[tuple[str, ...], list[ScalingRow]] = {}
    verdicts: dict[tuple[object, ...], Finding] = {}
    for result in results:
        place = _place(result.case)
        verdicts |= {(place, v.name, v.at["workers"]): v for v in result.verdicts if "workers" in v.at}
        if (row := _row(result)) is not None:
            rest = {name: value for name, value in result.case.params.items() if name not in _OF_THE_SIZE}
            tests.setdefault((*place, json.dumps(rest, sort_keys=True)), []).append(row)
    found = []
    for rows in tests.values():
        on = {row.workers: row for row in sorted(rows, key=lambda row: row.workers) if row.communicates}
        off = {row.workers: row for row in rows if not row.communicates}
        local = off.get(1)
        if local is not None:
            local.local = local
            found.append(local)
        for row in on.values():
            row.local, row.apart = local, off.get(row.workers)
            row.fewer = max((r for w, r in on.items() if w < row.workers), key=lambda r: r.workers, default=None)
            name = f"{row.result.case.params.get(CALL, '')} {EFFICIENCY}".strip()
            row.verdict = verdicts.get((_place(row.result.case), name, row.workers))
            found.append(row)
    return found


def _place(case: Case) -> tuple[str, ...]:
    under = case.conditions
    return case.test, case.id, under.backend, under.around.get(CPUS, ""), under.around.get(NETWORK, "")


def _row(result: CaseResult) -> ScalingRow | None:
    launches = [{m.key: m for m in launch.measurements} for launch in result.launches if launch.outcome == "passed"]
    rates = [launch[RATE] for launch in launches if RATE_OF in getattr(launch.get(RATE), "facts", {})]
    if not rates:
        return None
    facts = rates[0].facts
    loop = str(facts[RATE_OF])
    measured = grouped((m.key, m) for launch in launches for m in launch.values())
    step, rate, samples = (judged_number(result, measured.get(name, [])) for name in (loop, RATE, SAMPLES))
    if not step or not samples or rate is None:
        return None
    # of the step's logarithm: between launches, and in their middle inside of one; None: one launch without iterations
    timed = [launch[loop] for launch in launches if loop in launch]
    inside = [found for m in timed if (found := variance_of_iterations(m)) is not None]
    values = [math.log(m.value) for m in timed if m.value]
    known = [*([median(inside)] if inside else []), *([variance(values)] if len(values) > 1 else [])]
    return ScalingRow(
        result=result,
        communicates=facts[RATE_COMMUNICATION] == COMMUNICATION[0],
        samples=samples,
        ranks_per_node=int(facts[RATE_RANKS_PER_NODE]) if RATE_RANKS_PER_NODE in facts else None,
        step_s=step,
        step_variance=max(known) / len(timed) if known else None,
        rate=rate,
        uncertainty=judged_number(result, measured.get(RATE_UNCERTAINTY, [])),
        jitter=judged_number(result, measured.get(RATE_JITTER, [])),
        busy=busy.share if result.trace is not None and (busy := result.trace.busy.get(loop)) is not None else None,
    )


def _test(row: ScalingRow) -> Cell:
    case = row.result.case
    call = str(case.params.get(CALL, ""))
    return Cell(row.result.nodeid, " ".join(filter(None, [f"{case.shown_test}[{case.id}]", call])))


def _network(row: ScalingRow) -> Cell:
    under = row.result.case.conditions
    return Cell(under.backend, ", ".join(filter(None, [under.backend, under.around.get(NETWORK)])))


def _layout(row: ScalingRow) -> str:
    local = row.ranks_per_node
    return "-" if local is None else f"{math.ceil(row.workers / local)} x {local}"


def _footer(rows: Sequence[ScalingRow]) -> Iterator[str]:
    if any(row.exposed_at_most is not None for row in rows):
        yield (
            f"communication {_LESS}N%: below the noise of the two steps that it is computed from; more launches lower "
            f"the noise (--distbench-launches)"
        )


SCALING: TableKind[ScalingRow] = TableKind(
    summary="Speedup, efficiency and speed by workers.",
    rows=scaling_rows,
    columns=[
        Column("test", str, "Description", _test),
        Column(
            "workers",
            int,
            "Workers",
            lambda row: Cell(row.workers, f"{row.workers}{'' if row.communicates else ' (local)'}"),
        ),
        Column("communicates", bool, None, lambda row: row.communicates),
        Column("layout", str, "nodes x ranks", _layout),
        Column("backend", str, "Network", _network),
        Column("computation_to_communication", str, "computation/communication", lambda row: row.ratio),
        Column("communication", float, "communication", lambda row: row.communication),
        Column("communication_at_most", float, None, lambda row: row.exposed_at_most),
        Column("busy_communication", float, "busy communication", lambda row: number(row.busy, ".1%"), if_any=True),
        Column("samples_per_second", float, "Speed (samples/s)", lambda row: number(row.rate, ".4g")),
        # Steps in one breath have a rate together and none of each.
        Column("uncertainty", float, "+/-", lambda row: number(row.uncertainty, ".2g"), if_any=True),
        Column("jitter", float, "jitter", lambda row: number(row.jitter, ".2g"), if_any=True),
        Column("speedup", float, "Speedup Ratio", lambda row: number(row.speedup, ".2f")),
        Column("scaling_efficiency", float, "Scaling efficiency", lambda row: number(row.efficiency, ".0%")),
        Column("gain_per_doubling", float, "gain per doubling", lambda row: number(row.gain, ".2f")),
        Column("samples_per_step", int, "samples a step", lambda row: round(row.samples)),
        Column("step_s", float, "step", lambda row: seconds(row.step_s)),
        Column("note", str, "note", lambda row: row.note),
        Column(
            "baseline",
            float,
            "baseline",
            lambda row: number(None if row.verdict is None else row.verdict.baseline, ".0%"),
        ),
        Column("verdict", str, "verdict", lambda row: row.verdict.kind if row.verdict is not None else ""),
    ],
    footer=_footer,
    needs="a test that uses the fixture scaling, and whose body calls record_rate(...) or record_input_rate(...)",
)


_WORKERS = axis("workers", scale="log2")


def scaling_charts(results: Sequence[CaseResult], prices: Prices | None = None) -> Iterator[Chart]:
    """Chart speed-up and efficiency by workers, a line per test, with dotted lines for the ideal and the baseline."""
    del prices
    compared = (row for row in scaling_rows(results) if row.speedup is not None and row.communicates)
    found = grouped((_test(row).text, row) for row in compared)
    if not found:
        return
    speedups = [line(name, points((row.workers, row.speedup) for row in rows)) for name, rows in found.items()]
    sizes = sorted({row.workers for rows in found.values() for row in rows})
    ideal = line("ideal", points((size, size) for size in sizes), "reference")
    yield lines("Speed-up over one worker", _WORKERS, axis("speed-up", scale="log2"), [*speedups, ideal])
    shares = []
    for name, rows in found.items():
        shares.append(line(name, points((row.workers, row.efficiency) for row in rows)))
        before = points((r.workers, r.verdict.baseline if r.verdict is not None else None) for r in rows)
        if before:
            shares.append(line(f"{name}, baseline", before, "reference"))
    yield lines("Scaling efficiency", _WORKERS, axis("scaling efficiency", "%"), shares)
