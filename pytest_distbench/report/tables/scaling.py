"""The table of scaling experiments: how well n workers do beside one, and what they wait for."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from pytest_distbench.records.metric import Measurement, Scalar
from pytest_distbench.records.run import CaseResult
from pytest_distbench.records.scaling import (
    COMMUNICATION,
    COMPUTATION,
    EFFICIENCY,
    MODE,
    OF,
    RATE,
    WORKERS,
)
from pytest_distbench.records.verdict import Verdict
from pytest_distbench.report.tables.table import Cell, Column, TableKind, number


@dataclass(slots=True)
class Experiment:
    """What one call of ``scaling`` measured, and the verdicts on what was derived of it, by metric and workers.

    Runs are told apart by the number of workers and by whether they communicate.
    """

    runs: dict[tuple[int, bool], CaseResult] = field(default_factory=dict)
    verdicts: dict[tuple[str, Scalar], Verdict] = field(default_factory=dict)

    def rate(self, workers: int, *, communicates: bool) -> float | None:
        """Samples per second of the median launch."""
        result = self.runs.get((workers, communicates))
        return None if result is None else _median(result, RATE)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingRow:
    """So many workers of an experiment; one that does not communicate is *1 (local)*.

    The rates are of these workers, of one without communication, of the next smaller number of workers with
    communication, and of these workers without it.
    """

    experiment: Experiment
    result: CaseResult
    workers: int
    is_local: bool
    rate: float
    local: float | None
    fewer: tuple[int, float] | None
    alone: float | None

    @property
    def speedup(self) -> float | None:
        """To one worker without communication."""
        return self.rate / self.local if self.local else None

    @property
    def gain(self) -> float | None:
        """Factor of the rate by each doubling of the workers since the row before."""
        if self.fewer is None:
            return None
        workers, rate = self.fewer
        return float((self.rate / rate) ** (1 / math.log2(self.workers / workers)))

    @property
    def efficiency(self) -> float | None:
        """What was judged; where nothing was, of the median launches."""
        verdict = self.experiment.verdicts.get((EFFICIENCY, self.workers))
        if verdict is not None and not self.is_local:
            return verdict.current
        return None if self.speedup is None else self.speedup / self.workers

    @property
    def exposed(self) -> float | None:
        """The share of a step that it has more than one without communication; below 0 by noise alone."""
        if self.is_local:
            return 0.0
        verdict = self.experiment.verdicts.get((COMPUTATION, self.workers))
        if verdict is not None and verdict.current is not None:
            return 1 - verdict.current
        return 1 - self.rate / self.alone if self.alone else None

    @property
    def note(self) -> str:
        """What is to be known of it."""
        cores = self.result.case.conditions.around.get("oversubscribed")
        notes = [
            "negative scaling" if self.gain is not None and self.gain < 1 else "",
            f"oversubscribed: {cores.replace('-', ' ')}" if cores else "",
        ]
        return "; ".join(filter(None, notes))


def scaling_rows(results: Sequence[CaseResult]) -> list[ScalingRow]:
    """The experiments of a run, each with its workers ascending."""
    found: dict[tuple[str, str], Experiment] = {}
    for result in results:
        params, case = result.case.params, result.case
        if MODE in params and COMMUNICATION in params:
            known = found.setdefault((result.nodeid, case.run.rpartition("-")[0]), Experiment())
            known.runs[case.world_size, params[COMMUNICATION] == "on"] = result
    for result in results:
        for verdict in result.verdicts:
            experiment = found.get((result.nodeid, str(verdict.at.get(OF, ""))))
            if experiment is not None and WORKERS in verdict.at:
                experiment.verdicts[verdict.name, verdict.at[WORKERS]] = verdict
    return [row for experiment in found.values() for row in _rows(experiment)]


def _rows(experiment: Experiment) -> Iterator[ScalingRow]:
    local = experiment.rate(1, communicates=False)
    fewer: tuple[int, float] | None = None
    for (workers, communicates), result in sorted(experiment.runs.items(), key=lambda item: item[0]):
        rate = experiment.rate(workers, communicates=communicates)
        if rate is None or (workers > 1 and not communicates):
            continue
        yield ScalingRow(
            experiment=experiment,
            result=result,
            workers=workers,
            is_local=not communicates,
            rate=rate,
            local=local,
            fewer=fewer,
            alone=local if workers == 1 else experiment.rate(workers, communicates=False),
        )
        if communicates:
            fewer = workers, rate


def _measured(result: CaseResult, name: str) -> list[Measurement]:
    return [m for launch in result.launches for m in launch.measurements if m.key == name and m.value is not None]


def _median(result: CaseResult, name: str) -> float | None:
    """Of the launches that have it."""
    values = [m.value for m in _measured(result, name) if m.value is not None]
    return statistics.median(values) if values else None


def _facts(row: ScalingRow) -> Mapping[str, Scalar]:
    return next((m.facts for m in _measured(row.result, RATE)), {})


def _layout(row: ScalingRow) -> str:
    facts = _facts(row)
    return f"{facts['nodes']} x {facts['ranks_per_node']}" if {"nodes", "ranks_per_node"} <= facts.keys() else "-"


def _ratio(row: ScalingRow) -> Cell:
    """Communication where computation is 10, as report 003 writes it."""
    if row.is_local or row.exposed is None or row.exposed >= 1:
        return Cell(None, "-")
    k = 10 * row.exposed / (1 - row.exposed)
    return Cell(k, f"10 : {k:.2g}")


def _verdict(row: ScalingRow) -> Verdict | None:
    return None if row.is_local else row.experiment.verdicts.get((EFFICIENCY, row.workers))


def _percent(value: float | None) -> Cell:
    return Cell(value, "-" if value is None else f"{value:.1%}")


SCALING: TableKind[ScalingRow] = TableKind(
    summary="Every scaling experiment: rate, speed-up and efficiency by the number of workers, and what they wait for.",
    rows=scaling_rows,
    columns=[
        Column("test", str, "Description", lambda row: Cell(row.result.nodeid, _description(row))),
        Column("mode", str, "scaling", lambda row: str(row.result.case.params[MODE])),
        Column("workers", int, "Workers", lambda row: Cell(row.workers, f"{row.workers}{' (local)' * row.is_local}")),
        Column("is_local", bool, None, lambda row: row.is_local),
        Column("layout", str, "nodes x ranks", _layout),
        Column("batch", int, "batch", lambda row: int(row.result.case.params["batch"])),
        Column("samples_per_second", float, "processing rate", lambda row: number(row.rate, ".4g", unit=" samples/s")),
        Column("mean", float, "mean", lambda row: number(_median(row.result, f"{RATE}_mean"), ".4g")),
        Column("uncertainty", float, "+-", lambda row: number(_median(row.result, f"{RATE}_uncertainty"), ".2g")),
        Column("jitter", float, "jitter", lambda row: number(_median(row.result, f"{RATE}_jitter"), ".2g")),
        Column("speedup", float, "Speedup Ratio", lambda row: number(row.speedup, ".2f")),
        Column("scaling_efficiency", float, "Scaling efficiency", lambda row: _percent(row.efficiency)),
        Column("gain_per_doubling", float, "gain per doubling", lambda row: number(row.gain, ".2f")),
        Column("communication_of_10", float, "computation/communication", _ratio),
        Column("exposed_communication", float, "communication", lambda row: _percent(row.exposed)),
        Column("threads", int, None, lambda row: _facts(row).get("threads")),
        Column("note", str, "Notes", lambda row: row.note),
        Column("baseline", float, "baseline", lambda row: _percent(v.baseline if (v := _verdict(row)) else None)),
        Column("verdict", str, "verdict", lambda row: v.kind if (v := _verdict(row)) else ""),
    ],
    needs="tests that ask for scaling",
)


def _description(row: ScalingRow) -> str:
    """The test, and the name of the call where it has one."""
    case = row.result.case
    named = case.run.rpartition("-")[0]
    title = f"{case.function}[{case.id}]" if case.id else case.function
    return f"{title} {named}" if named else title
