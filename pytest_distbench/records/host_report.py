"""What the ranks of one host recorded, reduced there: of it, a launch gets as much from each host as from a rank."""

from __future__ import annotations

from pytest_distbench.records.breakdown import Breakdown
from pytest_distbench.records.fingerprint import RankFingerprint
from pytest_distbench.records.metric import Observation
from pytest_distbench.records.rank import RankReport
from pytest_distbench.records.record import Number, Record


class Partial(Observation, frozen=True, kw_only=True):
    """A metric, element by element reduced over those of the ranks that are known here.

    What has yet to be divided by the number of ranks, a mean, is their sum; companions are, too.
    """

    ranks: list[int]
    """That recorded it, ascending."""
    squares: list[Number] = []
    """Of a mean: the sum over these ranks of the squared deviation of each value from theirs; none where it is one."""
    slowest: list[int] = []
    """Of a series whose largest values are taken: the rank that each is of."""


class CommonPrint(Record, frozen=True, kw_only=True):
    """A fingerprint that several ranks have."""

    ranks: list[int]
    """Ascending."""
    fingerprint: RankFingerprint
    """Without its stamps."""


class Entered(Record, frozen=True, kw_only=True):
    """When the ranks of a host entered the collectives of an iteration."""

    firsts: list[float]
    """The first of them each, CLOCK_MONOTONIC seconds of the host; where its site has read the report, the
    controller's."""
    latest: list[tuple[int, float]]
    """By rank the collective that it came latest to, from 0, and how long after that first."""


class HostReport(Record, frozen=True, kw_only=True):
    """What the ranks of one host have left behind; of ranks that did not all pass, how each ended, and no more."""

    ranks: list[RankReport] = []
    """Of those that left a report, ascending, without what the other fields tell."""
    observations: list[Partial] = []
    """In the order they were first recorded; of one key there are several where ranks do not agree what it is."""
    fingerprints: dict[str, list[CommonPrint]] = {}
    loops: dict[str, Breakdown] = {}
    """By the key of a metric that all ranks of the host recorded; most are no loops, and have no parts."""
    entered: dict[str, Entered] = {}
    """By the same key as fingerprints, where all ranks of the host entered equally many collectives."""
