"""The tables of elastic jobs: what each change of membership cost, the epochs beside a fixed run's, and the summary."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pytest_distbench.records.elastic import PARTS, ChangeResult, ElasticResult, Moment
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.record import replace
from pytest_distbench.records.run import CaseResult
from pytest_distbench.report.cycle import setup_name
from pytest_distbench.report.section import Cell, Section, plain
from pytest_distbench.store.rows import Column
from pytest_distbench.units import format_seconds

_QUALITIES = ("accuracy", "top5")
"""Metrics of bodies that reports show beside times. What was noted in training stands in columns of its own."""

_MOMENT: dict[str, Column] = {"step": int, "epoch": int, "loss": float, "accuracy": float, "lr": float}
"""What is shown of the step before a change and of the one behind it, each alone."""


def event_section(results: Sequence[CaseResult]) -> Section:
    """Every change of membership: what it cost, and where the time went."""
    rows = [
        [
            Cell(result.nodeid, result.case.title),
            Cell(launch.index, str(launch.index + 1)),
            Cell(change.index, str(change.index + 1)),
            Cell(change.at_s, f"{change.at_s:.1f}"),
            Cell(change.kind, f"{change.kind} of slot {', '.join(map(str, change.slots))}"),
            Cell(change.before, str(change.before)),
            Cell(change.after, "-" if change.after is None else str(change.after)),
            _seconds(change.stall_s),
            _seconds(change.recovery_s),
            *(_seconds(change.parts.get(part)) for part in PARTS),
            _seconds(change.unaccounted_s),
            Cell(change.steps_redone, str(change.steps_redone)),
            _seconds(change.redone_s),
            Cell(change.steps_discarded, str(change.steps_discarded)),
            Cell(change.rounds, str(change.rounds)),
            Cell(change.restarts_used, str(change.restarts_used)),
            _seconds(change.joiner_ready_s),
            _seconds(change.slot_free_s),
            *(cell for moment in (change.before_it, change.after_it) for cell in _moment(moment)),
            Cell(change.overlapped, "overlapped" if change.overlapped else ""),
        ]
        for result, launch, _, change in _changes(results)
    ]
    columns: dict[str, Column] = {
        "test": str, "launch": int, "change": int, "at_s": float, "kind": str, "before": int, "after": int,
        "stall_s": float, "recovery_s": float, **{f"{part}_s": float for part in PARTS}, "unaccounted_s": float,
        "steps_redone": int, "redone_s": float, "steps_discarded": int, "rounds": int, "restarts_used": int,
        "joiner_ready_s": float, "slot_free_s": float,
        **{f"{name}_{when}": kind for when in ("before", "after") for name, kind in _MOMENT.items()},
        "overlapped": bool,
    }  # fmt: skip
    headings = [
        "test", "launch", "#", "at s", "change", "nodes", "then", "stall", "recovery",
        *(part.replace("_", " ") for part in PARTS), "unaccounted", "steps redone", "redone", "discarded", "rounds",
        "restarts", "joiner ready", "slot free",
        *(f"{name} {when}" for when in ("before", "after") for name in _MOMENT), "",
    ]  # fmt: skip
    return Section(columns=columns, headings=headings, rows=rows)


def epoch_section(results: Sequence[CaseResult]) -> Section:
    """Every epoch of every elastic job, and how much longer it took than in the fixed run of the same test.

    What lies outside of epochs has rows of its own, so that the rows of a launch sum up to all its time.
    """
    fixed = {result.nodeid: _fixed_of(result) for result in results if _is_fixed(result)}
    rows = []
    for result, launch, job in _jobs(results):
        beside = {} if _is_fixed(result) else fixed.get(result.nodeid, {})
        for what, seconds, told in _parts_of(job):
            other = beside.get(what)
            difference = None if other is None else seconds - other[0]
            rows.append(
                [
                    Cell(result.nodeid, result.case.title),
                    Cell(launch.index, str(launch.index + 1)),
                    plain(what),
                    _seconds(seconds),
                    _seconds(None if other is None else other[0]),
                    Cell(difference, "-" if difference is None else f"{difference:+.2f} s"),
                    *told,
                    _quality(None if other is None else other[1]),
                ]
            )
    columns: dict[str, Column] = {
        "test": str, "launch": int, "epoch": str, "seconds": float, "fixed_s": float, "difference_s": float,
        "nodes": str, "loss": float, "accuracy": float, "top5": float, "lr": float, "changes": str, "stall_s": float,
        "steps_redone": int, "fixed_accuracy": float,
    }  # fmt: skip
    headings = [
        "test", "launch", "epoch", "took", "fixed", "difference", "nodes", "loss", "accuracy", "top5", "lr", "changes",
        "stall", "steps redone", "fixed accuracy",
    ]  # fmt: skip
    return Section(columns=columns, headings=headings, rows=rows)


def job_section(results: Sequence[CaseResult]) -> Section:
    """One row per launch of an elastic job: its set-up, epochs, time from its first step on, and quality."""
    rows = []
    for result, launch, job in _jobs(results):
        values = {m.name: m.value for m in launch.measurements if not m.at.keys() - {"job"}}
        whole = job.training_s + job.end_s
        last = job.epochs[-1] if job.epochs else None
        rows.append(
            [
                plain(setup_name(job.job)),
                Cell(len(job.epochs), str(len(job.epochs))),
                Cell(whole, f"{whole:.5f}"),
                Cell(whole / 60, f"{whole / 60:.5f}"),
                *(_quality(values.get(name)) for name in _QUALITIES),
                _quality(None if last is None else last.loss),
                _quality(values.get("goodput")),
                _quality(values.get("lost_fraction")),
                Cell(job.start_s, f"{job.start_s:.5f}"),
                *(_quality(getattr(last, name, None)) for name in _QUALITIES),
                plain(str(job.job.plan)),
                Cell(result.nodeid, result.case.title),
                Cell(launch.index, str(launch.index + 1)),
            ]
        )
    columns: dict[str, Column] = {
        "setup": str, "epochs": int, "seconds": float, "minutes": float, "accuracy": float, "top5": float,
        "loss": float, "goodput": float, "lost_fraction": float, "start_s": float,
        **{f"training_{name}": float for name in _QUALITIES}, "plan": str, "test": str, "launch": int,
    }  # fmt: skip
    headings = [
        "Setup (Ondemand:Cycle)", "Epochs", "Time taken (seconds)", "Time taken minutes", "Accuracy", "top5", "Loss",
        "goodput", "lost", "Start (seconds)", *(f"training {name}" for name in _QUALITIES), "plan", "test", "launch",
    ]  # fmt: skip
    return Section(columns=columns, headings=headings, rows=rows)


def worker_section(results: Sequence[CaseResult]) -> Section:
    """The timeline: every slot in every generation, from its process to its last step."""
    rows = [
        [
            Cell(result.nodeid, result.case.title),
            Cell(launch.index, str(launch.index + 1)),
            Cell(worker.generation, str(worker.generation)),
            Cell(worker.slot, str(worker.slot)),
            Cell(worker.rank, f"{worker.rank} of {worker.world_size}"),
            *(
                Cell(moment, "-" if moment is None else f"{moment:.2f}")
                for moment in (
                    worker.process_s,
                    worker.imported_s,
                    worker.joined_s,
                    worker.loaded_s,
                    worker.first_step_s,
                    worker.last_step_s,
                )
            ),
            Cell(worker.resumed_at, "-" if worker.resumed_at is None else str(worker.resumed_at)),
            Cell(worker.steps, str(worker.steps)),
        ]
        for result, launch, job in _jobs(results)
        for worker in job.workers
    ]
    columns: dict[str, Column] = {
        "test": str, "launch": int, "generation": int, "slot": int, "rank": int, "process_s": float,
        "imported_s": float, "joined_s": float, "loaded_s": float, "first_step_s": float, "last_step_s": float,
        "resumed_at": int, "steps": int,
    }  # fmt: skip
    headings = [
        "test", "launch", "generation", "slot", "rank", "process at s", "imported", "in its group", "loaded",
        "first step", "last step", "resumed at", "steps",
    ]  # fmt: skip
    return Section(columns=columns, headings=headings, rows=rows)


def rate_section(results: Sequence[CaseResult]) -> Section:
    """The trace of the learning rate: each step from which on it is another one."""
    rows = [
        [
            Cell(result.nodeid, result.case.title),
            Cell(launch.index, str(launch.index + 1)),
            Cell(rate.step, str(rate.step)),
            Cell(rate.epoch, "-" if rate.epoch is None else str(rate.epoch)),
            Cell(rate.nodes, str(rate.nodes)),
            _quality(rate.lr),
        ]
        for result, launch, job in _jobs(results)
        for rate in job.lr
    ]
    columns: dict[str, Column] = {
        "test": str, "launch": int, "step": int, "epoch": int, "nodes": int, "lr": float,
    }  # fmt: skip
    return Section(columns=columns, headings=["test", "launch", "from step", "epoch", "nodes", "lr"], rows=rows)


def _jobs(results: Sequence[CaseResult]) -> Iterator[tuple[CaseResult, LaunchRecord, ElasticResult]]:
    """All elastic jobs; one of a pool has its name behind that of its case."""
    for result in results:
        for launch in result.launches:
            if launch.elastic is not None:
                yield result, launch, launch.elastic
            for job in launch.pool.jobs if launch.pool is not None else []:
                if job.elastic is not None:
                    part = "run" if result.case.run else "id"
                    case = replace(result.case, **{part: f"{getattr(result.case, part)} {job.name}"})
                    mine = [m for m in launch.measurements if m.at.get("job") == job.name]
                    named = replace(result, case=case)
                    yield named, replace(launch, measurements=mine), job.elastic


def _changes(
    results: Sequence[CaseResult],
) -> Iterator[tuple[CaseResult, LaunchRecord, ElasticResult, ChangeResult]]:
    for result, launch, job in _jobs(results):
        for change in job.changes:
            yield result, launch, job, change


def _is_fixed(result: CaseResult) -> bool:
    jobs = [launch.elastic for launch in result.launches if launch.elastic is not None]
    return bool(jobs) and not any(job.job.plan.changes or job.job.plan.cycle for job in jobs)


def _fixed_of(result: CaseResult) -> dict[str, tuple[float, float | None]]:
    """Of its first launch: seconds and accuracy by what they are of."""
    job = next(launch.elastic for launch in result.launches if launch.elastic is not None)
    accuracy = {str(epoch.epoch): epoch.accuracy for epoch in job.epochs}
    return {what: (seconds, accuracy.get(what)) for what, seconds, _ in _parts_of(job)}


def _parts_of(job: ElasticResult) -> Iterator[tuple[str, float, list[Cell]]]:
    """Where all the time of a launch went: its start, its epochs, and its end."""
    nothing = [plain(""), *[_quality(None)] * 4, plain(""), _seconds(None), Cell(None, "")]
    yield "start", job.start_s, nothing
    for epoch in job.epochs:
        changes = [job.changes[index] for index in epoch.changes]
        yield (
            str(epoch.epoch),
            epoch.seconds,
            [
                plain(", ".join(map(str, epoch.nodes))),
                _quality(epoch.loss),
                _quality(epoch.accuracy),
                _quality(epoch.top5),
                _quality(epoch.lr),
                plain(", ".join(f"{c.kind} to {'?' if c.after is None else c.after}" for c in changes)),
                _seconds(epoch.stall_s if changes else None),
                Cell(epoch.steps_redone, str(epoch.steps_redone) if changes else ""),
            ],
        )
    yield "end", job.end_s, nothing
    whole = job.start_s + job.training_s + job.end_s
    told = job.start_s + job.end_s + sum(epoch.seconds for epoch in job.epochs)
    yield "unaccounted", whole - told, nothing
    yield "total", whole, nothing


def _moment(moment: Moment | None) -> list[Cell]:
    if moment is None:
        return [Cell(None, "-")] * len(_MOMENT)
    whole = [Cell(n, "-" if n is None else str(n)) for n in (moment.step, moment.epoch)]
    return [*whole, _quality(moment.loss), _quality(moment.accuracy), _quality(moment.lr)]


def _seconds(value: float | None) -> Cell:
    return Cell(value, "-" if value is None else format_seconds(value))


def _quality(value: float | None) -> Cell:
    return Cell(value, "-" if value is None else f"{value:.4g}")
