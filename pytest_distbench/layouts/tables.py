"""Tables ``layouts`` and ``models``: how far each layout is from one rank, and what it costs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from statistics import median
from typing import NamedTuple

from pytest_distbench.layouts import (
    GRADIENT_DEVIATION,
    HELD_BYTES,
    LAYOUT_NAMES,
    LOSS_DEVIATION,
    NARROW,
    STATE_DEVIATION,
    STEP_TIME,
)
from pytest_distbench.records.kinds import grouped
from pytest_distbench.records.metric import SAID, Sample
from pytest_distbench.records.run import CaseResult
from pytest_distbench.report.tables.table import Cell, Column, TableKind, number, seconds
from pytest_distbench.units import format_bytes


class LayoutRow(NamedTuple):
    """Case with the samples of its metrics, by key."""

    result: CaseResult
    samples: dict[str, list[Sample]]

    def value(self, key: str) -> float | None:
        """Return the median of a metric over launches, or None."""
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


EQUAL, NOT_EQUAL, NOT_RUN, FAILED = "equal", "not equal", "not run", "failed"


def verdict_on(result: CaseResult) -> tuple[str, str]:
    """Return the verdict on a model under a layout, in a word, and the sentence that says why."""
    for launch in result.launches:
        for sample in launch.measurements:
            if SAID in sample.facts:
                return NOT_EQUAL, str(sample.facts[SAID])
    if result.outcome == "skipped":
        return NOT_RUN, result.headline
    return (EQUAL, "") if result.outcome == "passed" else (FAILED, result.headline)


class ModelRow(NamedTuple):
    """Model with its cases by layout."""

    model: str
    cases: dict[str, CaseResult]


def _models(results: Sequence[CaseResult]) -> Iterator[ModelRow]:
    for model, found in grouped((result.model, result) for result in results if result.model).items():
        yield ModelRow(model, {str(result.case.params["layout"]): result for result in found})


def _under(layout: str) -> Column[ModelRow]:
    def cell(row: ModelRow) -> str | None:
        return verdict_on(row.cases[layout])[0] if layout in row.cases else None

    return Column(layout, str, layout, cell)


def _model_seconds(row: ModelRow) -> Cell:
    return seconds(sum(launch.wall_s for result in row.cases.values() for launch in result.launches))


def _model_totals(rows: Sequence[ModelRow]) -> Iterator[str]:
    counts = Counter(verdict_on(result)[0] for row in rows for result in row.cases.values())
    words = {NOT_RUN: f"{NOT_RUN} (-rs says why)"}
    yield ", ".join(f"{count} {words.get(word, word)}" for word, count in counts.most_common())


MODEL_TABLE: TableKind[ModelRow] = TableKind(
    summary="Models under layouts: equal to one rank, or not.",
    rows=_models,
    columns=[Column("model", str, "model", lambda row: row.model)],
    further=lambda rows: [
        *(_under(name) for name in LAYOUT_NAMES if any(name in row.cases for row in rows)),
        Column("seconds", float, "took", _model_seconds),
    ],
    footer=_model_totals,
    needs="--distbench-model",
    marks={NOT_EQUAL: "failure", FAILED: "failure", NOT_RUN: "soft"},
)
