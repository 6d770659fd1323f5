"""The table of sweeps as nccl-tests tells them: a row per message, out of place and in place side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from pytest_distbench.records.kinds import VERDICT_KINDS
from pytest_distbench.records.metric import Scalar
from pytest_distbench.records.network import NETWORK
from pytest_distbench.records.run import CaseResult
from pytest_distbench.records.verdict import Verdict
from pytest_distbench.report.tables.sweep import SweepPoint, refusals, sweep_points
from pytest_distbench.report.tables.table import Cell, Column, TableKind, microseconds, number

_HOW = ("cache", "group", "together", "parts", "over_ranks", "buffers")
"""What else tells how a call was made, besides its mode, in the order it is told."""

_USUAL = {"cache": "rotate"}
"""Not worth a word; of the others nothing is noted where they are as usual."""

_ON_A_COPY = "out of place: in place on a copy, made outside the clock"
"""torch has some collectives in place only."""

NO_ROOT = "-1"
"""As nccl-tests writes it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """What is sent, and how: rows of one kind differ in their size."""

    test: str
    collective: str
    backend: str
    world_size: int
    mode: str
    how: str
    dtype: str
    redop: str
    root: str
    device: str
    network: str = ""
    """That was chosen; empty: whatever there is."""
    transport: str = ""

    @property
    def program(self) -> tuple[str, str, int, str]:
        """What one program of nccl-tests would have run."""
        return self.collective, self.backend, self.world_size, self.network


@dataclass(slots=True, kw_only=True)
class CollectiveRow:
    """One message of a kind; ``sides`` is what was measured ``in_place`` and out of it.

    The size is None where the sweep failed; ``count`` is elements, as nccl-tests counts them; ``verdict`` the gravest,
    or ``unsupported``, or ``failed``; ``note`` says why there are no numbers, or what they are not.
    """

    kind: Kind
    message_bytes: int | None
    count: int | None = None
    sides: dict[bool, SweepPoint] = field(default_factory=dict)
    verdict: str
    note: str = ""


def collective_rows(results: Sequence[CaseResult]) -> list[CollectiveRow]:
    """The rows of all sweeps, in their order."""
    rows: dict[tuple[Kind, int | None], list[CollectiveRow]] = {}
    for result in results:
        for row in _rows_of(result):
            known = rows.setdefault((row.kind, row.message_bytes), [])
            other = next((r for r in known if r.sides and row.sides and not r.sides.keys() & row.sides.keys()), None)
            if other is None:
                known.append(row)
                continue
            other.sides |= row.sides
            other.note = other.note or row.note
            other.verdict = min(other.verdict, row.verdict, key=list(VERDICT_KINDS).index)
    return [row for found in rows.values() for row in found]


def _rows_of(result: CaseResult) -> Iterator[CollectiveRow]:
    for point in sweep_points(result):
        facts = point.time.facts
        if "collective" not in facts:
            continue  # message sizes of something else, which has a table of its own
        count = facts.get("count")
        yield CollectiveRow(
            kind=_kind(result, facts),
            message_bytes=point.message_bytes,
            count=int(count) if count is not None else None,
            sides={bool(facts.get("in_place", True)): point},
            verdict=point.gravest,
            note=_ON_A_COPY if facts.get("copies") else "",
        )
    for refused in refusals(result):
        yield _refused(result, refused)
    last = result.launches[-1] if result.launches else None
    if last is not None and last.outcome == "failed" and "collective" in result.case.params:
        yield CollectiveRow(
            kind=_kind(result, {}), message_bytes=None, verdict="failed", note=(last.reason.splitlines() or [""])[0]
        )


def _refused(result: CaseResult, verdict: Verdict) -> CollectiveRow:
    reason = f"{result.case.conditions.backend}: {verdict.facts['reason']}"
    had_it = verdict.baseline == 1 or any(
        v.name == "latency" and v.current is None and v.baseline is not None for v in result.verdicts
    )
    size = verdict.facts.get("message_bytes")
    return CollectiveRow(
        kind=_kind(result, verdict.facts),
        message_bytes=int(size) if size is not None else None,
        verdict="unsupported",
        note=f"{reason} (the baseline has it)" if had_it else reason,
    )


def _kind(result: CaseResult, facts: dict[str, Scalar]) -> Kind:
    case = result.case
    told = {**{k: v for k, v in case.params.items() if isinstance(v, str | int)}, **facts}
    how = [name for name in _HOW if name in facts and told[name] != _USUAL.get(name)]
    return Kind(
        test=case.test,
        collective=str(told.get("collective", "?")),
        backend=case.conditions.backend,
        world_size=case.world_size,
        mode=str(told.get("mode", "per-iteration")),
        how=" ".join(str(told[name]) if name in ("cache", "together") else f"{name}={told[name]}" for name in how),
        dtype=str(told.get("dtype", "?")),
        redop=str(told.get("redop", "none")),
        root=str(told.get("root", NO_ROOT)),
        device=case.device,
        network=case.conditions.around.get(NETWORK, ""),
        transport=str(told.get("transport", "")),
    )


def footer(rows: Sequence[CollectiveRow]) -> list[str]:
    """The last lines of nccl-tests; of several collectives, backends or world sizes a mean of each."""
    wrong = sum(int(side.wrong_elements or 0) for row in rows for side in row.sides.values())
    failed = sum(row.verdict == "failed" for row in rows)
    state = "OK" if not wrong and not failed else "FAILED"
    more = f", and {failed} sweep{'s' * (failed != 1)} without numbers" if failed else ""
    lines = [f"# Out of bounds values : {wrong} {state}{more}"]
    programs: dict[tuple[str, str, int, str], list[CollectiveRow]] = {}
    for row in rows:
        programs.setdefault(row.kind.program, []).append(row)
    for (collective, backend, ranks, network), own in programs.items():
        if found := [side.busbw for row in own for side in row.sides.values() if side.busbw is not None]:
            over = f", {network}" if network else ""
            whose = f"  {collective}, {backend}, {ranks} ranks{over}" if len(programs) > 1 else ""
            lines.append(f"# Avg bus bandwidth    : {fmean(found):g}{whose}")
    return lines


def _placement(name: str, *, in_place: bool) -> list[Column[CollectiveRow]]:
    """What was measured in one placement: people see no columns of what no row has."""

    def column(
        what: str, heading: str, cell: Callable[[SweepPoint], Cell], has: Callable[[SweepPoint], bool] = lambda _: True
    ) -> Column[CollectiveRow]:
        return Column(
            f"{name}_{what}",
            float,
            lambda rows: heading if any(in_place in row.sides and has(row.sides[in_place]) for row in rows) else None,
            lambda row: cell(row.sides[in_place]) if in_place in row.sides else Cell(None, ""),
        )

    return [
        column("time_s", f"{name.replace('_', '-')} time(us)", lambda point: microseconds(point.time_s, ".2f")),
        column("algbw_gb_per_s", "algbw(GB/s)", lambda point: number(point.algbw, ".3f")),
        column("busbw_gb_per_s", "busbw(GB/s)", lambda point: number(point.busbw, ".3f")),
        column(
            "busbw_share",
            "of peak",
            lambda point: number(point.busbw_share, ".1%"),
            has=lambda point: point.busbw_share is not None,
        ),
        column("wrong_elements", "#wrong", lambda point: number(point.wrong_elements, ".0f", nothing="N/A")),
    ]


COLLECTIVES: TableKind[CollectiveRow] = TableKind(
    summary="Every message of every sweep as nccl-tests prints it, with its two last lines.",
    rows=collective_rows,
    columns=[
        Column("test", str, None, lambda row: row.kind.test),
        Column("collective", str, "collective", lambda row: row.kind.collective),
        Column("backend", str, "backend", lambda row: row.kind.backend),
        Column("mode", str, "mode", lambda row: Cell(row.kind.mode, f"{row.kind.mode} {row.kind.how}".rstrip())),
        Column("how", str, None, lambda row: row.kind.how),
        Column(
            "transport",
            str,
            lambda rows: "transport" if any(row.kind.transport for row in rows) else None,
            lambda row: row.kind.transport,
        ),
        Column("world_size", int, "ranks", lambda row: row.kind.world_size),
        Column(
            "network",
            str,
            lambda rows: "network" if any(row.kind.network for row in rows) else None,
            lambda row: row.kind.network,
        ),
        Column("message_bytes", int, "size(B)", lambda row: number(row.message_bytes, "", nothing="")),
        Column("count", int, "count", lambda row: number(row.count, "", nothing="")),
        Column("type", str, "type", lambda row: row.kind.dtype),
        Column("redop", str, "redop", lambda row: row.kind.redop),
        Column("root", str, "root", lambda row: row.kind.root),
        *_placement("out_of_place", in_place=False),
        *_placement("in_place", in_place=True),
        Column("verdict", str, "verdict", lambda row: row.verdict),
        Column("note", str, lambda rows: "note" if any(row.note for row in rows) else None, lambda row: row.note),
    ],
    footer=lambda rows: footer(rows) if rows else (),
)
