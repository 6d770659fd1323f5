"""Causes of slower messages: the sizes that are slower, by call or by byte, and the ranks and links that are slow.

A link is slow by its verdict, or by its time compared with the others'. Pure, no I/O.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from pytest_distbench.judging.remarks import MOST_DIFFERENCES, hosts_of, movement, name_of_rank, regressions
from pytest_distbench.records.kinds import METRIC_KINDS, grouped
from pytest_distbench.records.metric import Scalar, tightest
from pytest_distbench.records.run import CaseResult, Finding
from pytest_distbench.units import format_bytes, format_seconds

STANDS_OUT = 1.8  # a link that takes so many times as long as a typical one stands out: one at half its rate does


class Link(NamedTuple):
    """Two ranks, and the direction from one to the other."""

    source: int
    target: int

    @property
    def at(self) -> dict[str, Scalar]:
        return {"from": self.source, "to": self.target}


def link_at(at: Mapping[str, Scalar]) -> Link | None:
    """The link of a metric, or None."""
    return Link(int(at["from"]), int(at["to"])) if at.keys() == {"from", "to"} else None


def by_link(verdicts: Iterable[Finding]) -> dict[str, dict[Link, Finding]]:
    """Metric -> link -> its verdict; verdicts without a link are left out."""
    found: dict[str, dict[Link, Finding]] = {}
    for verdict in verdicts:
        if (link := link_at(verdict.at)) is not None:
            found.setdefault(verdict.name, {})[link] = verdict
    return found


def times_of(verdicts: Mapping[Link, Finding]) -> dict[Link, float]:
    """Link -> a number proportional to its time: the verdict's value, or for a rate its inverse."""
    known = {link: (v.current, METRIC_KINDS[v.better].sign) for link, v in verdicts.items() if v.current}
    return {link: 1 / value if sign < 0 else value for link, (value, sign) in known.items()}


Slow = tuple[tuple[int, ...], tuple[Link, ...], tuple[int, ...], tuple[int, ...]]
"""Ranks whose links are all slow while some of others are not; slow links of other ranks; and, of these ranks, those
with every outgoing link slow, and those with every incoming one, if links were measured both ways."""


def find_slow(slow: Collection[Link], measured: Collection[Link]) -> Slow:
    """Find the ranks whose links are all slow, and the slow links that are left.

    If all links are slow it is no rank's fault; and of two ranks neither can be blamed for their link.
    """
    ranks = sorted({rank for link in measured for rank in link})
    if len(slow) == len(measured):
        return (), tuple(sorted(slow)), (), ()
    named = [rank for rank in ranks if all(link in slow for link in measured if rank in link)]
    left = [link for link in slow if not set(named) & set(link)]
    senders: tuple[int, ...] = ()
    receivers: tuple[int, ...] = ()
    others = len(ranks) - 1 - len(named)
    if others > 1 and all(Link(link.target, link.source) in measured for link in measured):
        senders, receivers = (
            tuple(rank for rank in ranks if sum(link[end] == rank for link in left) == others) for end in (0, 1)
        )
    left = [link for link in left if link.source not in senders and link.target not in receivers]
    return tuple(named), tuple(sorted(left)), senders, receivers


def typical_time(times: Mapping[Link, float]) -> float | None:
    """Median of the fastest links, as many as there are without one rank, so that a slow rank does not change it.

    None if there are links of one rank alone, as between two ranks.
    """
    ranks = len({rank for link in times for rank in link})
    others = len(times) * (ranks - 2) // ranks if ranks else 0
    return statistics.median(sorted(times.values())[:others]) if others else None


def imbalance(times: Mapping[Link, float]) -> float:
    """Time of the slowest link over that of a typical one; of three ranks or more."""
    typical = typical_time(times)
    assert typical is not None
    return max(times.values()) / typical


def outliers(times: Mapping[Link, float], share: float = STANDS_OUT) -> list[Link]:
    """Links that take more than ``share`` times as long as a typical one."""
    typical = typical_time(times)
    return [] if typical is None else [link for link, seconds in times.items() if seconds > share * typical]


FEWEST_SIZES = 6  # fewer do not tell the two terms apart, let alone how well they fit

_STEPS = 60
_CLOSE = 1e-10
_FARTHEST_STEP = 2.0
_DAMPING = 1e-9
_HUBER = 1.345
_NORMAL_MAD = 1.4826
_FINEST_SCALE = 1e-6


def fit_link_terms(times: Mapping[int, float]) -> tuple[float, float]:
    """Seconds of a call that sends nothing, and seconds that a byte adds, fitted to a time per size.

    The model is Hockney's (Parallel Computing 20, 1994).

    Errors are taken as relative ones, so that 4 B count as much as 1 GiB: residuals are of logarithms, and so are the
    terms, which keeps them above zero. Gauss-Newton steps with Huber's weights (Huber, Robust Statistics, 1981, chapter
    7; constant 1.345 times the median absolute deviation), so that one disturbed size, or the step from one algorithm
    to the next, does not turn the line.
    """
    sizes, logs = list(times), [math.log(t) for t in times.values()]
    # Sizes without bytes have no second term; the largest ones have hardly anything else.
    latency = math.log(min(times.values()))
    rate = max(logs) - math.log(max(1, *sizes))
    for _ in range(_STEPS):
        # logarithm of measured over modelled, and the share of the latency in what is modelled, by size
        residuals, shares = [], []
        for size, log in zip(sizes, logs, strict=True):
            modelled = math.exp(latency) + math.exp(rate) * size
            residuals.append(log - math.log(modelled))
            shares.append(math.exp(latency) / modelled)
        scale = max(_FINEST_SCALE, _NORMAL_MAD * statistics.median(map(abs, residuals)))
        weights = [min(1.0, _HUBER * scale / abs(r)) if r else 1.0 for r in residuals]
        # the step of both terms, by J'WJ, whose rows are (share, 1 - share); a little is added to invert it
        rows = list(zip(shares, weights, residuals, strict=True))
        xx = sum(w * s * s for s, w, _ in rows) + _DAMPING
        yy = sum(w * (1 - s) ** 2 for s, w, _ in rows) + _DAMPING
        xy = sum(w * s * (1 - s) for s, w, _ in rows)
        x = sum(w * s * r for s, w, r in rows)
        y = sum(w * (1 - s) * r for s, w, r in rows)
        determinant = xx * yy - xy * xy
        steps = (yy * x - xy * y) / determinant, (xx * y - xy * x) / determinant
        step = [max(-_FARTHEST_STEP, min(_FARTHEST_STEP, way)) for way in steps]
        latency, rate = latency + step[0], rate + step[1]
        if max(map(abs, step)) < _CLOSE:
            break
    return math.exp(latency), math.exp(rate)


def slow_sizes(result: CaseResult) -> Iterator[Finding]:
    """Name the slower sizes of a sweep, and whether a call or a byte costs more."""
    timed = [v for v in result.verdicts if v.unit == "s" and v.current and v.baseline]
    sweeps = grouped((v.name, v) for v in timed if set(v.at) == {"message_bytes"})
    for name, verdicts in sweeps.items():
        hit = [_size(v) for v in verdicts if v.row.may_be_confirmed]
        if hit and len(verdicts) >= FEWEST_SIZES:
            latency_then, rate_then = fit_link_terms({_size(v): v.baseline or 0.0 for v in verdicts})
            latency_now, rate_now = fit_link_terms({_size(v): v.current or 0.0 for v in verdicts})
            latency = movement(latency_then, latency_now, format_seconds)
            bandwidth = movement(rate_then, rate_now, lambda rate: f"{rate * 1e9:.3g} s/GB")
            said = f"{name} is slower {which(hit, [_size(v) for v in verdicts])}"
            terms = [f"latency term {latency}, bandwidth term {bandwidth}"]
            yield Finding(code="slower-sizes", metric=name, reason=said, differences=terms)


def _size(verdict: Finding) -> int:
    return int(verdict.at["message_bytes"])


def slow_links(result: CaseResult) -> Iterator[Finding]:
    """Name slow ranks and links.

    They are found from links that regressed, and from links beyond the bound of the imbalance if that is exceeded.
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
    hosts = hosts_of(result)
    for (ranks, links, senders, receivers), names in found.items():
        measured = max(len(matrices[name]) for name in names)
        named = [
            f"{name_of_rank(rank, result)}: every link {way} this rank is slow"
            for own, way in ((ranks, "of"), (senders, "from"), (receivers, "to"))
            for rank in own
        ]
        if len(links) == measured > 1:
            named.append(f"all {measured} links are slow: no single rank, no single pair")
            links = ()
        for link in links:
            where = f" ({hosts[link.source]} to {hosts[link.target]})" if hosts else ""
            named.append(f"rank {link.source} to rank {link.target}{where}: this link is slow")
        others = "" if measured == 1 else f" of {measured} links"
        said = [f"{line} ({' and '.join(names)}{others})" for line in named[:MOST_DIFFERENCES]]
        more = len(named) - MOST_DIFFERENCES
        yield from (Finding(code="slower-links", reason=line) for line in said[:-1])
        yield Finding(code="slower-links", reason=said[-1], differences=[f"and {more} more links"] if more > 0 else [])


def which(hit: Sequence[int], sizes: Sequence[int]) -> str:
    """The sizes ``hit``, of all message sizes, in words: ``from 64 KiB up``, ``at 3 of 25 sizes, first at 4 KiB``."""
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
