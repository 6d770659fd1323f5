"""Findings as lines."""

from __future__ import annotations

import pytest

from pytest_distbench.commands.doctor.finding import Finding, Level, report


def test_the_report_counts_and_gives_advice() -> None:
    lines = list(report(iter([Finding("ok", "clock", "tsc"), Finding("warn", "memory", "little", "buy more")])))

    assert lines[0].split() == ["ok", "clock", "tsc"]
    assert lines[2].strip() == "-> buy more"
    assert lines[-1].startswith("1 warning: ")


@pytest.mark.parametrize(
    ("levels", "told"),
    [
        (["warn", "warn"], "2 warnings: tests run"),
        (["fail"], "1 failed: tests cannot run here as it is; 0 warnings"),
        (["fail", "warn"], "1 failed: tests cannot run here as it is; 1 warning"),
    ],
)
def test_warnings_are_counted(levels: list[Level], told: str) -> None:
    assert list(report(Finding(level, "x", "y") for level in levels))[-1].startswith(told)
