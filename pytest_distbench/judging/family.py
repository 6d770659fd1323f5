"""Family: one metric of a training with all its seeds, now and in the baseline."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pytest_distbench.records.baseline import BaselineMetric
from pytest_distbench.records.metric import Measurement


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One metric of a training with all its seeds.

    Attributes:
        current: key -> the measurement in each launch; one key per seed.
        stored: the baseline's metrics, by the same keys.
        same_software: whether both ran the same software.
        same_arithmetic: whether nothing shows that the arithmetic changed; the golden curve of the training does.
        lost_its_seed: whether the golden curve of the training says that it was seeded and is not any more.
        tolerance: accepted relative change that was set for this metric or case; None: the rule's own.
    """

    current: Mapping[str, Sequence[Measurement]]
    stored: Mapping[str, BaselineMetric]
    same_software: bool
    same_arithmetic: bool = True
    lost_its_seed: bool = False
    tolerance: float | None = None

    @property
    def first(self) -> Measurement:
        """Any measurement: name, unit, kind and identity are the same in all."""
        return next(iter(self.current.values()))[0]

    @property
    def is_by_launch(self) -> bool:
        """Whether launches are the samples: there is one seed, and with it the baseline's launches differ."""
        return len(self.current) == 1 and any(len(set(metric.launches)) > 1 for metric in self.stored.values())

    @property
    def samples(self) -> str:
        """What the values are of."""
        return "launches" if self.is_by_launch else "seeds"

    @property
    def new(self) -> list[float | None]:
        """A value per seed: the mean over launches, None if a launch has none; or each launch's."""
        if self.is_by_launch:
            return [m.value for launches in self.current.values() for m in launches]
        return [_mean([m.value for m in launches]) for launches in self.current.values()]

    @property
    def old(self) -> list[float | None]:
        """The same of the baseline, in the same order."""
        if self.is_by_launch:
            return [value for metric in self.stored.values() for value in metric.launches]
        return [_mean(self.stored[key].launches) for key in self.current if key in self.stored]

    def tolerance_or(self, default: float) -> float:
        """The tolerance: the one that was set for this metric, else the rule's."""
        return default if self.tolerance is None else self.tolerance


def _mean(values: Sequence[float | None]) -> float | None:
    found = known_values(values)
    return statistics.fmean(found) if len(found) == len(values) else None


def known_values(values: Sequence[float | None]) -> list[float]:
    """The values there are."""
    return [v for v in values if v is not None]
