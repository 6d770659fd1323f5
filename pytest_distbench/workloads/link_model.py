"""What follows from a sweep: the latency and the bandwidth of the link, each judged as a metric of its own.

A launch fits both terms to the values of its own sweep (:mod:`pytest_distbench.records.link_terms`), so that launches
are the sample here too. The curve of a CPU is not the model's: caches and algorithms make steps in it. What the model
misses is told beside each number as its uncertainty, below which no change is called one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pytest_distbench.records.kinds import METRIC_KINDS
from pytest_distbench.records.link_terms import BANDWIDTH, FEWEST_SIZES, HALF_SIZE, LATENCY, fit_link_terms
from pytest_distbench.records.metric import UNCERTAINTY, Observation, Scalar, metric_key, without

if TYPE_CHECKING:
    from pytest_distbench.worker.context import RankContext

_AXIS = "message_bytes"


def needs_all_sizes(rank: RankContext, at: Mapping[str, Scalar] | None = None) -> bool:
    """Whether this launch wants what follows from all sizes together. The same in every rank."""
    return rank.wants(LATENCY, at) or rank.wants(BANDWIDTH, at)


def record_link(rank: RankContext, name: str = "latency") -> None:
    """Record the terms of the sweep that was just timed. A collective call.

    ``startup_latency``, ``asymptotic_bandwidth``, and for information ``half_performance_size``: the message that gets
    half of the bandwidth. Of too few sizes none of them, which is told.
    """
    sweeps: dict[str, dict[int, Observation]] = {}
    for observation in rank.notebook.observations:
        size = observation.at.get(_AXIS)
        if observation.name == name and isinstance(size, int) and size > 0 and min(observation.values) > 0:
            sweeps.setdefault(metric_key("", without(observation.at, _AXIS)), {})[size] = observation
    for timed in sweeps.values():
        if needs_all_sizes(rank, without(next(iter(timed.values())).at, _AXIS)):
            _record(rank, dict(sorted(timed.items())))


def _record(rank: RankContext, timed: Mapping[int, Observation]) -> None:
    if len(timed) < FEWEST_SIZES:
        rank.progress(f"latency and bandwidth are not told apart: {len(timed)} sizes, wanted {FEWEST_SIZES} or more")
        return
    value_of = METRIC_KINDS["lower"].launch_value
    terms = fit_link_terms({size: value_of(_over_ranks(rank, o)) for size, o in timed.items()})
    first = next(iter(timed.values()))
    common = {name: v for name, v in first.facts.items() if all(o.facts.get(name) == v for o in timed.values())}
    for name, value, unit, better, error in (
        (LATENCY, terms.latency_s, "s", "lower", terms.latency_error),
        (BANDWIDTH, terms.bandwidth, "B/s", "higher", terms.bandwidth_error),
        (HALF_SIZE, terms.half_size, "B", "info", terms.half_size_error),
    ):
        rank.notebook.note(
            name,
            value,
            unit=unit,
            better=better,
            reduce="rank0",
            at=without(first.at, _AXIS),
            identity=first.identity,
            facts={**common, "sizes": len(timed)},
            companions={UNCERTAINTY: [error]},
        )


def _over_ranks(rank: RankContext, observation: Observation) -> list[float]:
    """As the loop's own times are reduced: the slowest rank's, or their mean."""
    if observation.reduce == "max":
        return rank.max_over_ranks(observation.values)
    return [rank.sum_over_ranks(value) / rank.world_size for value in observation.values]
