"""The charts of the page: a new one is one row, a function from a case, or from all cases, to what is drawn."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from pytest_distbench.records.run import CaseResult
from pytest_distbench.report.page.chart import Chart
from pytest_distbench.report.page.charts import cases, jobs, runs

OF_CASE: dict[str, Callable[[CaseResult], Iterable[Chart]]] = {
    "bandwidth": cases.bandwidth,
    "change": cases.change_by_size,
    "curves": cases.curves,
    "epochs": cases.epochs,
    "phases": cases.phases,
    "links": cases.links,
    "elastic": jobs.elastic,
    "pool": jobs.pool,
    "serving": jobs.serving,
}
"""In the order in which they stand below a case."""

OF_RUN: dict[str, Callable[[Sequence[CaseResult]], Iterable[Chart]]] = {
    "scaling": runs.scaling,
    "phases": runs.phases,
    "cost": runs.cost,
}
"""By the name of the table that they stand above."""


def charts_of(result: CaseResult) -> list[Chart]:
    """All charts of a case."""
    return [chart for make in OF_CASE.values() for chart in make(result)]


def charts_above(table: str, results: Sequence[CaseResult]) -> list[Chart]:
    """The charts that stand above a table of the run."""
    return list(OF_RUN[table](results)) if table in OF_RUN else []
