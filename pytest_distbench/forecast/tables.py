"""The table ``forecast``, and its chart: a step at each number of ranks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from pytest_distbench.forecast import ACTIVATIONS, COMMUNICATION, EFFICIENCY, EXPOSED, GRADIENTS, STEP, label
from pytest_distbench.judging.fingerprint_rule import structure_of
from pytest_distbench.records.environment import Prices
from pytest_distbench.records.iteration import Fingerprint
from pytest_distbench.records.kinds import grouped
from pytest_distbench.records.metric import Sample, metric_key
from pytest_distbench.records.run import CaseResult
from pytest_distbench.report.page import Chart, axis, line, lines, points
from pytest_distbench.report.tables.table import Cell, Column, TableKind, num_bytes, number, seconds
from pytest_distbench.units import format_seconds

_HIDDEN = 0.1  # share of a step that may wait where communication hides behind computing


class ForecastRow(NamedTuple):
    """A row of the table: a case's forecast at one number of ranks; ``samples``: those of its last launch, by key."""

    result: CaseResult
    ranks: int
    samples: dict[str, Sample]

    def value(self, name: str) -> float | None:
        found = self.samples.get(metric_key(name, {"ranks": self.ranks}))
        return None if found is None else found.value

    @property
    def fingerprint(self) -> Fingerprint:
        return self.result.launches[-1].fingerprints[label(self.ranks)]

    @property
    def step(self) -> Sample:
        return self.samples[metric_key(STEP, {"ranks": self.ranks})]

    def fact(self, name: str) -> float:
        found = self.step.facts.get(name)
        return float(found) if isinstance(found, int | float) else 0.0


def _rows(results: Sequence[CaseResult]) -> Iterator[ForecastRow]:
    for result in results:
        samples = {each.key: each for launch in result.launches[-1:] for each in launch.measurements}
        for each in samples.values():
            if each.name == STEP:
                yield ForecastRow(result, int(each.at["ranks"]), samples)


def _range(row: ForecastRow) -> Cell:
    low, high, _ = row.step.values
    return Cell(low, f"{format_seconds(low)} to {format_seconds(high)}")


def _state(row: ForecastRow) -> Cell:
    facts = structure_of(row.fingerprint)
    held = facts.get("parameter_bytes", 0) + facts.get("optimizer_bytes", 0) + int(row.value(GRADIENTS) or 0)
    return num_bytes(held)


def _hiding(rows: Sequence[ForecastRow]) -> Iterator[str]:
    for title, own in grouped((row.result.case.title, row) for row in rows).items():
        ordered = sorted(own, key=lambda row: row.ranks)
        if not any(row.value(COMMUNICATION) for row in ordered):
            continue
        hidden = [(row.value(EXPOSED) or 0.0) <= _HIDDEN * (row.value(STEP) or 0.0) for row in ordered]
        last = max((i for i, is_hidden in enumerate(hidden) if is_hidden), default=-1)
        if last + 1 < len(ordered):
            reach = f"no longer hides from {ordered[last + 1].ranks:,} ranks on: more"
        else:
            reach = f"hides up to {ordered[last].ranks:,} ranks: no more"
        yield f"{title}: communication {reach} than {_HIDDEN:.0%} of a step waits for it"


FORECAST: TableKind[ForecastRow] = TableKind(
    summary="Forecasts: a step at each number of ranks, and what of it is waiting.",
    rows=_rows,
    columns=[
        Column("test", str, "test", lambda row: Cell(row.result.nodeid, row.result.case.title)),
        Column("ranks", int, "ranks", lambda row: row.ranks),
        Column("step_s", float, "step", lambda row: seconds(row.value(STEP))),
        Column("quicker_s", float, "within", _range),
        Column("computing_s", float, "computing", lambda row: seconds(row.fact("computing_s"))),
        Column("communication_s", float, "communication", lambda row: seconds(row.value(COMMUNICATION))),
        Column("exposed_s", float, "exposed", lambda row: seconds(row.value(EXPOSED))),
        Column(
            "efficiency", float, "efficiency", lambda row: number((row.value(EFFICIENCY) or 0.0) * 100, ".1f", unit="%")
        ),
        Column("node_bytes", int, "in the node", lambda row: num_bytes(int(row.fact("node_bytes")))),
        Column("network_bytes", int, "over the network", lambda row: num_bytes(int(row.fact("network_bytes")))),
        Column("state_bytes", int, "state", _state),
        Column("activation_bytes", int, "activations", lambda row: num_bytes(int(row.value(ACTIVATIONS) or 0))),
    ],
    footer=_hiding,
    needs="a test that uses forecast",
)


def forecast_charts(results: Sequence[CaseResult], prices: Prices | None = None) -> Iterator[Chart]:
    """Chart efficiency by ranks, with a line for each test."""
    del prices
    if found := grouped((row.result.case.title, row) for row in _rows(results)):
        shares = [line(name, points((r.ranks, r.value(EFFICIENCY)) for r in rows)) for name, rows in found.items()]
        yield lines("Forecast efficiency", axis("ranks", scale="log2"), axis("computing / step", "%"), shares)
