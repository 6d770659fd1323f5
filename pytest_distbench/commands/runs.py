"""``distbench compare`` and ``report``: run records, without a store."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from pytest_distbench.commands.contract import Adder, NegativeError
from pytest_distbench.errors import DistbenchError
from pytest_distbench.judging.runs import compared
from pytest_distbench.judging.update_policy import FEWEST_LAUNCHES
from pytest_distbench.records.kinds import VERDICT_KINDS
from pytest_distbench.report.tables import METRIC_HEADER, layout, metric_row
from pytest_distbench.report.terminal import summary_lines
from pytest_distbench.store.run_record import read_run_record


def add(add_parser: Adder) -> None:
    """Add these commands."""
    compare = add_parser("compare", help="judge one run record against another, as if it were the baseline")
    compare.add_argument("old", metavar="A.json", type=Path, help="the baseline, written by pytest --distbench-json")
    compare.add_argument("new", metavar="B.json", type=Path, help="what is judged")
    compare.add_argument(
        "--fail",
        action="store_true",
        help="exit code 1 if anything regressed, failed or is gone, or nothing was judged",
    )
    compare.add_argument(
        "--tolerance", metavar="X", type=float, default=0.1, help="accepted change towards worse (default: 0.1)"
    )
    compare.set_defaults(command=_compare)
    report = add_parser("report", help="what a run measured and said, from its run record")
    report.add_argument("run", metavar="RUN.json", type=Path, help="written by pytest --distbench-json")
    report.set_defaults(command=_report)


def _compare(options: argparse.Namespace) -> Iterator[str]:
    if not 0 <= options.tolerance < float("inf"):
        raise DistbenchError(f"--tolerance {options.tolerance}: wanted a fraction such as 0.05, at least 0")
    comparison = compared(read_run_record(options.old), read_run_record(options.new), tolerance=options.tolerance)
    if not comparison.verdicts and not comparison.lost:
        raise DistbenchError(f"{options.old} and {options.new} hold no judged case")
    counts: Counter[str] = Counter()
    for name, verdicts in comparison.verdicts.items():
        counts.update(v.kind for v in verdicts if v.is_judged)
        moved = [v for v in verdicts if v.kind != "unchanged"]
        if moved:
            yield str(name)
            yield from layout(METRIC_HEADER, [metric_row(v) for v in moved], left=2)
            reasons = Counter(v.reason for v in moved if v.reason)
            yield from (f"   {reason} ({number} metric{'s' * (number != 1)})" for reason, number in reasons.items())
            yield ""
    yield from (f"failed in {options.new}: {name}" for name in comparison.failed)
    yield from (f"only in {options.old}: {name}" for name in comparison.lost)
    yield from (f"only in {options.new}: {name}" for name in comparison.added)
    total = sum(counts.values())
    cases = len(comparison.verdicts)
    counted = f"{total} metric{'s' * (total != 1)} of {cases} case{'s' * (cases != 1)}"
    yield f"{counted}: {', '.join(f'{number} {kind}' for kind, number in counts.items()) or 'nothing judged'}"
    if comparison.few:
        yield (
            f"{comparison.few} cases of {options.old} have fewer than {FEWEST_LAUNCHES} launches, their noise is not "
            f"known: measure both runs with --distbench-launches {FEWEST_LAUNCHES}"
        )
    judged = sum(counts[kind] for kind, row in VERDICT_KINDS.items() if row.is_answer)
    failing = sum(counts[kind] for kind, row in VERDICT_KINDS.items() if row.fails)
    if options.fail and (failing or comparison.failed or comparison.lost or not judged):
        raise NegativeError


def _report(options: argparse.Namespace) -> Iterator[str]:
    record = read_run_record(options.run)
    yield f"{record.started}, {record.duration_s:.0f} s, pytest-distbench {record.distbench}"
    yield from summary_lines(
        record.results, verbosity=1, record_command="pytest --distbench-update=new", folder=Path("baselines")
    )
    for result in record.results:
        for launch in result.launches:
            if launch.outcome == "failed":
                yield f"{result.nodeid}: launch {launch.index + 1} failed: {launch.reason}"
