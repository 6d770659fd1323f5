"""The table ``layouts``: how far each is from one rank, and what it costs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median
from typing import NamedTuple

from pytest_distbench.layouts import (
    GRADIENT_DEVIATION,
    HELD_BYTES,
    LOSS_DEVIATION,
    NARROW,
    STATE_DEVIATION,
    STEP_TIME,
)
from pytest_distbench.records.kinds import grouped
from pytest_distbench.records.metric import Sample
from pytest_distbench.records.run import CaseResult
from pytest_distbench.report.tables.table import Cell, Column, TableKind, number, seconds
from pytest_distbench.units import format_bytes


class LayoutRow(NamedTuple):
    """A case, and the samples of each of its metrics, by key."""

    result: CaseResult
    samples: dict[str, list[Sample]]

    def value(self, key: str) -> float | None:
        """The median over launches."""
        values = [each.value for each in self.samples.get(key, []) if each.value is not None]
        return median(values) if values else None

    def fact(self, name: str) -> float | None:
        found = self.samples[STEP_TIME][0].facts.get(name) if STEP_TIME in self.samples else None
        return found if isinstance(found, int | float) else None


def _rows(results: Sequence[CaseResult]) -> Iterator[LayoutRow]:
    for result in results:
        samples = grouped((each.key, each) for launch in result.launches for each in launch.measurements)
        if GRADIENT_DEVIATION in samples or LOSS_DEVIATION in samples:
            yield LayoutRow(result, samples)


def _deviation(name: str) -> Column[LayoutRow]:
    def cell(row: LayoutRow) -> Cell:
        value = row.value(name)
        limit = next((bound.value for each in row.samples.get(name, []) for bound in each.bounds), None)
        return Cell(value, "-" if value is None else f"{value:.1e}" + ("" if limit is None else f" <= {limit:.1e}"))

    return Column(name, float, name.replace("_", " "), cell)


def _size(name: str, heading: str) -> Column[LayoutRow]:
    def cell(row: LayoutRow) -> Cell:
        value = row.value(name)
        return Cell(value, "-" if value is None else format_bytes(value))

    return Column(name, float, heading, cell, if_any=True)


def _narrow(row: LayoutRow) -> str:
    facts = row.samples[GRADIENT_DEVIATION][0].facts if GRADIENT_DEVIATION in row.samples else {}
    return ", ".join(f"{kind}: {facts[kind]}" for kind in NARROW if kind in facts)


def _rate(row: LayoutRow) -> Cell:
    tokens, time_s = row.fact("tokens"), row.value(STEP_TIME)
    return number(tokens / time_s if tokens and time_s else None, ".0f")


LAYOUT_TABLE: TableKind[LayoutRow] = TableKind(
    summary="Each layout of a training: its deviation from one rank, its step and its memory.",
    rows=_rows,
    columns=[
        Column("test", str, "test", lambda row: Cell(row.result.case.test, row.result.case.title)),
        Column("layout", str, "layout", lambda row: str(row.result.case.params.get("layout", "-"))),
        Column("ranks", int, "ranks", lambda row: row.result.case.world_size),
        _deviation(LOSS_DEVIATION),
        _deviation(GRADIENT_DEVIATION),
        _deviation(STATE_DEVIATION),
        Column("in_16_bits", str, "in 16 bits", _narrow, if_any=True),
        Column("step_time_s", float, "step", lambda row: seconds(row.value(STEP_TIME))),
        Column("tokens_per_second", float, "tokens/s", _rate),
        _size(HELD_BYTES, "held by a rank"),
        _size("checkpoint_bytes", "checkpoint"),
        Column("save_s", float, "save", lambda row: seconds(row.value("phase/checkpoint_save")), if_any=True),
        Column("load_s", float, "load", lambda row: seconds(row.value("phase/checkpoint_load")), if_any=True),
    ],
    needs="a test that uses equivalent",
)
