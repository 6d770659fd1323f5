"""Deciders make the finding of a comparison: the first of a list that applies wins. Pure.

A comparison is of one metric (``comparison``), or of one metric of a training over all its seeds (``training_rule``).
The deciders of all comparisons come first (:data:`FIRST`), then those of the kind's ``rule`` (:data:`RULES`). A decider
returns a finding, or None to leave it to the next one. The deciders are the same for stored launches and for pairs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

from pytest_distbench.errors import ExtensionError
from pytest_distbench.extensions import Table
from pytest_distbench.records.kinds import METRIC_KINDS, Better
from pytest_distbench.records.metric import UNASKED, Sample
from pytest_distbench.records.reasons import ReasonCode
from pytest_distbench.records.record import replace
from pytest_distbench.records.run import Finding

Absence = tuple[ReasonCode, str]  # why there is no baseline: a code and a sentence

NO_BASELINE: Absence = ("no-baseline", "no baseline for this metric")


@dataclass(frozen=True, kw_only=True)
class Compared(ABC):
    """A metric of this run and of its baseline: what a decider judges.

    Attributes:
        absent: why there is no baseline.
        lost: why this run lacks part of the metric, such as a rank, or "".
        is_judged_by_other: whether the other side's tests decide what is judged (``--distbench-judge=base``).
    """

    absent: Absence = NO_BASELINE
    lost: str = ""
    is_judged_by_other: bool = False

    @property
    @abstractmethod
    def metric(self) -> Sample:
        """One of this run's samples of the metric."""

    @property
    @abstractmethod
    def known_as(self) -> Sample | None:
        """One of the baseline's samples of the metric, or None if it has none."""

    @property
    @abstractmethod
    def missing(self) -> str:
        """How many values this run lacks, of how many, in words; "" if it has all, or values may be missing."""

    @property
    @abstractmethod
    def other_definition(self) -> str:
        """Why the baseline's number has another definition, or ""."""

    @property
    @abstractmethod
    def first_deciders(self) -> tuple[Decider, ...]:
        """Deciders of :data:`FIRST`, with those of this type of comparison."""

    @abstractmethod
    def of_kind(self, better: Better) -> Self:
        """The same comparison with another metric kind."""

    @abstractmethod
    def finding(self, code: ReasonCode, reason: str = "") -> Finding:
        """Make the finding that a decider returns: its reason code, and a sentence if the code does not say all."""


Decider = Callable[[Any], Finding | None]


def precondition(c: Compared) -> Finding | None:
    """Finding of one of the first deciders, or None if both sides have comparable values."""
    return next((found for decider in c.first_deciders if (found := decider(c)) is not None), None)


def decide(c: Compared) -> Finding:
    """Finding of the first decider that applies; *within-threshold* if none does.

    Raises:
        ExtensionError: a metric kind names a rule that is not there.
    """
    if (found := precondition(c)) is not None:
        return found
    if (rule := METRIC_KINDS[c.metric.better].rule) not in RULES:
        raise ExtensionError(f"the metric kind {c.metric.better!r} has no rule {rule!r}: known are {', '.join(RULES)}")
    for decider in RULES[rule]:
        if (found := decider(c)) is not None:
            break
    return found or c.finding("within-threshold")


def lost_in_part(c: Compared) -> Finding | None:
    if not c.lost or c.known_as is None:
        return None
    found = c.of_kind(c.known_as.better).finding("not-measured", c.lost)
    is_other_unit = c.known_as.unit != c.metric.unit  # one row has one unit
    return replace(found, unit=c.known_as.unit, current=None) if is_other_unit else found


def not_judged(c: Compared) -> Finding | None:
    return None if c.metric.is_judged else c.finding("not-judged", "recorded, not judged")


def without_value(c: Compared) -> Finding | None:
    return c.finding("no-value", f"no value in {c.missing}") if c.missing else None


def without_baseline(c: Compared) -> Finding | None:
    """Finding if there is no baseline; then metrics that the plugin records by itself (UNASKED) are not judged."""
    if c.known_as is not None:
        return None
    if c.metric.name in UNASKED:
        return c.of_kind("info").finding("not-judged", "recorded, not judged")
    return c.finding(*c.absent)


def of_other_definition(c: Compared) -> Finding | None:
    why = c.other_definition
    if why and c.is_judged_by_other:
        return c.finding("not-measured", f"{why}: not the number that the base judges")
    return c.finding("other-definition", why) if why else None


FIRST: tuple[Decider, ...] = (lost_in_part, not_judged, without_value, without_baseline, of_other_definition)
"""Deciders of every comparison. Later ones can rely on both sides having one kind, unit and identity."""

RULES: Table[str, tuple[Decider, ...]] = Table("rules", {})
"""Deciders in their order, by a kind's ``rule``; ``comparison`` and ``training_rule`` fill it."""
