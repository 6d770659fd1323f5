"""What people write down beside what a run measures: prices of machines, and an experiment.

Prices are by the hour, with a date and a source: the package knows none. What is stated of an experiment is
printed under the headings of reports 000 and 001.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from typing import Literal

from pytest_distbench.records.record import Record

Term = Literal["regular", "preemptible"]
"""How a machine is rented: until it is given back, or until its owner wants it."""

TERMS: tuple[Term, ...] = ("regular", "preemptible")


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A kind of machine that nodes are of.

    Attributes:
        name: as its owner calls it: ``n1-standard-4``.
        per_hour: the price of a node with its accelerators, by term, in the currency of the list.
        ranks_per_node: so many ranks share a node, and its price.
        platforms: hardware classes of runs that count as this machine; ``*`` stands for anything.
    """

    name: str
    per_hour: Mapping[Term, float]
    ranks_per_node: int
    platforms: Sequence[str] = ("*",)

    def nodes(self, ranks: int) -> int:
        return -(-ranks // self.ranks_per_node)

    def cost(self, term: Term, *, ranks: int, seconds: float) -> float | None:
        """Nodes times hours times the price of an hour (MLBench's cost of an experiment); None: there is no price."""
        price = self.per_hour.get(term)
        return None if price is None else self.nodes(ranks) * seconds / 3600 * price


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """A price list.

    Attributes:
        currency: of all prices, as ISO 4217 spells it: ``USD``.
    """

    currency: str
    date: date
    source: str
    machines: Sequence[Machine] = field(default=())

    def machine(self, platform: str) -> Machine | None:
        """The machine that a hardware class counts as: the first that names it."""
        named = (m for m in self.machines if any(fnmatch.fnmatchcase(platform, known) for known in m.platforms))
        return next(named, None)


class Statement(Record, frozen=True, kw_only=True):
    """What was stated of some tests of a run."""

    of: str = ""
    """A pattern of names of tests, ``test_resnet*``, as :mod:`fnmatch` takes it; empty: all."""
    fields: dict[str, str]
    """By keys; some have a heading of report 001."""

    def is_of(self, test: str) -> bool:
        return not self.of or any(fnmatch.fnmatchcase(known, self.of) for known in (test, test.rpartition("::")[2]))


class Experiment(Record, frozen=True, kw_only=True, omit_defaults=True):
    """What was stated of a run."""

    statements: list[Statement] = []
    """Of several that are of a test the later one counts, field by field."""
    planned: dict[str, str] = {}
    """What is to become of a row of the environment: ``torch`` -> ``2.15``."""

    def stated(self, test: str) -> dict[str, str]:
        found: dict[str, str] = {}
        for statement in self.statements:
            if statement.is_of(test):
                found |= statement.fields
        return found
