"""The timeline of an elastic training beside the fixed one's, row by row as reports of on/off cycles print it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from pytest_distbench.records.elastic import ChangeResult, ElasticJob, ElasticResult, EpochResult
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.run import CaseResult
from pytest_distbench.report.section import Cell, Section, plain
from pytest_distbench.store.rows import Column

SETUP_PARTS = ("import", "group_init", "build", "checkpoint_load")
"""Of a recovery: what the processes that began anew did before their first step."""
WORKER_PARTS = ("rendezvous", "process_start")
"""What the agents did to have workers again."""


class _Row(NamedTuple):
    """What one side did, in words and in seconds."""

    epoch: str
    text: str
    seconds: float
    compares: bool = True


def setup_name(job: ElasticJob) -> str:
    """Nodes that stay and nodes that come and go: ``4:4 (10 s cycle)``."""
    if job.plan.cycle is not None:
        return f"{job.least}:{job.most - job.least} ({job.plan.cycle.period_s:g} s cycle)"
    return f"{job.least}:{job.most - job.least} ({job.plan})" if job.plan.changes else f"{job.start}:0"


def cycle_section(results: Sequence[CaseResult]) -> Section:
    """Every epoch and every event of an elastic run, beside the fixed run of the same test: who lost how much."""
    fixed = {result.nodeid: (launch, job) for result, launch, job in _jobs(results) if _is_fixed(job.job)}
    rows = []
    sides: set[tuple[str, str]] = set()
    for result, launch, job in _jobs(results):
        if _is_fixed(job.job):
            continue
        beside = fixed.get(result.nodeid)
        theirs = {row.epoch: row for row in _rows(beside[1])} if beside is not None else {}
        sides.add((f"Ondemand {beside[1].job.start}" if beside is not None else "Ondemand", _elastic_name(job.job)))
        for mine in _rows(job):
            other = theirs.get(mine.epoch) if mine.compares else None
            difference = None if other is None else mine.seconds - other.seconds
            number = mine.epoch if mine.compares and mine.epoch.isdecimal() else ""
            rows.append(
                [
                    plain(number),
                    plain("" if other is None else other.text),
                    _perf(None if other is None else other.seconds),
                    plain(mine.text),
                    _perf(mine.seconds),
                    Cell(difference, "" if difference is None else f"{difference:+.5f}"),
                    Cell(result.nodeid, result.case.title),
                    Cell(launch.index, str(launch.index + 1)),
                ]
            )
    columns: dict[str, Column] = {
        "epoch": str, "ondemand": str, "ondemand_s": float, "elastic": str, "elastic_s": float, "difference_s": float,
        "test": str, "launch": int,
    }  # fmt: skip
    [(first, second)] = sides if len(sides) == 1 else [("Ondemand", "Elastic")]
    headings = ["Epoch", first, "Perf", second, "Perf", "Difference (s)", "test", "launch"]
    return Section(columns=columns, headings=headings, rows=rows)


def _elastic_name(job: ElasticJob) -> str:
    cycle = job.plan.cycle
    if cycle is None:
        return f"Elastic {setup_name(job)}"
    return f"Elastic Cycle {cycle.period_s:g} s on and off {job.least} on demand {job.most - job.least} elastic"


def _rows(job: ElasticResult) -> Iterator[_Row]:
    """Where all the time of a launch went; what a change took is in its epoch's time, and stands before it."""
    yield _Row("start", f"Script setup took {job.start_s:.5f}", job.start_s)
    for epoch in job.epochs:
        for index in epoch.changes:
            yield from _event_rows(job.changes[index])
        yield _Row(str(epoch.epoch), _epoch_text(epoch), epoch.seconds)
    whole = job.start_s + job.training_s + job.end_s
    told = job.start_s + sum(epoch.seconds for epoch in job.epochs)
    yield _Row("unaccounted", f"unaccounted {whole - told:.5f}", whole - told)
    training = whole - job.start_s  # a warm machine starts in half the time, and that is no training
    yield _Row("total", f"Total train time is {training:.5f} without the start", training)


def _event_rows(change: ChangeResult) -> Iterator[_Row]:
    workers = sum(change.parts.get(part, 0.0) for part in WORKER_PARTS)
    setup = sum(change.parts.get(part, 0.0) for part in SETUP_PARTS)
    lost = (change.stall_s or 0.0) + change.redone_s
    if change.parts:
        yield _Row("", f"initialize_workers took {workers:.3f}", workers, compares=False)
        yield _Row("", f"Script setup took {setup:.5f}", setup, compares=False)
    yield _Row("", f"Epoch time lost {lost:.5f} ({change.kind})", lost, compares=False)


def _epoch_text(epoch: EpochResult) -> str:
    told = [("loss", epoch.loss), ("accuracy", epoch.accuracy), ("top_5_accuracy", epoch.top5)]
    numbers = "".join(f" {name}: {value:.4f}" for name, value in told if value is not None)
    return f"Epoch {epoch.epoch} took {epoch.seconds:.2f}{numbers}"


def _perf(seconds: float | None) -> Cell:
    return Cell(seconds, "" if seconds is None else f"{seconds:.5f}")


def _jobs(results: Sequence[CaseResult]) -> Iterator[tuple[CaseResult, LaunchRecord, ElasticResult]]:
    for result in results:
        for launch in result.launches:
            if launch.elastic is not None:
                yield result, launch, launch.elastic


def _is_fixed(job: ElasticJob) -> bool:
    return not job.plan.changes and job.plan.cycle is None
