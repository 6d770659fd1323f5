"""Fixture ``equivalent`` and option ``--distbench-model``; what they need is imported when it is used."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from pytest_distbench.plugin.fixtures import STATE, settings_of
from pytest_distbench.records.options import BASIC, Option
from pytest_distbench.records.wanted import Wanted

if TYPE_CHECKING:
    from pytest_distbench.layouts.fixtures import Equivalent
    from pytest_distbench.plugin.collect import ResultsPlugin
    from pytest_distbench.plugin.distbench import Distbench


def _read_models(text: str) -> str | None:
    from pytest_distbench.layouts.items import read_models

    return read_models(text)


MODEL = Option(
    "models under each layout against one rank; no test file",
    "A model is transformers:NAME[,NAME], or file.py::make, which returns a module and a batch. Nothing is stored.",
    metavar="MODEL[,MODEL]",
    wanted=Wanted("transformers:NAME[,NAME] or file.py::make", _read_models),
    name="model",
    group=BASIC,
    default="",
    excludes={"update": "a model is compared with one rank, and nothing is stored of it"},
    has_ini_key=False,
)


@pytest.fixture
def equivalent(distbench: Distbench) -> Equivalent:
    """Compare a layout of a training with one rank: ``equivalent("gpt.py::gpt", "fsdp2")``."""
    from pytest_distbench.layouts.fixtures import Equivalent

    return Equivalent(distbench)


def _models(config: pytest.Config) -> str:
    given: str | None = config.getoption("distbench_model", None)
    return settings_of(config).added["model"] if given else ""


def pytest_configure(config: pytest.Config) -> None:
    """Collect the models alone if the command line has no path, in workers of pytest-xdist too."""
    if not (models := _models(config)):
        return
    from pytest_distbench.layouts.items import preload

    if config.args_source is not pytest.Config.ArgsSource.ARGS:
        config.args = []
    state = config.stash[STATE]
    if state.settings is not None:
        state.settings = replace(state.settings, preload=(*state.settings.preload, *preload(models)))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Add the models to what the session collects."""
    report = yield
    if isinstance(collector, pytest.Session) and (models := _models(collector.config)):
        from pytest_distbench.layouts.items import collectors

        report.result += collectors(collector, models, collector.config.invocation_params.dir)
    return report


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Run all layouts of a model in one worker of ``-n``: they share what is computed once for all of them."""
    if not _models(config) or config.getvalue("dist") != "load":
        return None
    from xdist.scheduler import LoadScopeScheduling

    class ByModel(LoadScopeScheduling):  # type: ignore[misc] # it has no types
        def _split_scope(self, nodeid: str) -> str:
            return nodeid.partition("[")[0]

    return ByModel(config, log)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print the matrix: models down, layouts across."""
    results: ResultsPlugin | None = config.pluginmanager.getplugin("distbench-results")
    if not _models(config) or results is None or not results.results:
        return
    from pytest_distbench.layouts.tables import MODEL_TABLE
    from pytest_distbench.report import layout

    table = MODEL_TABLE.table(results.results)
    terminalreporter.section("models under layouts", sep="-")
    for line in [*layout(table.header, table.texts), *table.footer]:
        terminalreporter.write_line(line)
