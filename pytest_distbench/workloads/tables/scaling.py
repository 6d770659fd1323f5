"""The table of scaling tests: n workers beside one, as reports 001 and 003 print them."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median, variance

from pytest_distbench.judging.stored_rule import STANDARD_ERRORS, variance_of_iterations
from pytest_distbench.records.case import CPUS, NETWORK, OVERSUBSCRIBED, Case
from pytest_distbench.records.iteration import (
    COMMUNICATION,
    EFFICIENCY,
    RATE,
    RATE_COMMUNICATION,
    RATE_JITTER,
    RATE_OF,
    RATE_RANKS_PER_NODE,
    RATE_UNCERTAINTY,
    SAMPLES,
)
from pytest_distbench.records.metric import Sample, Scalar
from pytest_distbench.records.run import CaseResult, Finding
from pytest_distbench.report.tables.table import Cell, Column, TableKind, number, seconds

NEGATIVE = "negative scaling"
"""More workers do less than fewer did."""

_LESS = "< "
"""Before what communication is at most, where noise hides how much it is."""

_OF_THE_SIZE = ("batch", "communication")
"""Parameters in which the runs of one scaling test differ."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sized:
    """One training on so many workers: medians over its launches; times in seconds, rates per second.

    Samples are of all workers in a step. The variance is that of the step's logarithm, as far as its launches and their
    iterations tell it. Busy: the share of a step under the profiler in which collectives were under way, where there is
    a trace.
    """

    result: CaseResult
    workers: int
    communicates: bool
    samples: float
    ranks_per_node: int | None
    step_s: float
    step_variance: float | None
    rate: float
    uncertainty: float | None
    jitter: float | None
    busy: float | None

    @property
    def work_rate(self) -> float:
        return self.samples / self.step_s


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingRow:
    """A size beside one worker without communication, beside fewer workers, and beside itself without it.

    The verdict is on its efficiency.
    """

    sized: _Sized
    local: _Sized | None
    apart: _Sized | None
    fewer: _Sized | None
    verdict: Finding | None

    @property
    def speedup(self) -> float | None:
        return None if self.local is None else self.sized.work_rate / self.local.work_rate

    @property
    def efficiency(self) -> float | None:
        return None if self.speedup is None else self.speedup / self.sized.workers

    @property
    def gain(self) -> float | None:
        """How many times as much with every doubling of the workers since the next fewer ones."""
        if self.fewer is None:
            return None
        doublings = math.log2(self.sized.workers / self.fewer.workers)
        return float((self.sized.work_rate / self.fewer.work_rate) ** (1 / doublings))

    @property
    def exposed(self) -> float | None:
        """Share of the step that communication adds to the same step without it; noise may make it less than none."""
        return None if self.apart is None else max(0.0, 1 - self.apart.step_s / self.sized.step_s)

    @property
    def exposed_at_most(self) -> float | None:
        """What that share may be where it is within the noise of the two steps; None: it is not, or nobody knows."""
        if self.apart is None or self.apart.step_variance is None or self.sized.step_variance is None:
            return None
        share = self.apart.step_s / self.sized.step_s
        noise = share * STANDARD_ERRORS * math.sqrt(self.apart.step_variance + self.sized.step_variance)
        return max(0.0, 1 - share) + noise if 1 - share <= noise else None

    @property
    def communication(self) -> Cell:
        """The exposed share; where noise hides it what it may be, and nothing where that is not known either."""
        if self.exposed_at_most is not None:
            return Cell(None, f"{_LESS}{self.exposed_at_most:.1%}")
        return number(self.exposed or None, ".1%")

    @property
    def ratio(self) -> Cell:
        """Computation to communication, as report 003 has it: ``10 : 3``."""
        share, less = (self.exposed, "") if self.exposed_at_most is None else (self.exposed_at_most, _LESS)
        if not share or share >= 1:
            return Cell(None, "-")
        text = f"10 : {less}{10 * share / (1 - share):.1f}"
        return Cell(None if less else text, text)

    @property
    def note(self) -> str:
        notes = [NEGATIVE] if self.gain is not None and self.gain < 1 else []
        if cores := self.sized.result.case.conditions.around.get(OVERSUBSCRIBED):
            notes.append(f"{OVERSUBSCRIBED}: {cores.replace('-', ' ')}")
        if cpus := self.sized.result.case.conditions.around.get(CPUS):
            notes.append(f"{CPUS}={cpus}")
        return "; ".join(notes)


def scaling_rows(results: Sequence[CaseResult]) -> list[ScalingRow]:
    """By test; its one worker without communication first, then the sizes ascending."""
    tests: dict[tuple[str, ...], list[_Sized]] = {}
    for result in results:
        if (sized := _sized(result)) is not None:
            tests.setdefault(_test_of(result), []).append(sized)
    verdicts = dict(_efficiencies(results))
    return [row for found in tests.values() for row in _rows_of(found, verdicts)]


_Place = tuple[str, str, str, str, str, str, Scalar]


def _place(case: Case, workers: Scalar) -> _Place:
    """Where an efficiency belongs: to the call of that name, quota and network of a test, and so many workers."""
    return case.test, case.id, case.conditions.backend, _name_of(case), *_chosen(case), workers


def _efficiencies(results: Sequence[CaseResult]) -> Iterator[tuple[_Place, Finding]]:
    for result in results:
        for verdict in result.verdicts:
            if verdict.name.split()[-1] == EFFICIENCY and "workers" in verdict.at:
                yield _place(result.case, verdict.at["workers"]), verdict


def _rows_of(found: Sequence[_Sized], verdicts: Mapping[_Place, Finding]) -> Iterator[ScalingRow]:
    on = {sized.workers: sized for sized in found if sized.communicates}
    off = {sized.workers: sized for sized in found if not sized.communicates}
    local = off.get(1)
    if local is not None:
        yield ScalingRow(sized=local, local=local, apart=None, fewer=None, verdict=None)
    for workers, sized in sorted(on.items()):
        yield ScalingRow(
            sized=sized,
            local=local,
            apart=off.get(workers),
            fewer=max((s for w, s in on.items() if w < workers), key=lambda s: s.workers, default=None),
            verdict=verdicts.get(_place(sized.result.case, workers)),
        )


def _sized(result: CaseResult) -> _Sized | None:
    """What a training on some workers measured; None where it told of no rate and loop."""
    launches = [{m.key: m for m in launch.measurements} for launch in result.launches if launch.outcome == "passed"]
    rates = [launch[RATE] for launch in launches if RATE_OF in getattr(launch.get(RATE), "facts", {})]
    if not rates:
        return None
    facts = rates[0].facts
    loop = str(facts[RATE_OF])
    step = _median(launches, loop)
    rate, samples = _median(launches, RATE), _median(launches, SAMPLES)
    if not step or not samples or rate is None:
        return None
    return _Sized(
        result=result,
        workers=result.case.world_size,
        communicates=facts[RATE_COMMUNICATION] == COMMUNICATION[0],
        samples=samples,
        ranks_per_node=int(facts[RATE_RANKS_PER_NODE]) if RATE_RANKS_PER_NODE in facts else None,
        step_s=step,
        step_variance=_variance([launch[loop] for launch in launches if loop in launch]),
        rate=rate,
        uncertainty=_median(launches, RATE_UNCERTAINTY),
        jitter=_median(launches, RATE_JITTER),
        busy=busy.share if result.trace is not None and (busy := result.trace.busy.get(loop)) is not None else None,
    )


def _median(launches: Sequence[dict[str, Sample]], key: str) -> float | None:
    values = [m.value for launch in launches if (m := launch.get(key)) is not None and m.value is not None]
    return median(values) if values else None


def _variance(launches: Sequence[Sample]) -> float | None:
    """Of the logarithm of what launches measured, in their middle; None: one launch without iterations."""
    inside = [found for m in launches if (found := variance_of_iterations(m)) is not None]
    values = [math.log(m.value) for m in launches if m.value]
    known = [*([median(inside)] if inside else []), *([variance(values)] if len(values) > 1 else [])]
    return max(known) / len(launches) if known else None


def _name_of(case: Case) -> str:
    return case.run.rpartition(" ")[0]


def _chosen(case: Case) -> tuple[str, str]:
    """The CPU quota of each worker, and the network between them; empty: none was chosen."""
    around = case.conditions.around
    return around.get(CPUS, ""), around.get(NETWORK, "")


def _test_of(result: CaseResult) -> tuple[str, ...]:
    rest = {name: value for name, value in result.case.params.items() if name not in _OF_THE_SIZE}
    case = result.case
    parameters = json.dumps(rest, sort_keys=True)
    return case.test, case.id, case.conditions.backend, _name_of(case), *_chosen(case), parameters


def _network(row: ScalingRow) -> Cell:
    case = row.sized.result.case
    _, network = _chosen(case)
    return Cell(case.conditions.backend, ", ".join(filter(None, [case.conditions.backend, network])))


def _workers(row: ScalingRow) -> Cell:
    return Cell(row.sized.workers, f"{row.sized.workers}{'' if row.sized.communicates else ' (local)'}")


def _test(row: ScalingRow) -> Cell:
    case = row.sized.result.case
    return Cell(row.sized.result.nodeid, " ".join(filter(None, [f"{case.shown_test}[{case.id}]", _name_of(case)])))


def _layout(row: ScalingRow) -> str:
    local = row.sized.ranks_per_node
    return "-" if local is None else f"{math.ceil(row.sized.workers / local)} x {local}"


def _footer(rows: Sequence[ScalingRow]) -> Iterator[str]:
    if any(row.exposed_at_most is not None for row in rows):
        yield (
            f"communication {_LESS}N%: below the noise of the two steps that it is computed from; more launches lower "
            f"the noise (--distbench-launches)"
        )


def _baseline(row: ScalingRow) -> float | None:
    return None if row.verdict is None else row.verdict.baseline


SCALING: TableKind[ScalingRow] = TableKind(
    summary="Speedup, efficiency and speed by workers.",
    rows=scaling_rows,
    columns=[
        Column("test", str, "Description", _test),
        Column("workers", int, "Workers", _workers),
        Column("communicates", bool, None, lambda row: row.sized.communicates),
        Column("layout", str, "nodes x ranks", _layout),
        Column("backend", str, "Network", _network),
        Column("computation_to_communication", str, "computation/communication", lambda row: row.ratio),
        Column("communication", float, "communication", lambda row: row.communication),
        Column("communication_at_most", float, None, lambda row: row.exposed_at_most),
        Column(
            "busy_communication", float, "busy communication", lambda row: number(row.sized.busy, ".1%"), if_any=True
        ),
        Column("samples_per_second", float, "Speed (samples/s)", lambda row: number(row.sized.rate, ".4g")),
        # Steps in one breath have a rate together and none of each.
        Column("uncertainty", float, "+/-", lambda row: number(row.sized.uncertainty, ".2g"), if_any=True),
        Column("jitter", float, "jitter", lambda row: number(row.sized.jitter, ".2g"), if_any=True),
        Column("speedup", float, "Speedup Ratio", lambda row: number(row.speedup, ".2f")),
        Column("scaling_efficiency", float, "Scaling efficiency", lambda row: number(row.efficiency, ".0%")),
        Column("gain_per_doubling", float, "gain per doubling", lambda row: number(row.gain, ".2f")),
        Column("samples_per_step", int, "samples a step", lambda row: round(row.sized.samples)),
        Column("step_s", float, "step", lambda row: seconds(row.sized.step_s)),
        Column("note", str, "note", lambda row: row.note),
        Column("baseline", float, "baseline", lambda row: number(_baseline(row), ".0%")),
        Column("verdict", str, "verdict", lambda row: row.verdict.kind if row.verdict is not None else ""),
    ],
    footer=lambda rows: list(_footer(rows)),
    needs="a test that uses the fixture scaling, and whose body calls record_rate(...) or record_input_rate(...)",
)
