"""The reports that the ranks of a launch left behind."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping

import msgspec

from pytest_distbench.launch.breakdown import loops_on
from pytest_distbench.launch.reduce import common_prints, entered_on, recorded, reduce_partials
from pytest_distbench.records.host_report import HostReport
from pytest_distbench.records.launch_files import open_left
from pytest_distbench.records.plan import LaunchPlan
from pytest_distbench.records.rank import RankReport
from pytest_distbench.records.record import replace

_LARGEST_REPORT = 256 * 2**20


def read_reports(plan: LaunchPlan, ranks: Iterable[int] | None = None) -> dict[int, RankReport]:
    """The reports by rank. A missing or damaged one is left out: its rank died writing it.

    Args:
        plan: of the launch.
        ranks: whose; None: of all processes of the launch.
    """
    reports = {}
    for rank in range(plan.processes) if ranks is None else ranks:
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


def report_host(plan: LaunchPlan, ranks: Iterable[int] | None = None) -> HostReport:
    """What the ranks of this host have left behind, reduced.

    Args:
        plan: of the launch, with files on this host.
        ranks: that live here; None: all.
    """
    here = sorted(range(plan.processes) if ranks is None else ranks)
    return reduce_host(read_reports(plan, here), lived_here=len(here), are_all=len(here) == plan.processes)


def reduce_host(found: Mapping[int, RankReport], *, lived_here: int, are_all: bool) -> HostReport:
    """What the ranks of one host recorded, reduced over them where all of them have passed.

    Args:
        found: their reports, by rank.
        lived_here: how many ranks the host had.
        are_all: no other host had any, so that one clock has all stamps.
    """
    reports = [found[rank] for rank in sorted(found)]
    ends = [replace(report, observations=[], fingerprints={}) for report in reports]
    if len(reports) < lived_here or any(report.outcome != "passed" for report in reports):
        return HostReport(ranks=ends)
    return HostReport(
        ranks=ends,
        observations=reduce_partials(recorded(reports)),
        fingerprints=common_prints(reports),
        loops=loops_on(reports, is_one_clock=are_all),
        entered=entered_on(reports, ahead_s=time.time() - time.monotonic()),
    )
