"""The tables of pools: what became of each job and of requests; and a picture of who had which slot."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.pool import SERVING, PoolResult
from pytest_distbench.records.run import CaseResult
from pytest_distbench.report.section import Cell, Section, plain
from pytest_distbench.store.rows import Column
from pytest_distbench.units import format_seconds

_WIDTH = 72
"""Characters of a picture."""
_FREE, _IDLE = ".", "-"
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def pool_section(results: Sequence[CaseResult]) -> Section:
    """Every job of every pool: when it came, began and ended, and on how many workers it trained."""
    rows = []
    footer: list[str] = []
    for result, launch, pool in _pools(results):
        for job in pool.jobs:
            wait = None if job.started_s is None else job.started_s - job.submitted_s
            jct = None if job.ended_s is None else job.ended_s - job.submitted_s
            rows.append(
                [
                    Cell(result.nodeid, result.case.title),
                    Cell(launch.index, str(launch.index + 1)),
                    plain(_policy(pool)),
                    plain(job.name),
                    _moment(job.submitted_s),
                    _moment(job.started_s),
                    _moment(job.ended_s),
                    _seconds(wait),
                    _seconds(jct),
                    plain(", ".join(f"{workers} from {since:.1f}" for since, workers in job.workers)),
                    _seconds(pool.makespan_s),
                    _seconds(pool.idle_gap_s),
                    _share(pool.allocated),
                    _share(pool.productive),
                ]
            )
        footer += ["", f"{result.case.title}, launch {launch.index + 1}:", *picture(pool)]
    columns: dict[str, Column] = {
        "test": str, "launch": int, "policy": str, "job": str, "submitted_s": float, "started_s": float,
        "ended_s": float, "queue_wait_s": float, "jct_s": float, "workers": str, "makespan_s": float,
        "idle_gap_s": float, "allocated": float, "productive": float,
    }  # fmt: skip
    headings = [
        "test", "launch", "policy", "job", "submitted", "started", "ended", "queue wait", "jct", "workers over time",
        "makespan", "idle gap", "allocated", "productive",
    ]  # fmt: skip
    return Section(columns=columns, headings=headings, rows=rows, footer=footer)


def serving_section(results: Sequence[CaseResult]) -> Section:
    """Every stretch of time of a pool with a serving: who had slots, and how soon requests had their answers."""
    rows = []
    footer: list[str] = []
    for result, launch, pool in _pools(results):
        rows += [
            [
                Cell(result.nodeid, result.case.title),
                Cell(launch.index, str(launch.index + 1)),
                Cell(moment.begin_s, f"{moment.begin_s:.2f} to {moment.end_s:.2f}"),
                Cell(moment.end_s, ""),
                Cell(moment.per_s, f"{moment.per_s:g}"),
                Cell(moment.serving, str(moment.serving)),
                Cell(moment.training, str(moment.training)),
                Cell(moment.serving + moment.training, str(moment.serving + moment.training)),
                Cell(pool.pool.slots, str(pool.pool.slots)),
                Cell(moment.requests, str(moment.requests)),
                _seconds(moment.p95_s),
            ]
            for moment in pool.moments
        ]
        footer += [
            f"at {preemption.at_s:.2f} s {preemption.replicas} more wanted: slots free after "
            f"{_seconds(preemption.free_s).text}, serving ready after {_seconds(preemption.ready_s).text}"
            for preemption in pool.preemptions
        ]
    columns: dict[str, Column] = {
        "test": str, "launch": int, "begin_s": float, "end_s": float, "asked_per_s": float, "serving": int,
        "training": int, "total": int, "capacity": int, "requests": int, "p95_s": float,
    }  # fmt: skip
    headings = [
        "test", "launch", "time s", None, "asked/s", "serving", "training", "total", "capacity", "requests", "p95",
    ]  # fmt: skip
    return Section(columns=columns, headings=headings, rows=rows, footer=footer)


def picture(pool: PoolResult) -> list[str]:
    """A line per slot, from the first submission to the end of the last job: who trains in it, or answers."""
    begin = min(job.submitted_s for job in pool.jobs)
    letters = {job.name: letter for job, letter in zip(pool.jobs, _LETTERS, strict=False)} | {SERVING: "s"}
    step_s = pool.makespan_s / _WIDTH
    lines = {slot: [_FREE] * _WIDTH for slot in range(pool.pool.slots)}

    def draw(slot: int, begin_s: float, end_s: float, mark: str) -> None:
        for column in range(_WIDTH):
            if begin_s <= begin + (column + 0.5) * step_s < end_s:
                lines[slot][column] = mark

    for hold in pool.holds:
        draw(hold.slot, hold.begin_s, hold.end_s, _IDLE)
        if hold.ready_s is not None:
            draw(hold.slot, hold.ready_s, hold.end_s, letters[SERVING])
    for job in pool.jobs:
        since = job.started_s or 0.0
        for worker in job.elastic.workers if job.elastic is not None else []:
            if worker.first_step_s is not None and worker.last_step_s is not None:
                draw(worker.slot, worker.first_step_s + since, worker.last_step_s + since, letters[job.name])
    legend = ", ".join(f"{letter}: {name}" for name, letter in letters.items() if name != SERVING or pool.pool.serving)
    shown = [f"slot {slot} {''.join(line)}" for slot, line in lines.items()]
    first, last = f"{begin:.0f} s", f"{begin + pool.makespan_s:.0f} s"
    return [
        *shown,
        f"       {first}{last:>{_WIDTH - len(first)}}",
        f"{legend}; {_IDLE}: has it, and takes no step; {_FREE}: nobody has it",
    ]


def _policy(pool: PoolResult) -> str:
    words: list[str] = [pool.pool.policy]
    words += ["synthetic"] if pool.pool.compute == "synthetic" else []
    words += [f"{pool.pool.slots} slots on {pool.pool.cores} cores"] if pool.pool.cores is not None else []
    return ", ".join(words)


def _pools(results: Sequence[CaseResult]) -> Iterator[tuple[CaseResult, LaunchRecord, PoolResult]]:
    for result in results:
        for launch in result.launches:
            if launch.pool is not None:
                yield result, launch, launch.pool


def _moment(value: float | None) -> Cell:
    return Cell(value, "-" if value is None else f"{value:.1f}")


def _seconds(value: float | None) -> Cell:
    return Cell(value, "-" if value is None else format_seconds(value))


def _share(value: float) -> Cell:
    return Cell(value, f"{value:.3f}")
