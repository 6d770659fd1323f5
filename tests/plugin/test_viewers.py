"""Numbers in the reports of viewers that leave user properties out. With the real plugins: test_other_plugins.py."""

from __future__ import annotations

import pytest

from pytest_distbench.plugin.viewers import ViewersPlugin


def shown(*properties: tuple[str, str]) -> list[str]:
    """What is added to the log that pytest-html shows."""
    report = pytest.TestReport("a.py::test_a", ("a.py", 1, "test_a"), {}, "passed", None, "call")
    report.user_properties = list(properties)
    log: list[str] = []
    ViewersPlugin(in_allure=False).pytest_html_results_table_html(report, log)
    return log


def test_numbers_are_a_table_that_html_leaves_as_it_is() -> None:
    log = shown(("mine", "1"), ("distbench.step", "20 ms"), ("distbench.count", "7 < 8"))

    assert log[2:-1] == ["metric  this run", "step    20 ms", "count   7 &lt; 8"]


def test_nothing_is_added_to_tests_that_are_not_ours() -> None:
    assert shown(("mine", "1")) == []
