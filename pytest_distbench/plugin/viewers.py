"""The numbers of a test in the reports of pytest-html and Allure, which leave out what JUnit and JSON reports show."""

from __future__ import annotations

import html
from collections.abc import Generator

import pytest

_TITLE = "distbench"


class ViewersPlugin:
    """Registered as a pytest plugin of its own, because most runs do without it."""

    def __init__(self, *, in_allure: bool) -> None:
        self._in_allure = in_allure

    @pytest.hookimpl(optionalhook=True)
    def pytest_html_results_table_html(self, report: pytest.TestReport, data: list[str]) -> None:
        """Add the numbers to what a click on the test shows."""
        if lines := _lines(report):
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
    """The numbers as a table; nothing of a test that is not ours."""
    from pytest_distbench.report.formats.properties import PREFIX
    from pytest_distbench.report.texts.layout import layout  # late: a run without tests of ours must not pay for it

    rows = [(name.removeprefix(PREFIX), str(text)) for name, text in report.user_properties if name.startswith(PREFIX)]
    return layout(("metric", "this run"), rows, left=2) if rows else []
