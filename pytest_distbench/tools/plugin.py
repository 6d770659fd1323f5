"""Other plugins that numbers go to. What hands them over is imported where the run uses one."""

from __future__ import annotations

import pytest

_BENCHMARK_OPTIONS = tuple(
    f"benchmark_{option}"
    for option in (
        "only", "skip", "enable", "json", "save", "autosave", "save_data", "compare", "compare_fail", "histogram",
    )
)  # fmt: skip
"""Options of pytest-benchmark that ask for something; without any of them our results stay in our own table."""


def pytest_configure(config: pytest.Config) -> None:
    if any(config.getoption(name, None) for name in _BENCHMARK_OPTIONS):
        from pytest_distbench.tools.other_plugins import PytestBenchmarkPlugin

        config.pluginmanager.register(PytestBenchmarkPlugin(), "distbench-pytest-benchmark")
    in_allure = bool(config.getoption("allure_report_dir", None))
    if in_allure or config.getoption("htmlpath", None):
        from pytest_distbench.tools.other_plugins import ViewersPlugin

        config.pluginmanager.register(ViewersPlugin(in_allure=in_allure), "distbench-viewers")
