"""What machines cost by the hour: data of the user's, with a date and a source. The package knows no price."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from typing import Literal

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
        """Nodes that so many ranks need."""
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
        date: on which they were read.
        source: where.
    """

    currency: str
    date: date
    source: str
    machines: Sequence[Machine] = field(default=())

    def machine(self, platform: str) -> Machine | None:
        """The machine that a hardware class counts as: the first that names it."""
        named = (m for m in self.machines if any(fnmatch.fnmatchcase(platform, known) for known in m.platforms))
        return next(named, None)
