"""The charts of the page: a new one is one row, a function from a case, or from all cases, to what is drawn."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TypeVar

from pytest_distbench.errors import tell
from pytest_distbench.records.environment import Prices
from pytest_distbench.records.run import CaseResult
from pytest_distbench.report.page.chart import Chart
from pytest_distbench.report.page.charts import cases, runs
from pytest_distbench.report.page.charts.runs import Trends, trends_of_case

OF_CASE: dict[str, Callable[[CaseResult], Iterable[Chart]]] = {
    "bandwidth": cases.bandwidth,
    "change": cases.change_by_size,
    "curves": cases.curves,
    "epochs": cases.epochs,
    "phases": cases.phases,
    "links": cases.links,
    "utilisation": cases.utilisation,
    "elastic": cases.elastic,
    "pool": cases.pool,
    "serving": cases.serving,
}
"""In the order in which they stand below a case."""

OF_RUN: dict[str, Callable[[Sequence[CaseResult]], Iterable[Chart]]] = {
    "scaling": runs.scaling,
    "phases": runs.phases,
    "cost": runs.cost,
}
"""By the name of the table that they stand above."""


_Given = TypeVar("_Given")


def charts_of(result: CaseResult, trends: Trends) -> tuple[list[Chart], list[str]]:
    """The charts of a case, which may be found in a history; and what is wrong with those that cannot be made."""
    ways = {"history": lambda given: trends_of_case(given, trends)} if trends else {}
    return _charts({**OF_CASE, **ways}, result)


def charts_above(
    table: str, results: Sequence[CaseResult], prices: Prices | None = None
) -> tuple[list[Chart], list[str]]:
    """The same of those that stand above a table of the run, which may have prices."""
    ways: dict[str, Callable[[Sequence[CaseResult]], Iterable[Chart]]] = {
        **OF_RUN,
        "cost": partial(runs.cost, prices=prices),
    }
    return _charts({name: make for name, make in ways.items() if name == table}, results)


def _charts(rows: Mapping[str, Callable[[_Given], Iterable[Chart]]], given: _Given) -> tuple[list[Chart], list[str]]:
    charts: list[Chart] = []
    problems = []
    for name, make in rows.items():
        try:
            charts += list(make(given))
        except Exception as error:  # noqa: BLE001 a page without one of its charts is still a page, and says so
            problems.append(f"the chart {name!r} cannot be made: {tell(error)}")
    return charts, problems
