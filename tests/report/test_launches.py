"""The table of launches."""

from __future__ import annotations

from support.results import result

from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.report.launches import LAUNCHES


def test_a_launch_has_its_end_its_time_and_the_first_line_of_its_reason() -> None:
    failed = LaunchRecord(index=1, outcome="failed", wall_s=3.0, reason="hung\nin body", peak_memory_bytes=2**20)

    assert LAUNCHES.section([result(), result(launches=[failed])]).texts == [
        ["test_a[ws2]", "1", "passed", "1.5 s", "-", "-", ""],
        ["test_a[ws2]", "2", "failed", "3 s", "1 MiB", "-", "hung"],
    ]
