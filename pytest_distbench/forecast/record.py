"""The rank of ``forecast``: runs a body as one rank of many, at each size, and records the forecast of its step."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from typing import TYPE_CHECKING, Any

import msgspec

from pytest_distbench.errors import BodyError
from pytest_distbench.forecast import ACTIVATIONS, COMMUNICATION, EFFICIENCY, EXPOSED, FLOPS, GRADIENTS, STEP, label
from pytest_distbench.forecast.cluster import Cluster
from pytest_distbench.forecast.model import Trace, forecast, time_of, with_terms
from pytest_distbench.forecast.trace import trace_step
from pytest_distbench.records.metric import Scalar
from pytest_distbench.worker import bodies

if TYPE_CHECKING:
    from pytest_distbench.worker.context import RankContext


def record(rank: RankContext, body: Callable[..., object]) -> None:
    """Record the forecast of each of ``rank.params["worlds"]``, at ``ranks``.

    Raises:
        BodyError: the body has no step, or computing is to be measured and it is not timed.
    """
    cluster = msgspec.convert(rank.params["cluster"], Cluster)
    params: dict[str, Any] = rank.params["params"]
    computing_s = None if cluster.computing else _measured(rank, body, params)
    rank.is_memory_its_own = False
    for world_size in rank.params["worlds"]:
        rank.progress(f"forecast of {world_size} ranks")
        traced = trace_step(
            rank,
            body,
            world_size=world_size,
            params=params,
            peaks=cluster.computing,
            is_fake=rank.params["fake_tensors"],
        )
        rank.watch.found[label(world_size)] = traced.fingerprint
        trace = traced.trace if computing_s is None else traced.trace.scaled(computing_s)
        at: dict[str, Scalar] = {"ranks": world_size}
        exact = (
            (GRADIENTS, traced.gradient_bytes, "B"),
            (ACTIVATIONS, traced.activation_bytes, "B"),
            (FLOPS, traced.flops, ""),
        )
        for name, value, unit in exact:
            rank.record(name, value, unit=unit, better="exact", at=at)
        _record(rank, trace, cluster, at, is_judged=computing_s is None and cluster.missed <= cluster.within)


def _record(rank: RankContext, trace: Trace, cluster: Cluster, at: dict[str, Scalar], *, is_judged: bool) -> None:
    found = forecast(trace, cluster)
    quicker, slower = (
        forecast(trace.scaled(trace.computing_s * factor), with_terms(cluster, factor))
        for factor in (min(1 - cluster.within, 1 / (1 + cluster.missed)), 1 + max(cluster.within, cluster.missed))
    )
    facts: dict[str, Scalar] = {
        "computing_s": trace.computing_s,
        "least_s": found.least_s,
        "most_s": found.most_s,
        "computing": "roofline" if cluster.computing else "measured",
        **{f"{link}_bytes": found.sent_bytes.get(link, 0.0) for link in ("node", "network")},
        **{str(call): time_of(call, cluster) for call in trace.calls},
        **{f"{EXPOSED} {call}": seconds for call, seconds in found.exposed.items()},
    }
    steps = [quicker.step_s, slower.step_s, found.step_s]
    rank.record(STEP, steps, unit="s", better="modelled" if is_judged else "info", at=at, facts=facts)
    rank.record(EXPOSED, found.step_s - trace.computing_s, unit="s", at=at)
    rank.record(COMMUNICATION, found.communication_s, unit="s", at=at)
    rank.record(EFFICIENCY, trace.computing_s / found.step_s if found.step_s else 1.0, at=at)


def _measured(rank: RankContext, body: Callable[..., object], params: dict[str, Any]) -> float:
    """Median seconds of a step, from a run of the body on this rank alone, which also records the body's metrics."""
    whole, rank.params = rank.params, params
    try:
        bodies.call(body, rank)
    finally:
        rank.params = whole
    rank.wait_for_queued()
    keys = rank.watch.found
    times = [median(each.values) for each in rank.notebook.observations if each.key in keys and each.values]
    if not times:
        raise BodyError("computing is to be measured, and the body times no loop: wanted rank.timed")
    return times[0]
