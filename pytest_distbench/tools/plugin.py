"""Hands a run's numbers to pytest-benchmark, pytest-html and Allure.

pytest-benchmark gets times if one of its own options asks for something: for its table, its JSON, its saved runs and
its comparisons. No verdict depends on it: all that it gets is measured and judged already. Each time becomes one
benchmark, made as pytest-benchmark makes its own: ``BenchmarkFixture.pedantic`` with a timer that replays one round,
which is the judged number, so that its statistics agree with our tables. The other two get what JUnit and JSON reports
show.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from pytest_distbench.plugin import carry
from pytest_distbench.plugin.fixtures import FIXTURE

if TYPE_CHECKING:
    from pytest_benchmark.session import BenchmarkSession

    from pytest_distbench.records.metric import Sample
    from pytest_distbench.records.run import CaseResult, Finding


_BENCHMARK_OPTIONS = tuple(
    f"benchmark_{option}"
    for option in (
        "only", "skip", "enable", "json", "save", "autosave", "save_data", "compare", "compare_fail", "histogram",
    )
)  # fmt: skip
"""Options of pytest-benchmark that ask for something; without any of them our results stay in our own table."""


def pytest_configure(config: pytest.Config) -> None:
    if any(config.getoption(name, None) for name in _BENCHMARK_OPTIONS):
        config.pluginmanager.register(PytestBenchmarkPlugin(), "distbench-pytest-benchmark")
    in_allure = bool(config.getoption("allure_report_dir", None))
    if in_allure or config.getoption("htmlpath", None):
        config.pluginmanager.register(ViewersPlugin(in_allure=in_allure), "distbench-viewers")


_TITLE = "distbench"


class ViewersPlugin:
    def __init__(self, *, in_allure: bool) -> None:
        self._in_allure = in_allure

    @pytest.hookimpl(optionalhook=True)
    def pytest_html_results_table_html(self, report: pytest.TestReport, data: list[str]) -> None:
        if lines := _lines(report):
            import html

            data += ["", f" {_TITLE} ".center(80, "-"), *map(html.escape, lines), ""]

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(self) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Attach the numbers to Allure's result while its test is open: in the process that runs the test."""
        report = yield
        if self._in_allure and report.when == "call" and (lines := _lines(report)):
            import allure

            allure.attach("\n".join(lines), _TITLE, allure.attachment_type.TEXT)
        return report


def _lines(report: pytest.TestReport) -> list[str]:
    from pytest_distbench.report import layout  # late: a run without tests of ours must not pay for it
    from pytest_distbench.report.verdicts import PREFIX

    rows = [(name.removeprefix(PREFIX), str(text)) for name, text in report.user_properties if name.startswith(PREFIX)]
    return layout(("metric", "this run"), rows, left=2) if rows else []


_ITS_FIXTURE = "benchmark"


class PytestBenchmarkPlugin:
    """Hands results to pytest-benchmark; a pytest plugin of its own, because most runs do without it."""

    def __init__(self) -> None:
        self._attempts = carry.Attempts()
        self._trouble = ""

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> Generator[None]:
        """Treat our tests as benchmarks: ``--benchmark-only`` runs them, ``--benchmark-skip`` does not.

        pytest-benchmark recognises a benchmark by the name of its fixture. Our tests do not need the fixture itself, so
        they have the name only meanwhile.
        """
        found: list[list[str]] = []
        if config.pluginmanager.get_plugin("pytest-benchmark") is not None:
            found = [getattr(item, "fixturenames", []) for item in items]
        ours = [names for names in found if FIXTURE in names and _ITS_FIXTURE not in names]
        lists = {id(names): names for names in ours}  # the cases of a parametrized test share one
        for names in lists.values():
            names.append(_ITS_FIXTURE)
        try:
            return (yield)
        finally:
            for names in lists.values():
                names.remove(_ITS_FIXTURE)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._attempts.take(report)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> Generator[None]:
        """Hand over results outermost, because pytest-benchmark saves and compares in a wrapper of this hook too."""
        receiver = session.config.pluginmanager.get_plugin("pytest-benchmark")  # None if blocked, as by --codspeed
        if receiver is not None and not receiver.disabled:  # by --benchmark-disable or -n
            results = self._attempts.cases()
            try:
                hand_over(results, receiver)
            except (AttributeError, TypeError, ImportError) as error:
                self._trouble = f"pytest-benchmark did not take our results, its interface changed: {error}"
        return (yield)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._trouble:
            terminalreporter.write_line(f"distbench: {self._trouble}", red=True)


def benchmarks(results: Sequence[CaseResult]) -> Iterator[SimpleNamespace]:
    """Every judged time of every case, except of cases whose ranks failed: those measured only a part.

    Each is a node as pytest-benchmark reads one, with ``judged_s``, the judged number. Its name is the test's function,
    id and metric: ``test_a[ws2]:latency[message_bytes=4096]``; ``nodeid`` has the test's path besides, and comparisons
    use it. A case is a group, so that a sweep is one table. ``--benchmark-group-by=param:NAME`` can use
    ``callspec.params``.
    """
    from pytest_distbench.report.verdicts import launches_by_metric

    for result in results:
        samples_of = launches_by_metric(result)
        for verdict in result.verdicts if result.launches[-1].outcome == "passed" else ():
            if verdict.unit == "s" and verdict.better == "lower" and (verdict.current or 0.0) > 0:
                yield _benchmark(result, verdict, samples_of(verdict))


def hand_over(results: Sequence[CaseResult], receiver: BenchmarkSession) -> None:
    """Add a benchmark for each judged time to pytest-benchmark's session; if a test ran twice, the last run counts.

    Raises AttributeError, TypeError or ImportError if its interface is not that of versions 5.2 to 5.3.
    """
    from pytest_benchmark.fixture import BenchmarkFixture

    for node in {node.nodeid: node for node in benchmarks(results)}.values():
        options = {**receiver.options, "timer": SimpleNamespace(target=_replay(node.judged_s)), "cprofile": False}
        fixture = BenchmarkFixture(
            node,
            add_stats=receiver.benchmarks.append,
            logger=receiver.logger,
            warner=None,
            disabled=False,
            group=node.group,
            **options,
        )
        fixture.extra_info.update(node.extra_info)
        fixture.pedantic(lambda: None)


def _replay(judged_s: float) -> Callable[[], float]:
    """A timer that is read before and after the round. It starts at 0.0, so no digit is lost."""
    readings = iter((0.0, judged_s))

    def distbench_judged() -> float:
        return next(readings)

    return distbench_judged


def _benchmark(result: CaseResult, verdict: Finding, samples: Sequence[Sample]) -> SimpleNamespace:
    from pytest_distbench.report.verdicts import values_of
    from pytest_distbench.units import GIGABYTE

    case, environment = result.case, result.environment
    test = f"{case.test}[{case.name}]" if case.name else case.test
    fullname = f"{test}:{verdict.metric}"
    judged_s = float(verdict.current or 0.0)
    scalars = {name: value for name, value in case.params.items() if isinstance(value, bool | int | float | str)}
    params = {**scalars, **verdict.at, "world_size": case.world_size, "metric": verdict.name}
    bandwidths: dict[str, float] = {}  # in GB/s (1e9 bytes) as nccl-tests defines them
    size, factor = verdict.at.get("message_bytes"), verdict.facts.get("busbw_factor")
    if isinstance(size, int | float):
        algbw = bandwidths["algbw_gb_per_s"] = size / judged_s / GIGABYTE
        if isinstance(factor, int | float):
            bandwidths["busbw_gb_per_s"] = algbw * factor
    spreads = [m.spread for m in samples if m.spread is not None and m.spread.n]
    inside = {
        "iterations": [s.n for s in spreads],
        "median_s": [s.median for s in spreads],
        "p95_s": [s.p95 for s in spreads],
        "p99_s": [s.p99 for s in spreads],
    }
    if len(spreads) < len(samples):
        inside = {}
    return SimpleNamespace(
        name=fullname.rpartition("::")[2],
        nodeid=fullname,
        _nodeid=fullname,  # version 5.2 reads this one
        group=test,
        callspec=SimpleNamespace(id=f"{case.name}:{verdict.metric}", params=params),
        judged_s=judged_s,
        extra_info={
            "world_size": case.world_size,
            "backend": case.conditions.backend,
            "launcher": case.conditions.launcher,
            "device": environment.device,
            "platform": environment.platform,
            "software": environment.software,
            "verdict": verdict.kind,
            "statistic": verdict.statistic,
            "launches_s": values_of(verdict, samples),
            **verdict.at,
            **bandwidths,
            **inside,
        },
    )
