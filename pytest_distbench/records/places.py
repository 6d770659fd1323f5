"""Places in the code that take a rank's time, or hold its memory, and the difference between two revisions."""

from __future__ import annotations

from pytest_distbench.records.record import Record

Place = tuple[str, int, str]
"""File below the root of its repository, line from 1, and enclosing function."""

OUTSIDE: Place = ("", 0, "")  # no line of the repository is on the stack

BACKWARD = "backward pass"
WAITING = "waiting in "
DATA = "waiting for data"  # of a data loader; at a place of its workers: what they do meanwhile


class Spot(Record, frozen=True, kw_only=True):
    """One operation at one stack of lines: its calls and seconds in an iteration, means; or bytes alive at a peak."""

    stack: list[Place]  # lines of the repository, innermost first; empty: :data:`OUTSIDE`
    what: str  # an operator, Python, a function of a library, or waiting
    calls: float = 0.0  # calls of an operator; 0 for anything else, whose calls are not counted; at a peak: tensors
    amount: float = 0.0  # seconds; at a peak: bytes


class LoopPlaces(Record, frozen=True, kw_only=True):
    """Time of a loop's iterations in one rank, by place."""

    loop: str
    iterations: int
    iteration_s: float  # without the time that counting took
    wall_s: float  # with it
    spots: list[Spot]


class RankPlaces(Record, frozen=True, kw_only=True):
    loops: list[LoopPlaces]
    peaks: dict[str, list[Spot]] = {}  # tensors that were alive at a peak of memory, by its metric
    sources: dict[str, list[str]] = {}
    """Lines of the repository's modules that were loaded, by file."""


class PlaceRow(Record, frozen=True, kw_only=True):
    """A line of code that takes more time, or holds more memory, than in the baseline, with numbers of both sides."""

    place: Place
    what: str
    calls: tuple[float, float]  # per iteration, then and now; of memory: tensors
    amounts: tuple[float, float]  # seconds per iteration of all that happens at the place, then and now, or bytes
    share: float  # of what was added
    is_counted: bool = False  # calls differ, for which no noise is needed
    rank: int | None = None  # None: all ranks
    changed_at: tuple[str, int] = ("", 0)
    """File and line of the change: the place itself, or the line that calls it."""


class CasePlaces(Record, frozen=True, kw_only=True):
    """Places that explain a regression, from launches under a recorder, which are never judged."""

    metric: str = ""
    unit: str = "s"  # of the amounts of rows; B: of memory
    rows: list[PlaceRow] = []
    sentence: str = ""
    overhead: float = 1.0  # how many times as long an iteration took under the recorder
    launches: int = 0
    took_s: float = 0.0
    why_not: str = ""  # why nothing is known, or ""
