"""The reports that the ranks of a launch left behind."""

from __future__ import annotations

import msgspec

from pytest_distbench.records.launch_files import open_left
from pytest_distbench.records.plan import LaunchPlan
from pytest_distbench.records.rank import RankReport

_LARGEST_REPORT = 256 * 2**20


def read_reports(plan: LaunchPlan) -> dict[int, RankReport]:
    """The reports by rank. A missing or damaged one is left out: its rank died writing it."""
    reports = {}
    for rank in range(plan.processes):
        path = plan.files.report(rank)
        try:
            with open_left(path) as file:
                data = file.read(_LARGEST_REPORT)
            report = msgspec.json.decode(data, type=RankReport)
            if report.rank == rank:
                reports[rank] = report
        except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue
    return reports
