"""A search for the commit that moved a metric, as far as it has come."""

from __future__ import annotations

from pytest_distbench.records.record import Record
from pytest_distbench.records.run import CaseResult
from pytest_distbench.records.verdict import Verdict

LAUNCH_FAILS = "launch"
"""In the place of a metric: that its launches fail at BAD and pass at GOOD."""


class Commit(Record, frozen=True, kw_only=True):
    """A commit, as people are told of it."""

    hash: str
    parents: list[str]
    author: str
    date: str
    subject: str

    @property
    def short(self) -> str:
        """Ten digits."""
        return self.hash[:10]


class Followed(Record, frozen=True, kw_only=True):
    """The metric whose commit is looked for, of one case."""

    metric: str
    """Name and point, or :data:`LAUNCH_FAILS`."""
    verdict: Verdict | None = None
    """On it at BAD, compared with GOOD; None: its launch fails."""
    good: CaseResult
    """Its case, measured at GOOD; of a clock it holds both sides, in turns."""
    bad: CaseResult
    at_bad: list[float] = []
    """Of a clock: logarithm of BAD's value over GOOD's, one per pair."""

    @property
    def is_exact(self) -> bool:
        """Whether one launch of a commit says it."""
        return not self.at_bad


class Visit(Record, frozen=True, kw_only=True):
    """A commit was measured, or could not be."""

    commit: str
    skipped: str = ""
    """Why it could not be measured."""
    has_moved: bool = False
    """Of an exact metric."""
    changes: list[float] = []
    """Of a clock: logarithm of its value over GOOD's, one per pair."""
    told: str = ""
    """Of an exact metric: how it differs from GOOD's."""
    seconds: float


class Bisection(Record, frozen=True, kw_only=True):
    """What ``distbench bisect`` keeps, to go on after an interruption."""

    schema: int
    good: str
    """Commit."""
    bad: str
    asked: list[str]
    """Everything else that decides what is measured."""
    followed: Followed
    visits: list[Visit] = []
