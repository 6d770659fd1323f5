"""What a change of membership costs under each engine of elastic jobs, and where the time goes: side by side.

    python benchmarks/elastic_changes.py [ENGINE ...]

A small real training on one or two nodes; its checkpoint is of every tenth step. Printed per engine and kind of change:
how many, the median stall and the longest, and the median of recovery and of each of its parts, on the survivor that
was last to step again. Two minutes with the stock engine on two quiet cores, half a minute with the fast one.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

from measuring import elastic_plan

from pytest_distbench.elastic import crash, join, kill, leave
from pytest_distbench.launch.elastic.engines import ENGINES
from pytest_distbench.launch.elastic.launch import launch_elastic
from pytest_distbench.launch.side import Side
from pytest_distbench.records.elastic import PARTS, Change, ChangeResult
from pytest_distbench.records.work import Job
from pytest_distbench.report.texts.layout import layout
from pytest_distbench.units import format_seconds

RESTARTING = [name for name, kind in ENGINES.items() if kind.checkpoint_every is not None]
"""Engines whose nodes begin anew from a checkpoint; one that heals them wants another body."""
HEADINGS = (
    "engine", "change", "n", "stall", "longest", "recovery", *(part.replace("_", " ") for part in PARTS), "redone",
)  # fmt: skip


def make_plan(*, times: int, period_s: float = 0.5) -> list[Change]:
    """Every kind of change, so many times; a node that went comes back."""
    kinds: list[Callable[..., Change]] = [leave, join, kill, join, crash] * times
    return [kind(at_s=number * period_s) for number, kind in enumerate(kinds, 1)]


def rows(engine: str, changes: Sequence[ChangeResult]) -> list[list[str]]:
    """One per kind of change."""
    kinds: dict[str, list[ChangeResult]] = {}
    for change in changes:
        kinds.setdefault(f"{change.kind} {change.before} to {change.after}", []).append(change)
    return [
        [
            engine,
            kind,
            str(len(those)),
            _median([c.stall_s for c in those]),
            format_seconds(max(c.stall_s or 0.0 for c in those)),
            _median([c.recovery_s for c in those]),
            *(_median([c.parts.get(part) for c in those]) for part in PARTS),
            f"{median(c.steps_redone for c in those):g} steps",
        ]
        for kind, those in sorted(kinds.items())
    ]


def _median(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    return format_seconds(median(known)) if known else "-"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("engines", nargs="*", metavar="ENGINE", help=f"default: all of {', '.join(RESTARTING)}")
    parser.add_argument("--times", type=int, default=2, help="of each kind of change; twice as many joins")
    options = parser.parse_args()
    found, has_all = [], True
    for engine in options.engines or RESTARTING:
        if problem := ENGINES[engine].problem():
            print(f"engine {engine}: {problem}", flush=True)
            continue
        with tempfile.TemporaryDirectory(prefix="distbench-engines-", ignore_cleanup_errors=True) as folder:
            plan = elastic_plan(Path(folder), engine, make_plan(times=options.times), nodes=(1, 2))
            record = launch_elastic(plan, Side())
        print(
            f"{plan.expect(Job).job}; took {format_seconds(record.wall_s)}: {record.outcome}. {record.reason}",
            flush=True,
        )
        has_all &= record.outcome == "passed"
        found += rows(engine, record.elastic.changes if record.elastic is not None else [])
    print(*layout(HEADINGS, found, left=2), sep="\n")
    return 0 if has_all else 1


if __name__ == "__main__":
    sys.exit(main())
