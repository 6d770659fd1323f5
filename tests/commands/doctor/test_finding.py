"""Findings as lines."""

from __future__ import annotations

from pytest_distbench.commands.doctor.finding import Finding, report


def test_the_report_counts_and_gives_advice() -> None:
    lines = list(report(iter([Finding("ok", "clock", "tsc"), Finding("warn", "memory", "little", "buy more")])))

    assert lines[0].split() == ["ok", "clock", "tsc"]
    assert lines[2].strip() == "-> buy more"
    assert lines[-1].startswith("1 warnings")
