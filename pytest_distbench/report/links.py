"""The links that a case measured, and which of them, or which rank, is slow."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pytest_distbench.judging.links import Link, by_link, find_slow, outliers, times_of, typical_time
from pytest_distbench.records.kinds import VERDICT_KINDS
from pytest_distbench.records.run import CaseResult
from pytest_distbench.records.verdict import Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkPoint:
    """One link.

    Attributes:
        link: the two ranks.
        latency_s: of a small message.
        bandwidth: GB/s (1e9 bytes), of large ones.
        share: how many times as long as a typical link of the case it takes, in the metric where that is most.
        note: who is slow: ``this link``, ``rank 2``; empty: nobody.
        gravest: the kind of its gravest verdict.
    """

    link: Link
    latency_s: float | None
    bandwidth: float | None
    share: float | None
    note: str
    gravest: str


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
        notes |= {link: f"rank {rank}" for rank in slow.ranks for link in times if rank in link}
    for link in sorted({link for verdicts in found.values() for link in verdicts}):
        own = {name: verdicts[link] for name, verdicts in found.items() if link in verdicts}
        latency, bandwidth = own.get("latency"), own.get("bandwidth")
        yield LinkPoint(
            link=link,
            latency_s=latency.current if latency else None,
            bandwidth=bandwidth.current if bandwidth else None,
            share=shares.get(link),
            note=notes.get(link, ""),
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
