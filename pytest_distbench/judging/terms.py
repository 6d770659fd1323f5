"""Terms: how the metrics of a case are judged, and which of the tolerances that were given counts."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from pytest_distbench.records.bound_text import AskedBound
from pytest_distbench.records.kinds import METRIC_KINDS, Better
from pytest_distbench.records.metric import Measurement

_NEAR = 0.8
"""Of the letters of two names that are taken for one, so many are the same, in order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """How the metrics of a case are judged.

    Attributes:
        tolerance: of the test: the argument of ``run``, else its marker's. A fraction, or one per metric name; None:
            the test does not say.
        default_tolerance: of the run, as a fraction.
        metrics: names that are judged; None: all.
        max_launches: the most launches there may be while an answer is open.
        cores: CPU cores of the machine that measured.
        bounds: that the test's marker sets.
        largest_message: sweeps were told to leave out messages of more bytes; None: none.
    """

    tolerance: float | Mapping[str, float] | None = None
    default_tolerance: float
    metrics: tuple[str, ...] | None = None
    max_launches: int
    cores: int
    bounds: tuple[AskedBound, ...] = ()
    largest_message: int | None = None

    def wants(self, name: str) -> bool:
        """Whether metrics of this name, without point, are judged."""
        return self.metrics is None or name in self.metrics

    def tolerance_of(self, metric: Measurement, by_hand: Iterable[float | None]) -> float:
        """The change towards worse that is accepted of a metric, as a fraction: the closest one to the number counts.

        That is, in this order: what is set by hand in the baseline's file, for the metric and then for the case; what
        the test says for the metric; its kind's; what the test says for all; the run's.
        """
        named = self.own_tolerance_of(metric.name, by_hand)
        own = METRIC_KINDS[metric.better].tolerance if named is None else named
        if own is not None:
            return own
        return self.tolerance if isinstance(self.tolerance, int | float) else self.default_tolerance

    def own_tolerance_of(self, name: str, by_hand: Iterable[float | None]) -> float | None:
        """The same, as far as it was set for this metric or case in particular; None: it was not.

        Rules that have a tolerance of their own, those of trainings, give way to nothing less.
        """
        asked = self.tolerance.get(name) if isinstance(self.tolerance, Mapping) else None
        return next((value for value in [*by_hand, asked] if value is not None), None)

    def misspelt(self, names: Collection[str]) -> dict[str, str]:
        """Names in these terms that no metric has, and the metric's name that each nearly is.

        The steps to a goal stand for the time to it, which a miss does not have. Others are left alone: a
        marker may be for several tests, and a metric of some sizes only.
        """
        asked = [*(self.tolerance if isinstance(self.tolerance, Mapping) else ()), *(self.metrics or ())]
        others = sorted(set(names) - set(asked))
        near = {
            name: difflib.get_close_matches(name, others, n=1, cutoff=_NEAR)
            for name in asked
            if name not in names and name.replace("time_to_", "steps_to_", 1) not in names
        }
        return {name: found[0] for name, found in near.items() if found}

    def without_effect(self, kinds: Mapping[str, Better]) -> list[str]:
        """Names of metrics that were given a tolerance, and are equal or not."""
        given = self.tolerance if isinstance(self.tolerance, Mapping) else {}
        return [name for name in given if name in kinds and METRIC_KINDS[kinds[name]].rule == "exact"]
