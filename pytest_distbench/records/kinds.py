"""Metric kinds and how each is judged: a new kind is one row here. And the statistics they are made of.

A row that a test module or a conftest adds counts as ours do. A kind that bodies record has to be known in the ranks
too: add its row in the module of the body.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

from pytest_distbench.extensions import Table
from pytest_distbench.records.record import Record
from pytest_distbench.units import format_share, why_impossible


def median(values: Iterable[float | None]) -> float | None:
    """Median of the known values, or None if there is none."""
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def geometric_mean(values: Iterable[float | None]) -> float | None:
    """Geometric mean of the known values, all above 0, or None if there is none."""
    known = [value for value in values if value is not None]
    return statistics.geometric_mean(known) if known else None


def quantile(values: Sequence[float], q: float) -> float:
    """Linear-interpolation quantile (numpy's default, Hyndman & Fan type 7). ``values`` need not be sorted."""
    ordered = sorted(values)
    position = q * (len(ordered) - 1)
    low = math.floor(position)
    high = math.ceil(position)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


def nearest_rank(values: Sequence[float], q: float) -> float:
    """Nearest-rank quantile: an observed value. The p99 of fewer than 100 values is their maximum."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(q * len(ordered)) - 1)]


MOST_KEPT = 41  # values of a distribution: one for each 2.5 %


FEWEST_OF_SERIES = 4
"""Fewest values of a series whose geometric mean is kept; the fastest quarter of fewer is one value."""


def distribution(values: Sequence[float]) -> list[float]:
    """Observed values, ascending, at even steps from the least to the largest, or all if few. Four digits each."""
    ordered = sorted(values)
    kept = min(len(ordered), MOST_KEPT)
    places = (round(i * (len(ordered) - 1) / max(1, kept - 1)) for i in range(kept))
    return [float(f"{ordered[place]:.4g}") for place in places]


Key = TypeVar("Key")
Item = TypeVar("Item")


def grouped(pairs: Iterable[tuple[Key, Item]]) -> dict[Key, list[Item]]:
    """Group items by key, in their order."""
    found: dict[Key, list[Item]] = {}
    for key, item in pairs:
        found.setdefault(key, []).append(item)
    return found


Better = str  # name of a metric kind, a key of :data:`METRIC_KINDS`

Reduce = Literal["max", "min", "mean", "sum", "rank0", "all"]
Sign = Literal[-1, 0, 1]
Shape = Literal["any", "series", "number", "tensors"]

TRAINING_RULES = ("curve", "same", "steps", "floor", "weights")
STEADY_RULES = ("exact", "memory", *TRAINING_RULES, "none")
"""Rules (``MetricKind.rule``) that do not judge by the noise between launches; every other rule does."""

LOWER_QUANTILE = 0.25
"""A launch's value is its 25th percentile on the fast end: it converges first and ignores the scheduler's spikes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricKind:
    """What it means that a metric is ``better="lower"``, ``"exact"``, ...

    Attributes:
        summary: what is judged, for people who record it.
        reduce: reduction over the ranks that recorded it, unless they say otherwise.
        launch_value: value of a series that stands for the launch.
        rule: how it is judged, a key of ``judging.deciders.RULES``. ``noisy``: by launches as samples, or by pairs of
            them; ``exact``: equal as long as the software is the same; ``memory``: by size; :data:`TRAINING_RULES`: for
            what a seeded training computes (``judging.training_rule``). ``none``: it is shown, not judged.
        sign: 1 if a larger number of a noisy kind is worse, -1 if a smaller one is.
        has_fast_side: the launch's value of a series is a lower quantile, and is judged together with its fastest
            iteration; the slow ones show how busy the machine was (``judging.thresholds``).
        shape: ``series`` or ``number`` if only that can be recorded; ``any``: both; ``tensors``: the plugin alone
            records it.
        limit_text: prints a threshold, a fraction of the baseline.
        is_steady: whether each launch of the same code has the same digits, though no rule of
            :data:`STEADY_RULES` judges it.
        tolerance: default if the test and the baseline set none for the metric itself, or None for the run's.
    """

    summary: str
    reduce: Reduce
    launch_value: Callable[[Sequence[float]], float] = lambda series: series[-1]
    rule: str
    sign: Sign = 0
    has_fast_side: bool = False
    shape: Shape = "any"
    keeps_series: bool = False
    limit_text: Callable[[float], str] = lambda limit: "exact"
    is_steady: bool = False
    tolerance: float | None = None

    def __post_init__(self) -> None:
        if self.is_noisy and not self.sign:
            raise ValueError(
                f"a kind of metrics of rule {self.rule!r} and no sign; wanted sign=1 where a larger number is worse, "
                "sign=-1 where a smaller one is"
            )

    @property
    def is_noisy(self) -> bool:
        """Whether it scatters between launches of the same code, and is judged by that noise."""
        return self.rule not in STEADY_RULES and not self.is_steady

    @property
    def scatters(self) -> bool:
        return self.is_noisy or self.is_memory

    @property
    def is_exact(self) -> bool:
        return self.rule == "exact"

    @property
    def is_memory(self) -> bool:
        return self.rule == "memory"

    @property
    def is_curve(self) -> bool:
        """Whether it is the first losses of a seeded training."""
        return self.rule == "curve"

    @property
    def is_two_sided(self) -> bool:
        """Whether it is a number of a training that must stay the same."""
        return self.rule == "same"

    @property
    def counts_steps(self) -> bool:
        """Whether it counts the steps to a goal, which a training may miss."""
        return self.rule == "steps"

    @property
    def has_floor(self) -> bool:
        """Whether it is a number of a training that must not fall."""
        return self.rule == "floor"

    @property
    def needs_few_launches(self) -> bool:
        """Whether one or two launches are enough: exact numbers and memory hardly differ between launches."""
        return self.is_exact or self.is_memory

    @property
    def is_judged(self) -> bool:
        """Whether metrics of this kind are judged; else they are shown."""
        return self.rule != "none"

    @property
    def is_of_training(self) -> bool:
        """Whether it is of a seeded training: repeated exactly under the same arithmetic, else judged over seeds."""
        return self.rule in TRAINING_RULES

    @property
    def repeats_exactly(self) -> bool:
        """Whether launches of the same code must give the same digits."""
        return self.rule == "exact" or self.is_of_training or self.is_steady

    def why_impossible(self, values: Sequence[float], unit: str, *, is_series: bool) -> str:
        """Why no measurement can have these values, in a clause, or "".

        For a series the launch's value counts, and any value below 0: one iteration may be too short for its timer.
        """
        counting = [v for v in values if v < 0] + [self.launch_value(values)] if is_series and values else values
        return next(filter(None, (why_impossible(value, unit) for value in counting)), "")


METRIC_KINDS: Table[str, MetricKind] = Table(
    "metric kinds",
    {
        "higher": MetricKind(
            summary="a throughput: may not fall",
            reduce="min",
            launch_value=lambda series: quantile(series, 1 - LOWER_QUANTILE),
            rule="noisy",
            sign=-1,
            limit_text=lambda limit: f"-{1 - 1 / (1 + limit):.0%}",
        ),
        "lower": MetricKind(
            summary="a time or a size: may not rise",
            reduce="max",
            launch_value=lambda series: quantile(series, LOWER_QUANTILE),
            rule="noisy",
            sign=1,
            has_fast_side=True,
            limit_text=lambda limit: f"+{limit:.0%}" if limit <= 10 else "> +1000%",
        ),
        "exact": MetricKind(summary="must be equal", reduce="all", rule="exact", keeps_series=True),
        "info": MetricKind(summary="is shown, not judged", reduce="rank0", rule="none", keeps_series=True),
        "curve": MetricKind(
            summary="the first losses of a seeded training: must follow the baseline's step by step",
            reduce="mean",
            rule="curve",
            shape="series",
            keeps_series=True,
            limit_text=format_share,
        ),
        "same": MetricKind(
            summary="a number of a seeded training that may neither rise nor fall",
            reduce="mean",
            rule="same",
            shape="number",
            limit_text=lambda limit: f"±{limit:.1%}",
        ),
        "steps": MetricKind(
            summary="steps to a goal: may not rise",
            reduce="all",
            rule="steps",
            shape="number",
            limit_text=lambda limit: f"+{limit:.1%}",
        ),
        "floor": MetricKind(
            summary="a quality at the end of a training: may not fall",
            reduce="all",
            rule="floor",
            shape="number",
            limit_text=lambda limit: f"-{limit:.1%}",
        ),
        "weights": MetricKind(
            summary="tensors that a training leaves: equal, or no further away than other digits take them",
            reduce="all",
            rule="weights",
            shape="tensors",
            limit_text=lambda limit: f"{limit:.0%} of training" if limit else "exact",
        ),
        "memory": MetricKind(
            summary="an amount of memory: may not rise, whatever else the machine does",
            reduce="max",
            rule="memory",
            sign=1,
            shape="number",
            limit_text=lambda limit: f"+{limit:.0%}",
            tolerance=0.2,
        ),
    },
)
"""Metric kinds by the name that ``better=`` takes."""


def metric_kind(name: Better) -> MetricKind:
    """Look a metric kind up."""
    try:
        return METRIC_KINDS[name]
    except KeyError:
        raise ValueError(
            f"unknown kind of metrics {name!r}; wanted one of {', '.join(METRIC_KINDS)}, or one of yours, whose module "
            "has to be imported first: -p MODULE"
        ) from None


class OfKind(Record, frozen=True, kw_only=True):
    """Base of records that have a metric kind; reading an unknown kind from a file is an error."""

    better: Better

    def __post_init__(self) -> None:
        metric_kind(self.better)

    @property
    def is_noisy(self) -> bool:
        """Whether it scatters between launches of the same code."""
        return METRIC_KINDS[self.better].is_noisy

    @property
    def is_judged(self) -> bool:
        """Whether a metric of this kind is judged; else it is shown."""
        return METRIC_KINDS[self.better].is_judged
