"""Places of the code in which an iteration spends its time: of a rank, and what two revisions differ by."""

from __future__ import annotations

from pytest_distbench.records.record import Record

Place = tuple[str, int, str]
"""A file below the root of its repository, a line from 1, and the function that it is in."""

OUTSIDE: Place = ("", 0, "")  # no line of the repository is on the stack

BACKWARD = "backward pass"
WAITING = "waiting in "
DATA = "waiting for data"  # of a data loader; at a place of its workers: what they do meanwhile


class Spot(Record, frozen=True, kw_only=True):
    """What an iteration does at one place, with these callers: means over iterations."""

    stack: list[Place]  # lines of the repository, the innermost first; empty: :data:`OUTSIDE`
    what: str  # an operator, or what is no operator: Python, a function of a library, waiting
    calls: float = 0.0  # of an operator; 0: what is no operator, whose calls nobody counts
    time_s: float = 0.0


class LoopPlaces(Record, frozen=True, kw_only=True):
    """Where the iterations of a loop spend their time in one rank."""

    loop: str
    iterations: int
    iteration_s: float  # without the time that counting took
    wall_s: float  # with it
    spots: list[Spot]


class RankPlaces(Record, frozen=True, kw_only=True):
    loops: list[LoopPlaces]
    sources: dict[str, list[str]] = {}
    """The lines of the repository's modules that were loaded, by file."""


class PlaceRow(Record, frozen=True, kw_only=True):
    """A place that takes more time than before."""

    place: Place
    what: str
    calls: tuple[float, float]  # of an iteration, then and now
    times_s: tuple[float, float]  # of an iteration, then and now: of all that happens at the place
    share: float  # of the added time
    is_counted: bool = False  # calls differ, for which no noise is needed
    rank: int | None = None  # None: it is so in all ranks
    changed_at: str = ""  # the changed line that calls the place, where its own has not changed


class CasePlaces(Record, frozen=True, kw_only=True):
    """The places that explain a regression: of launches under a recorder, which are never judged."""

    metric: str = ""
    rows: list[PlaceRow] = []
    sentence: str = ""
    overhead: float = 1.0  # how many times as long an iteration took under the recorder
    launches: int = 0
    took_s: float = 0.0
    why_not: str = ""  # why nothing is known; empty: something is
