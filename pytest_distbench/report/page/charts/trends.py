"""The way of a metric over many runs, with the levels it had."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from pytest_distbench.judging.change_points import ChangePoint, change_points
from pytest_distbench.records.kinds import VERDICT_KINDS
from pytest_distbench.records.run import CaseResult
from pytest_distbench.records.trend import History, Trend
from pytest_distbench.report.page.chart import Axis, Lines, Series, points
from pytest_distbench.units import format_change

Trends = Mapping[tuple[str, str, str], Sequence[Trend]]
"""Those of a case by hardware class, test and the name of its entry in a store."""


def trends_of(history: History | None) -> Trends:
    """The trends of a history by the case that they are of; without one none."""
    found: dict[tuple[str, str, str], list[Trend]] = {}
    for trend in () if history is None else history.trends:
        found.setdefault((trend.platform, trend.test, trend.case), []).append(trend)
    return found


def trends_of_case(result: CaseResult, trends: Trends) -> Iterator[Lines]:
    """The way of each metric of a case that moved, or of which nobody knows, through runs before and after this one."""
    told = {verdict.metric for verdict in result.verdicts if verdict.is_judged and not _is_quiet(verdict.kind)}
    for trend in trends.get((result.environment.platform, result.case.test, result.case.key), ()):
        if trend.metric in told and len(trend.points) > 1:
            yield trend_chart(trend, change_points([point.value for point in trend.points]))


def _is_quiet(kind: str) -> bool:
    return VERDICT_KINDS[kind].is_quiet


def trend_chart(trend: Trend, changes: Sequence[ChangePoint]) -> Lines:
    """Each run as a dot, and the levels between changes as lines with what changed beside them."""
    values = [point.value for point in trend.points]
    names = [" ".join(filter(None, [point.at[:10], point.commit[:10]])) for point in trend.points]
    series = [Series(name="a run", points=points(enumerate(values, 1)), names=names, look="dots")]
    if changes:
        begins = [0, *(change.index for change in changes)]
        levels = [changes[0].before, *(change.after for change in changes)]
        labels = ["", *(format_change(change.ratio) for change in changes)]
        level = points(zip((begin + 1 for begin in begins), levels, strict=True))
        of = [names[begin] for begin in begins]
        series.append(Series(name="level", points=level, names=of, labels=labels, look="steps"))
    runs = Axis(name="run, oldest first")
    return Lines(title=f"History of {trend.metric}", x=runs, y=Axis(name=trend.metric, unit=trend.unit), series=series)
