"""Tables of communication, and the chart of links: bytes in few tensors and in many, links, growth with ranks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pytest_distbench.judging.fingerprint_rule import structure_of, unit_of
from pytest_distbench.records.kinds import grouped
from pytest_distbench.records.reasons import REASONS, ReasonCode, severity_order
from pytest_distbench.records.run import CaseResult, Finding
from pytest_distbench.report.page import Chart, heat
from pytest_distbench.report.tables.table import TEST, Cell, Column, TableKind, microseconds, num_bytes, number
from pytest_distbench.report.verdicts import CaseText
from pytest_distbench.units import GIGABYTE, quantity
from pytest_distbench.workloads.causes import Link, by_link, find_slow, link_at, outliers, times_of, typical_time

_AXES = {"tensors", "calls"}


_Bucket = tuple[CaseResult, Finding, float, float]
"""A row: case, finding on some number of tensors sent in one way, their time, and that of the fewest so sent; in s."""


def _buckets(results: Sequence[CaseResult]) -> Iterator[_Bucket]:
    for result in results:
        timed = (v for v in result.verdicts if v.name == "latency" and v.at.keys() == _AXES)
        for found in grouped((str(v.at["calls"]), (v, v.current)) for v in timed if v.current).values():
            found.sort(key=lambda pair: int(pair[0].at["tensors"]))
            yield from ((result, verdict, time_s, found[0][1]) for verdict, time_s in found)


def _message_bytes(row: _Bucket) -> int:
    return int(row[1].facts["message_bytes"])


BUCKETS: TableKind[_Bucket] = TableKind(
    summary="Bucket sweeps: time against the number of tensors.",
    rows=_buckets,
    columns=[
        Column("test", str, "test", lambda row: Cell(row[0].nodeid, row[0].case.title)),
        Column("calls", str, "calls", lambda row: str(row[1].at["calls"])),
        Column("tensors", int, "tensors", lambda row: int(row[1].at["tensors"])),
        Column("message_bytes", int, "size", lambda row: num_bytes(_message_bytes(row))),
        Column("time_s", float, "time us", lambda row: microseconds(row[2], ".1f")),
        Column("times_fewest_tensors", float, "x fewest", lambda row: number(row[2] / row[3], ".2f")),
        Column(
            "algbw_gb_per_s", float, "algbw GB/s", lambda row: number(_message_bytes(row) / row[2] / GIGABYTE, ".3f")
        ),
        Column("verdict", str, "verdict", lambda row: row[1].kind),
    ],
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkPoint:
    """A row: a link between two ranks, with its latency, and its bandwidth in GB/s (1e9 bytes).

    ``share``: its time over that of a typical link of the case, in latency or bandwidth, whichever is worse; ``note``
    names what is slow: ``this link``, ``rank 2``, ``from rank 2``, or "". ``hosts``: hosts of its two ranks, or "" if
    all ranks are on one.
    """

    result: CaseResult
    link: Link
    latency_s: float | None
    bandwidth: float | None
    share: float | None
    note: str
    most_severe: ReasonCode
    hosts: tuple[str, str] = ("", "")


def link_points(result: CaseResult) -> Iterator[LinkPoint]:
    """Points of the links of a case, one for each pair of ranks."""
    found = by_link(result.verdicts)
    shares: dict[Link, float] = {}
    notes: dict[Link, str] = {}
    for verdicts in found.values():
        times = times_of(verdicts)
        if typical := typical_time(times):
            shares |= {link: max(shares.get(link, 0.0), seconds / typical) for link, seconds in times.items()}
        ranks, slow, senders, receivers = find_slow(outliers(times), list(times))
        notes |= dict.fromkeys(slow, "this link")
        notes |= {link: f"from rank {rank}" for rank in senders for link in times if link.source == rank}
        notes |= {link: f"to rank {rank}" for rank in receivers for link in times if link.target == rank}
        notes |= {link: f"rank {rank}" for rank in ranks for link in times if rank in link}
    hosts = next((launch.hosts for launch in result.launches if launch.hosts), [])
    for link in sorted({link for verdicts in found.values() for link in verdicts}):
        own = {name: verdicts[link] for name, verdicts in found.items() if link in verdicts}
        latency, bandwidth = own.get("latency"), own.get("bandwidth")
        yield LinkPoint(
            result=result,
            link=link,
            latency_s=latency.current if latency else None,
            bandwidth=bandwidth.current if bandwidth else None,
            share=shares.get(link),
            note=notes.get(link, ""),
            hosts=(hosts[link.source], hosts[link.target]) if hosts else ("", ""),
            most_severe=min((v.code for v in own.values()), key=severity_order),
        )


def _choose(judged: list[Finding]) -> list[Finding]:
    found = by_link(judged).values()
    slowest = [of[max(times, key=times.__getitem__)] for of in found if (times := times_of(of))]
    return [v for v in judged if v in slowest or v.is_failure or link_at(v.at) is None]


LINK_TEXT = CaseText(is_of=lambda result: any(link_at(v.at) and v.current for v in result.verdicts), choose=_choose)


LINKS: TableKind[LinkPoint] = TableKind(
    summary="Every link between two ranks.",
    rows=lambda results: [point for result in results for point in link_points(result)],
    columns=[
        TEST,
        Column("from", int, "from", lambda point: point.link.source),
        Column("to", int, "to", lambda point: point.link.target),
        Column("from_host", str, "from host", lambda point: point.hosts[0], if_any=True),
        Column("to_host", str, "to host", lambda point: point.hosts[1], if_any=True),
        Column("latency_s", float, "latency us", lambda point: microseconds(point.latency_s, ".1f")),
        Column("bandwidth_gb_per_s", float, "bandwidth GB/s", lambda point: number(point.bandwidth, ".3f")),
        Column("times_typical", float, "x typical", lambda point: number(point.share, ".2f")),
        Column("slow", str, "slow", lambda point: point.note),
        Column("verdict", str, "verdict", lambda point: REASONS[point.most_severe].verdict),
    ],
)


def link_charts(result: CaseResult) -> Iterator[Chart]:
    """Chart latency and bandwidth of each link, from rank to rank."""
    found = list(link_points(result))
    ranks = 1 + max((max(point.link) for point in found), default=0)
    latencies = {point.link: point.latency_s for point in found}
    rates = {p.link: None if p.bandwidth is None else p.bandwidth * GIGABYTE for p in found}
    for title, unit, values in (("Latency of links", "s", latencies), ("Bandwidth of links", "B/s", rates)):
        if any(value is not None for value in values.values()):
            cells = [[values.get(Link(source, target)) for target in range(ranks)] for source in range(ranks)]
            labels = [f"rank {rank}" for rank in range(ranks)]
            yield heat(title, unit, down="from", across="to", labels=labels, cells=cells)


_Size = tuple[str, str, int, dict[str, int], dict[str, int]]
"""A test and its loop at a number of ranks: what a rank sends and holds there, and at the fewest ranks."""


def growth_rows(results: Sequence[CaseResult]) -> Iterator[_Size]:
    """Rows of every loop that ran at several world sizes: by test, with ascending ranks."""
    found: dict[tuple[str, str], dict[int, dict[str, int]]] = {}
    for result in results:
        for launch in result.launches[:1]:
            for loop, fingerprint in launch.fingerprints.items():
                if not fingerprint.missing:
                    sizes = found.setdefault((result.case.series, loop), {})
                    sizes[result.case.world_size] = structure_of(fingerprint)
    for (test, loop), sizes in found.items():
        if len(sizes) > 1:
            least = sizes[min(sizes)]
            yield from ((test, loop, ranks, structure, least) for ranks, structure in sorted(sizes.items()))


def _column(name: str, heading: str) -> Column[_Size]:
    def cell(row: _Size) -> Cell:
        *_, structure, least = row
        value, base = structure[name], least[name]
        text = quantity(value, unit_of(name))
        return Cell(value, text if least is structure or not base else f"{text} (x{value / base:.3g})")

    return Column(name, int, heading, cell)


GROWTH: TableKind[_Size] = TableKind(
    summary="What an iteration sends and a rank holds, by world size.",
    rows=growth_rows,
    columns=[
        Column("test", str, "test", lambda row: row[0]),
        Column("of", str, "of", lambda row: row[1]),
        Column("world_size", int, "ranks", lambda row: row[2]),
        _column("collectives", "collectives"),
        _column("sent_bytes", "sent"),
        _column("parameter_bytes", "parameters"),
        _column("optimizer_bytes", "optimizer state"),
    ],
    needs="tests that ran at several world sizes",
)
