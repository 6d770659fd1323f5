"""The tables of elastic jobs: what each change of membership cost, and the summary."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from pytest_distbench.records.elastic import PARTS, ChangeResult, ElasticJob, ElasticResult, EpochResult, Moment
from pytest_distbench.records.record import replace
from pytest_distbench.records.run import CaseResult
from pytest_distbench.report.tables.table import LAUNCH, TEST, Cell, Column, OfLaunch, TableKind, number, seconds


def is_fixed(job: ElasticJob) -> bool:
    """Whether nothing changes its membership."""
    return not job.plan.changes and job.plan.cycle is None


def setup_name(job: ElasticJob) -> str:
    """Nodes that stay and nodes that come and go: ``4:4 (10 s cycle)``."""
    if job.plan.cycle is not None:
        return f"{job.least}:{job.most - job.least} ({job.plan.cycle.period_s:g} s cycle)"
    return f"{job.start}:0" if is_fixed(job) else f"{job.least}:{job.most - job.least} ({job.plan})"


def jobs_of(results: Sequence[CaseResult]) -> Iterator[OfLaunch[ElasticResult]]:
    """All elastic jobs; one of a pool has its name behind that of its case."""
    for result in results:
        for launch in result.launches:
            if launch.elastic is not None:
                yield OfLaunch(result, launch, launch.elastic)
            for job in launch.pool.jobs if launch.pool is not None else []:
                if job.elastic is not None:
                    part = "run" if result.case.run else "id"
                    case = replace(result.case, **{part: f"{getattr(result.case, part)} {job.name}"})
                    mine = [m for m in launch.measurements if m.at.get("job") == job.name]
                    named = replace(result, case=case)
                    yield OfLaunch(named, replace(launch, measurements=mine), job.elastic)


def _whole_s(job: ElasticResult) -> float:
    """From its first step on."""
    return job.training_s + job.end_s


def _last(job: ElasticResult) -> EpochResult | None:
    return job.epochs[-1] if job.epochs else None


def _value(name: str, heading: str) -> Column[OfLaunch[ElasticResult]]:
    """A metric of the whole launch."""

    def cell(row: OfLaunch[ElasticResult]) -> object:
        return {m.name: m.value for m in row.launch.measurements if not m.at.keys() - {"job"}}.get(name)

    return Column(name, float, heading, cell)


JOBS: TableKind[OfLaunch[ElasticResult]] = TableKind(
    summary="One row per launch of an elastic job: its set-up, epochs, time from its first step on, and quality.",
    rows=lambda results: list(jobs_of(results)),
    columns=[
        Column("setup", str, "Setup (Ondemand:Cycle)", lambda row: setup_name(row.item.job)),
        Column("epochs", int, "Epochs", lambda row: len(row.item.epochs)),
        Column("seconds", float, "Time taken (seconds)", lambda row: number(_whole_s(row.item), ".5f")),
        Column("minutes", float, "Time taken minutes", lambda row: number(_whole_s(row.item) / 60, ".5f")),
        _value("accuracy", "Accuracy"),
        _value("top5", "top5"),
        Column("loss", float, "Loss", lambda row: (last := _last(row.item)) and last.loss),
        _value("goodput", "goodput"),
        _value("lost_fraction", "lost"),
        Column("start_s", float, "Start (seconds)", lambda row: number(row.item.start_s, ".5f")),
        Column(
            "training_accuracy", float, "training accuracy", lambda row: (last := _last(row.item)) and last.accuracy
        ),
        Column("training_top5", float, "training top5", lambda row: (last := _last(row.item)) and last.top5),
        Column("plan", str, "plan", lambda row: str(row.item.job.plan)),
        TEST,
        LAUNCH,
    ],
)


def _kind(change: ChangeResult) -> Cell:
    return Cell(change.kind, f"{change.kind} of slot {', '.join(map(str, change.slots))}")


def _part(part: str) -> Column[OfLaunch[ChangeResult]]:
    return Column(f"{part}_s", float, part.replace("_", " "), lambda row: seconds(row.item.parts.get(part)))


def _moment(when: str, moment_of: Callable[[ChangeResult], Moment | None]) -> list[Column[OfLaunch[ChangeResult]]]:
    """What is shown of the step before a change, or of the one behind it, each alone."""

    def column(name: str, type_: type[int] | type[float]) -> Column[OfLaunch[ChangeResult]]:
        return Column(f"{name}_{when}", type_, f"{name} {when}", lambda row: getattr(moment_of(row.item), name, None))

    return [
        column("step", int),
        column("epoch", int),
        column("loss", float),
        column("accuracy", float),
        column("lr", float),
    ]


EVENTS: TableKind[OfLaunch[ChangeResult]] = TableKind(
    summary="Every change of membership: what it cost, and where the time went.",
    rows=lambda results: [
        OfLaunch(row.result, row.launch, change) for row in jobs_of(results) for change in row.item.changes
    ],
    columns=[
        TEST,
        LAUNCH,
        Column("change", int, "#", lambda row: Cell(row.item.index, str(row.item.index + 1))),
        Column("at_s", float, "at s", lambda row: number(row.item.at_s, ".1f")),
        Column("kind", str, "change", lambda row: _kind(row.item)),
        Column("before", int, "nodes", lambda row: row.item.before),
        Column("after", int, "then", lambda row: row.item.after),
        Column("stall_s", float, "stall", lambda row: seconds(row.item.stall_s)),
        Column("recovery_s", float, "recovery", lambda row: seconds(row.item.recovery_s)),
        *map(_part, PARTS),
        Column("unaccounted_s", float, "unaccounted", lambda row: seconds(row.item.unaccounted_s)),
        Column("steps_redone", int, "steps redone", lambda row: row.item.steps_redone),
        Column("redone_s", float, "redone", lambda row: seconds(row.item.redone_s)),
        Column("rounds", int, "rounds", lambda row: row.item.rounds),
        Column("restarts_used", int, "restarts", lambda row: row.item.restarts_used),
        Column("joiner_ready_s", float, "joiner ready", lambda row: seconds(row.item.joiner_ready_s)),
        Column("slot_free_s", float, "slot free", lambda row: seconds(row.item.slot_free_s)),
        *_moment("before", lambda change: change.before_it),
        *_moment("after", lambda change: change.after_it),
        Column(
            "overlapped",
            bool,
            "",
            lambda row: Cell(row.item.overlapped, "overlapped" if row.item.overlapped else ""),
        ),
    ],
)
