"""Where an iteration goes: its phases, with their parents, and what they leave unaccounted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean

from pytest_distbench.records.metric import PHASE, metric_key
from pytest_distbench.records.run import CaseResult
from pytest_distbench.report.tables.table import TEST, Cell, Column, TableKind, number, seconds
from pytest_distbench.units import format_seconds

UNACCOUNTED = "unaccounted"


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseRow:
    """One part of a loop's iteration.

    ``mean_s`` is its mean over iterations, ranks and launches, so that parts add up; ``share`` that of the iteration's;
    ``uneven_s`` by how much the slowest rank of an iteration is above that mean. ``parent`` is the phase it is in,
    empty for a part of the iteration itself, of which ``phase`` is empty.
    """

    result: CaseResult
    loop: str
    phase: str
    parent: str
    mean_s: float
    share: float
    uneven_s: float | None = None
    slowest_rank: int | None = None
    slowest_share: float = 0.0


def phase_rows(results: Sequence[CaseResult]) -> list[PhaseRow]:
    """By loop: the iteration, its phases in their order, each followed by its own, and the rest."""
    return [row for result in results for row in _rows_of(result)]


def _rows_of(result: CaseResult) -> Iterator[PhaseRow]:
    means: dict[str, list[float]] = {}
    uneven: dict[str, list[float]] = {}
    slowest: dict[str, tuple[int | None, float]] = {}
    for launch in result.launches:
        for m in launch.measurements:
            if m.summary is not None:
                mean_s = m.summary.mean if m.summary.mean_over_ranks is None else m.summary.mean_over_ranks
                means.setdefault(m.key, []).append(mean_s)
                uneven.setdefault(m.key, []).append(m.summary.mean - mean_s)
                slowest[m.key] = m.summary.slowest_rank, m.summary.slowest_share
    found = {m.key: m for launch in result.launches for m in launch.measurements if m.key in means}
    for key, measurement in found.items():
        if measurement.is_phase:
            continue
        of = f"{PHASE}{measurement.name}/"
        inside = {k: m for k, m in found.items() if m.name.startswith(of) and m.at == measurement.at}
        whole_s = fmean(means[key])
        if not inside or not whole_s:
            continue

        def row(name: str, parent: str, own: str, *, whole_s: float = whole_s, loop: str = key) -> PhaseRow:
            mean_s = fmean(means[own])
            rank, share = slowest[own]
            return PhaseRow(
                result=result, loop=loop, phase=name, parent=parent, mean_s=mean_s, share=mean_s / whole_s,
                uneven_s=None if rank is None else fmean(uneven[own]), slowest_rank=rank, slowest_share=share,
            )  # fmt: skip

        yield row("", "", key)
        top_s = 0.0
        for path in _in_order([m.name.removeprefix(of) for m in inside.values()]):
            own = metric_key(of + path, measurement.at)
            parent, _, _ = path.rpartition("/")
            top_s += 0.0 if parent else fmean(means[own])
            yield row(path.rpartition("/")[2], parent, own)
        rest_s = whole_s - top_s
        yield PhaseRow(result=result, loop=key, phase=UNACCOUNTED, parent="", mean_s=rest_s, share=rest_s / whole_s)


def _in_order(paths: Sequence[str]) -> list[str]:
    """As they were first entered, each followed by those inside it."""
    found: list[str] = []
    for path in paths:
        if not path.rpartition("/")[0]:
            found += [path, *(inner for inner in paths if inner.startswith(f"{path}/"))]
    return found


def _phase(row: PhaseRow) -> Cell:
    depth = (1 + row.parent.count("/") + bool(row.parent)) if row.phase else 0
    return Cell(row.phase, "  " * depth + (row.phase or row.loop))


def _slowest(row: PhaseRow) -> Cell:
    if row.slowest_rank is None:
        return Cell(None, "-")
    return Cell(row.slowest_rank, f"{row.slowest_rank} in {row.slowest_share:.0%}")


def _late(rows: Sequence[PhaseRow]) -> list[str]:
    """Who enters the collectives of a loop after the others, which wait for it: their time is no transfer."""
    found = []
    for row in (row for row in rows if not row.phase):
        late = [launch.late_s[row.loop] for launch in row.result.launches if row.loop in launch.late_s]
        if late:
            of_ranks = [fmean(column) for column in zip(*late, strict=True)]
            last = max(range(len(of_ranks)), key=of_ranks.__getitem__)
            wait_s = of_ranks[last] - fmean(of_ranks)
            found.append(
                f"# {row.result.case.title} {row.loop}: rank {last} enters a collective last, "
                f"{format_seconds(wait_s)} after the mean of the ranks"
            )
    return found


PHASES: TableKind[PhaseRow] = TableKind(
    summary=(
        "Where the iterations of a loop with phases go: means over iterations, ranks and launches. What the phases "
        "leave of the iteration is unaccounted."
    ),
    rows=phase_rows,
    columns=[
        TEST,
        Column("world_size", int, "ranks", lambda row: row.result.case.world_size),
        Column("loop", str, None, lambda row: row.loop),
        Column("phase", str, "phase", _phase),
        Column("parent", str, None, lambda row: row.parent),
        Column("mean_s", float, "time", lambda row: seconds(row.mean_s)),
        Column("share", float, "share", lambda row: number(row.share, ".1%")),
        Column("uneven_s", float, "slowest rank takes more by", lambda row: seconds(row.uneven_s)),
        Column("slowest_rank", int, "slowest rank", _slowest),
    ],
    footer=_late,
    needs="a loop with phases",
)
