"""The table of links: what each carries, and which of them, or which rank, is slow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pytest_distbench.judging.links import Link, by_link, find_slow, outliers, times_of, typical_time
from pytest_distbench.records.kinds import VERDICT_KINDS
from pytest_distbench.records.run import CaseResult
from pytest_distbench.records.verdict import Verdict
from pytest_distbench.report.tables.table import TEST, Column, TableKind, microseconds, number


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkPoint:
    """One link: the latency of a small message, and the bandwidth of large ones in GB/s (1e9 bytes).

    ``share`` is how many times as long as a typical link of the case it takes, in the metric where that is most;
    ``note`` who is slow: ``this link``, ``rank 2``, ``from rank 2``; empty: nobody. ``hosts`` are those of its two
    ranks, empty where all ranks live on one.
    """

    result: CaseResult
    link: Link
    latency_s: float | None
    bandwidth: float | None
    share: float | None
    note: str
    gravest: str
    hosts: tuple[str, str] = ("", "")


def link_points(result: CaseResult) -> Iterator[LinkPoint]:
    """By the ranks."""
    found = by_link(result.verdicts)
    shares: dict[Link, float] = {}
    notes: dict[Link, str] = {}
    for verdicts in found.values():
        times = times_of(verdicts)
        if typical := typical_time(times):
            shares |= {link: max(shares.get(link, 0.0), seconds / typical) for link, seconds in times.items()}
        slow = find_slow(outliers(times), list(times))
        notes |= dict.fromkeys(slow.links, "this link")
        notes |= {link: f"from rank {rank}" for rank in slow.senders for link in times if link.source == rank}
        notes |= {link: f"to rank {rank}" for rank in slow.receivers for link in times if link.target == rank}
        notes |= {link: f"rank {rank}" for rank in slow.ranks for link in times if rank in link}
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
            gravest=min((v.kind for v in own.values()), key=list(VERDICT_KINDS).index),
        )


def slowest_links(result: CaseResult) -> list[Verdict]:
    """Of each metric of links the one that is slowest; empty where the case measured none."""
    chosen = []
    for verdicts in by_link(result.verdicts).values():
        times = times_of(verdicts)
        if times:
            chosen.append(verdicts[max(times, key=times.__getitem__)])
    return chosen


def _if_several(heading: str, points: Sequence[LinkPoint]) -> str | None:
    """People see no column of hosts where there is one."""
    return heading if any(point.hosts[0] for point in points) else None


LINKS: TableKind[LinkPoint] = TableKind(
    summary="Every link between two ranks, with who is slow among them.",
    rows=lambda results: [point for result in results for point in link_points(result)],
    columns=[
        TEST,
        Column("from", int, "from", lambda point: point.link.source),
        Column("to", int, "to", lambda point: point.link.target),
        Column("from_host", str, lambda points: _if_several("from host", points), lambda point: point.hosts[0]),
        Column("to_host", str, lambda points: _if_several("to host", points), lambda point: point.hosts[1]),
        Column("latency_s", float, "latency us", lambda point: microseconds(point.latency_s, ".1f")),
        Column("bandwidth_gb_per_s", float, "bandwidth GB/s", lambda point: number(point.bandwidth, ".3f")),
        Column("times_typical", float, "x typical", lambda point: number(point.share, ".2f")),
        Column("slow", str, "slow", lambda point: point.note),
        Column("verdict", str, "verdict", lambda point: point.gravest),
    ],
)
