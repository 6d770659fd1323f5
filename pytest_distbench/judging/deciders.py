"""The deciders that make a finding of what is compared: the first of its list that speaks wins. Pure.

What is compared is one metric of both sides (``comparison``), or one of a training over all its seeds
(``training_rule``). First come the deciders of all (:data:`FIRST`), then those of the kind's ``rule`` (:data:`RULES`).
A decider returns a finding, or None where another one has to say it. Deciders are the same whether the launches of this
run are compared with stored ones or are in pairs with another revision's.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

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
    """What deciders look at.

    Attributes:
        absent: why there is no baseline.
        lost: why part of it is missing from this run, or "".
        is_judged_by_other: whether the other side says what is judged (``--distbench-judge=base``).
    """

    absent: Absence = NO_BASELINE
    lost: str = ""
    is_judged_by_other: bool = False

    @property
    @abstractmethod
    def metric(self) -> Sample:
        """Any measurement of this run."""

    @property
    @abstractmethod
    def known_as(self) -> Sample | None:
        """Any measurement of the baseline, or None."""

    @property
    @abstractmethod
    def missing(self) -> str:
        """How many values are missing of how many, or "" where none is, or may be."""

    @property
    @abstractmethod
    def other_definition(self) -> str:
        """Why the baseline's is another number, or ""."""

    @property
    @abstractmethod
    def first_deciders(self) -> tuple[Decider, ...]:
        """:data:`FIRST`, with those of its own."""

    @abstractmethod
    def of_kind(self, better: Better) -> Self:
        """The same, with another kind."""

    @abstractmethod
    def finding(self, code: ReasonCode, reason: str = "") -> Finding:
        """What a decider says."""


Decider = Callable[[Any], Finding | None]


def precondition(c: Compared) -> Finding | None:
    """What one of the first deciders says; None: both sides have values that can be compared."""
    return next((found for decider in c.first_deciders if (found := decider(c)) is not None), None)


def decide(c: Compared) -> Finding:
    """What the first decider says that speaks; one that nobody objects to is unchanged."""
    found = precondition(c)
    for decider in RULES.get(METRIC_KINDS[c.metric.better].rule, ()) if found is None else ():
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
    """What is measured without being asked for, and has nothing to be compared with, is shown."""
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
"""Of everything. The deciders that follow can rely on both sides, of one kind, unit and identity."""

RULES: Table[str, tuple[Decider, ...]] = Table("rules", {})
"""Deciders in their order, by the name that a kind's ``rule`` has; ``comparison`` and ``training_rule`` fill it."""
