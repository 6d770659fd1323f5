"""The model of a step: what each collective takes on a cluster, and how much of that a rank waits for. Pure.

A collective of n ranks takes a number of messages, each with its latency, and a number of bytes that a rank sends. Both
depend on the algorithm, with n - 1 messages (ring, pairwise) or log n (tree, doubling, Bruck); the faster one counts.
Source: R. Thakur, R. Rabenseifner and W. Gropp, Optimization of Collective Communication Operations in MPICH, 2005,
section 3; for an all_reduce by a tree, NCCL's double binary tree. Between nodes, the ranks of a node first do their
part, and each rank sends an equal share over the network.
"""

from __future__ import annotations

import itertools
import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from pytest_distbench.errors import ConfigurationError
from pytest_distbench.forecast.cluster import ALGORITHMS, Cluster, Terms
from pytest_distbench.records.record import replace
from pytest_distbench.units import format_bytes

Cost = tuple[float, float]  # messages that follow each other, and bytes that a rank sends


def _log(n: int) -> int:
    return math.ceil(math.log2(n))


_Shape = tuple[Callable[[int, float], Cost], Callable[[int, float], Cost]]
_GATHER: _Shape = (lambda n, s: (n - 1, (n - 1) * s), lambda n, s: (_log(n), (n - 1) * s))
_SCATTER: _Shape = (lambda n, s: (n - 1, (n - 1) / n * s), lambda n, s: (_log(n), (n - 1) / n * s))
_FROM_ROOT: _Shape = (lambda n, s: (n - 1, s), lambda n, s: (_log(n), s * _log(n)))
_PAIR: _Shape = (lambda n, s: (1, s), lambda n, s: (1, s))

COLLECTIVES: dict[str, _Shape] = {
    "all_reduce": (lambda n, s: (2 * (n - 1), 2 * (n - 1) / n * s), lambda n, s: (2 * _log(n), 2 * s)),
    "all_gather": _GATHER,
    "reduce_scatter": _SCATTER,
    "gather": _GATHER,  # what the root receives
    "scatter": _SCATTER,
    "all_to_all": (_SCATTER[0], lambda n, s: (_log(n), s / 2 * _log(n))),
    **dict.fromkeys(("broadcast", "reduce"), _FROM_ROOT),
    **dict.fromkeys(("send", "recv"), _PAIR),
    "barrier": (lambda n, s: (2 * (n - 1), 0), lambda n, s: (2 * _log(n), 0)),
}
"""Costs for n ranks, each of which (the root of a scatter) puts in s bytes: with n - 1 messages, and with log n."""

_FORMS = re.compile(r"(_into_tensor|_tensor|_single|_coalesced|_any_source)+$")
"""Suffixes by which torch's names of one collective differ."""


class Call(NamedTuple):
    """A collective, send or recv of a step.

    Attributes:
        size: number of ranks of its group, 2 for a send or recv.
        stride: distance from each rank of the group to the next, or 0 if it varies.
        is_sharding: FSDP issues it, on a stream of its own on GPUs.
        in_backward: whether it was issued in the backward pass.
    """

    op: str
    dtype: str
    message_bytes: int
    group: str
    size: int
    stride: int
    is_sharding: bool = False
    in_backward: bool = False

    @property
    def is_gather(self) -> bool:
        return self.op.startswith("all_gather")

    def __str__(self) -> str:
        where = "" if self.group == "default" else f" over {self.group}"
        return f"{self.op} of {format_bytes(self.message_bytes)} {self.dtype}{where}"


class Event(NamedTuple):
    """A moment of a step: the call with index ``call`` is issued or waited for, after ``at_s`` s of computing."""

    call: int
    is_wait: bool
    at_s: float


@dataclass(frozen=True, kw_only=True)
class Trace:
    """A step of one rank: what it computes, sends and waits for, and when.

    Attributes:
        calls: collectives in the order in which they are issued.
        events: when each call is issued and waited for, in order.
        computing_s: seconds of computing in the whole step.
    """

    calls: Sequence[Call]
    events: Sequence[Event]
    computing_s: float

    def scaled(self, computing_s: float) -> Trace:
        """The same step with ``computing_s`` seconds of computing; moments of events are scaled with it."""
        factor = computing_s / self.computing_s if self.computing_s else 0.0
        events = [event._replace(at_s=event.at_s * factor) for event in self.events]
        return Trace(calls=self.calls, events=events, computing_s=computing_s)


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """The forecast of a step of one rank.

    Attributes:
        step_s: seconds of the step.
        least_s: seconds of the step if communication and computing overlap as far as they can.
        most_s: seconds of the step if they do not overlap at all.
        communication_s: sum of the seconds of all calls.
        sent_bytes: kind of link, ``node`` or ``network`` -> bytes that the rank sends over it.
        exposed: call as text -> seconds in which the rank waits for such calls.
    """

    step_s: float
    least_s: float
    most_s: float
    communication_s: float
    sent_bytes: Mapping[str, float]
    exposed: Mapping[str, float]


class Leg(NamedTuple):
    """The part of a collective that goes over one kind of link.

    Attributes:
        link: ``node`` or ``network``.
        seconds: duration if nothing else uses the links.
        sent_bytes: bytes that the rank sends, 0 for a recv.
    """

    link: str
    seconds: float
    sent_bytes: float


def legs(call: Call, cluster: Cluster) -> list[Leg]:
    """Parts of a call by kind of link, in the order in which they run.

    Raises:
        ConfigurationError: the model does not know the collective.
    """
    op = _FORMS.sub("", call.op)
    if op not in COLLECTIVES:
        raise ConfigurationError(f"no time of {call.op!r}; known are {', '.join(sorted(COLLECTIVES))}")
    n, size = call.size, float(call.message_bytes)
    if n < 2:
        return []
    per_node = min(n, math.ceil(cluster.ranks_per_node / call.stride)) if call.stride else 1
    if per_node >= n or per_node == 1 or op in cluster.collectives:
        link, terms = ("node", cluster.node) if per_node >= n else ("network", cluster.network)
        return [_leg(link, cluster.collectives.get(op, terms), op, n, size)]
    node, network = partial(_leg, "node", cluster.node), partial(_leg, "network", cluster.network)
    nodes = math.ceil(n / per_node)
    share = size / per_node
    match op:
        case "all_reduce":
            parts = ("reduce_scatter", per_node, size), (op, nodes, share), ("all_gather", per_node, share)
            return [node(*parts[0]), network(*parts[1]), node(*parts[2])]
        case "all_gather":
            return [network(op, nodes, size), node(op, per_node, size * nodes)]
        case "reduce_scatter":
            return [node(op, per_node, size), network(op, nodes, share)]
    return [max(node(op, n, size), network(op, n, size), key=lambda leg: leg.seconds)]


def time_of(call: Call, cluster: Cluster) -> float:
    """Seconds that a collective takes on a cluster if nothing else uses its links."""
    return math.fsum(leg.seconds for leg in legs(call, cluster))


def _leg(link: str, terms: Terms, op: str, n: int, size: float) -> Leg:
    costs = dict(zip(ALGORITHMS, COLLECTIVES[op], strict=True))
    chosen = [costs[terms.algorithm]] if terms.algorithm else costs.values()
    return min(
        (
            Leg(link, messages * terms.latency + sent / terms.bandwidth, 0.0 if op == "recv" else sent)
            for messages, sent in (cost(n, size) for cost in chosen)
        ),
        key=lambda leg: leg.seconds,
    )


def forecast(trace: Trace, cluster: Cluster) -> Forecast:
    """Simulate a step: calls of a group run one after another, during computing, until the rank waits for one.

    With prefetched gathers, FSDP has streams for its calls: a gather begins when the rank has the result of the gather
    before it, except the first of a forward or backward pass; a reduction is waited for when that of the next block is
    issued, or at the end of the step; an all_reduce over replicas follows the reduce_scatter before it.
    """
    parts = [legs(call, cluster) for call in trace.calls]
    times = [math.fsum(leg.seconds for leg in each) for each in parts]
    sent: dict[str, float] = defaultdict(float)
    for leg in itertools.chain(*parts):
        sent[leg.link] += leg.sent_bytes
    by_group: dict[str, float] = defaultdict(float)
    for call, seconds in zip(trace.calls, times, strict=True):
        by_group[call.group] += seconds
    free: dict[str, float] = defaultdict(float)
    ends: dict[int, float] = {}
    exposed: dict[str, float] = defaultdict(float)
    released: dict[bool, list[float]] = {False: [], True: []}  # by pass: when the rank had waited for each gather
    owed: list[int] = []  # reductions of FSDP
    delay = 0.0

    def wait(i: int, at_s: float) -> None:
        nonlocal delay
        if waited := max(0.0, ends[i] - at_s - delay):
            exposed[str(trace.calls[i])] += waited
            delay += waited

    for event in trace.events:
        i, call = event.call, trace.calls[event.call]
        has_stream = bool(cluster.prefetch) and call.is_sharding
        if not event.is_wait:
            is_owed, follows = has_stream and not call.is_gather, 0.0
            if is_owed and owed and call.op.startswith("all_reduce"):
                follows = ends[owed[-1]]
            elif is_owed:
                while owed:
                    wait(owed.pop(0), event.at_s)
            if is_owed:
                owed.append(i)
            begin = max(event.at_s + delay, follows)
            before = released[call.in_backward]
            if has_stream and call.is_gather and len(before) >= cluster.prefetch:
                begin = min(begin, before[-cluster.prefetch])
            ends[i] = free[call.group] = max(begin, free[call.group]) + times[i]
        elif not has_stream:
            wait(i, event.at_s)
        elif call.is_gather:
            wait(i, event.at_s)
            released[call.in_backward].append(event.at_s + delay)
    for i in owed:
        wait(i, trace.computing_s)
    return Forecast(
        step_s=trace.computing_s + delay,
        least_s=max([trace.computing_s, *by_group.values()]),
        most_s=trace.computing_s + math.fsum(times),
        communication_s=math.fsum(times),
        sent_bytes=dict(sent),
        exposed=dict(exposed),
    )


def with_terms(cluster: Cluster, factor: float) -> Cluster:
    """The cluster with messages that take ``factor`` times as long."""

    def scaled(terms: Terms) -> Terms:
        return replace(terms, latency=terms.latency * factor, bandwidth=terms.bandwidth / factor)

    measured = {op: scaled(terms) for op, terms in cluster.collectives.items()}
    return replace(cluster, node=scaled(cluster.node), network=scaled(cluster.network), collectives=measured)


class Point(NamedTuple):
    """A measured collective: the size of its group, the bytes that one rank puts in, and its seconds."""

    size: int
    message_bytes: int
    seconds: float


def fit(op: str, points: Iterable[Point]) -> tuple[Terms, float]:
    """Fit terms of a collective to points, and return them with the largest relative distance of a point.

    For each algorithm the squares of relative distances are minimised, with both terms at least 0.
    """
    measured = list(points)
    found = []
    for algorithm, cost in zip(ALGORITHMS, COLLECTIVES[op], strict=True):
        rows = [(*cost(p.size, float(p.message_bytes)), p.seconds) for p in measured]
        aa = math.fsum((a / t) ** 2 for a, _, t in rows)
        bb = math.fsum((b / t) ** 2 for _, b, t in rows)
        ab = math.fsum(a * b / t**2 for a, b, t in rows)
        a1, b1 = math.fsum(a / t for a, _, t in rows), math.fsum(b / t for _, b, t in rows)
        determinant = aa * bb - ab * ab
        latency, per_byte = 0.0, 0.0
        if determinant > 1e-12 * aa * bb:
            latency, per_byte = (a1 * bb - b1 * ab) / determinant, (b1 * aa - a1 * ab) / determinant
        if latency <= 0 or determinant <= 1e-12 * aa * bb:
            latency, per_byte = 0.0, b1 / bb if bb else 0.0
        if per_byte <= 0:
            latency, per_byte = a1 / aa, 0.0
        misses = [abs(a * latency + b * per_byte - t) / t for a, b, t in rows]
        terms = Terms(latency=latency or 1e-9, bandwidth=1 / per_byte if per_byte else 1e15, algorithm=algorithm)
        found.append((terms, max(misses), math.fsum(miss**2 for miss in misses)))
    terms, miss, _ = min(found, key=lambda each: each[2])
    return terms, miss
