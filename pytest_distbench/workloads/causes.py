"""What may explain that messages are slower: the sizes that are, and the ranks and links."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pytest_distbench.judging.causes import MOST_DIFFERENCES, hosts_of, movement, name_of_rank, regressions
from pytest_distbench.records.metric import tightest
from pytest_distbench.records.run import CaseResult, Finding
from pytest_distbench.units import format_bytes, format_seconds
from pytest_distbench.workloads.slow_links import (
    FEWEST_SIZES,
    Slow,
    by_link,
    find_slow,
    fit_link_terms,
    outliers,
    times_of,
)


def sizes(result: CaseResult) -> Iterator[Finding]:
    """Of a sweep: which sizes are slower, and whether a call or a byte costs more."""
    sweeps: dict[str, list[Finding]] = {}
    for verdict in result.verdicts:
        if set(verdict.at) == {"message_bytes"} and verdict.unit == "s" and verdict.current and verdict.baseline:
            sweeps.setdefault(verdict.name, []).append(verdict)
    for name, verdicts in sweeps.items():
        hit = [_size(v) for v in verdicts if v.row.may_be_confirmed]
        if hit and len(verdicts) >= FEWEST_SIZES:
            latency_then, rate_then = fit_link_terms({_size(v): v.baseline or 0.0 for v in verdicts})
            latency_now, rate_now = fit_link_terms({_size(v): v.current or 0.0 for v in verdicts})
            latency = movement(latency_then, latency_now, format_seconds)
            bandwidth = movement(rate_then, rate_now, lambda rate: f"{rate * 1e9:.3g} s/GB")
            told = f"{name} is slower {which(hit, [_size(v) for v in verdicts])}"
            terms = [f"latency term {latency}, bandwidth term {bandwidth}"]
            yield Finding(code="slower-sizes", metric=name, reason=told, differences=terms)


def _size(verdict: Finding) -> int:
    return int(verdict.at["message_bytes"])


def links(result: CaseResult) -> Iterator[Finding]:
    """Which ranks and links are slow.

    From the links that regressed and, where the imbalance is beyond its bound, from those that are beyond it too.
    """
    matrices = by_link(result.verdicts)
    bounds = {
        str(v.at["of"]): tightest(v.bounds, "most") for v in regressions(result) if v.name == "imbalance" and v.at
    }
    found: dict[Slow, list[str]] = {}
    for name, verdicts in matrices.items():
        slow = {link for link, verdict in verdicts.items() if verdict.kind == "regressed"}
        if (bound := bounds.get(name)) is not None:
            slow |= set(outliers(times_of(verdicts), bound))
        if slow:
            found.setdefault(find_slow(slow, list(verdicts)), []).append(name)
    for slow_ones, names in found.items():
        measured = max(len(matrices[name]) for name in names)
        named = _slow_ones(slow_ones, measured, result)
        others = "" if measured == 1 else f" of {measured} links"
        told = [f"{line} ({' and '.join(names)}{others})" for line in named[:MOST_DIFFERENCES]]
        more = len(named) - MOST_DIFFERENCES
        yield from (Finding(code="slower-links", reason=line) for line in told[:-1])
        yield Finding(code="slower-links", reason=told[-1], differences=[f"and {more} more links"] if more > 0 else [])


def _slow_ones(slow: Slow, measured: int, result: CaseResult) -> list[str]:
    hosts = hosts_of(result)
    named = [
        f"{name_of_rank(rank, result)}: every link {way} this rank is slow"
        for ranks, way in ((slow.ranks, "of"), (slow.senders, "from"), (slow.receivers, "to"))
        for rank in ranks
    ]
    if len(slow.links) == measured > 1:
        return [*named, f"all {measured} links are slow: no single rank, no single pair"]
    for link in slow.links:
        where = f" ({hosts[link.source]} to {hosts[link.target]})" if hosts else ""
        named.append(f"rank {link.source} to rank {link.target}{where}: this link is slow")
    return named


def which(hit: Sequence[int], sizes: Sequence[int]) -> str:
    """Message sizes that are hit, in words: ``from 64 KiB up``, ``at 3 of 25 sizes, first at 4 KiB``."""
    inside = sorted(sizes)
    first, last = inside.index(min(hit)), inside.index(max(hit))
    if len(hit) == len(inside):
        return f"at all {len(inside)} sizes"
    if len(hit) == 1:
        return f"at {format_bytes(hit[0])} only"
    if last - first + 1 > len(hit):
        return f"at {len(hit)} of {len(inside)} sizes, first at {format_bytes(inside[first])}"
    if last == len(inside) - 1:
        return f"from {format_bytes(inside[first])} up"
    if first == 0:
        return f"up to {format_bytes(inside[last])}"
    return f"from {format_bytes(inside[first])} to {format_bytes(inside[last])}"
