"""What was measured under one name: as a rank saw it, as a launch has it and as it is read; and the bounds of it."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from pytest_distbench.errors import ConfigurationError, show
from pytest_distbench.records.kinds import OfKind, Reduce
from pytest_distbench.records.record import Number, Record
from pytest_distbench.records.trained import Option, TensorState
from pytest_distbench.records.wanted import LARGEST_WHOLE, text
from pytest_distbench.units import as_float, convert, parse_quantity

Scalar = bool | int | float | str


CPU_S = "cpu_s"  # companion of a clock: seconds of CPU time of all ranks, per iteration

CPU_SPREAD = "cpu_spread"
"""Companion of a stored clock: the standard deviation of the logarithm of that CPU time between launches."""

HOST_S = "host_s"  # companion of a clock of a GPU: seconds that the host needed to enqueue

UNTIL_MOVED = "until_moved"
"""Fact of a curve whose length nobody has set: of its values a baseline keeps as many as the loss takes to move."""

FEWEST_CURVE_STEPS, MOST_CURVE_STEPS = 10, 50
"""Of such a curve. After more steps a perturbation of 1e-5 may have grown to 1e-2."""

TOLD = "told"  # fact of a number: what is told of it where it is beyond a bound

LINK_PEAK = "link_peak_gb_per_s"
"""Fact of the time of a collective, and its unit: what the links of a rank's GPU can carry in one direction."""

PHASE = "phase/"  # what the names of phases begin with among the metrics

WALL_TIME = "wall_time"  # of a script or a command from its start to its end

PEAK_MEMORY = "peak_memory"  # of the rank that needed most, in bytes; of a command, of the largest of its processes

UNDER_WAY = 3
"""After so many updates a training has allocated all that it keeps: its second peak is of what follows."""

WEIGHTS = "weights"  # what the optimizers have trained, as it is at the end

SAVED = "saved"  # what was saved last under each name

REPLICAS = "replicas"
"""Tensors that DistributedDataParallel, or a replicate dimension of a mesh, keeps equal, and that differ."""

UNASKED = (PEAK_MEMORY, WEIGHTS, SAVED)
"""What no test asks for. So none is something to judge alone, and where the baseline has none, nothing is said."""

CPU_THROTTLED = "cpu_throttled"
"""Under a CPU quota: the share of its periods in which that stopped a rank, of the rank that it stopped most seldom."""


EVALUATED = "evaluated_"  # what the series of a goal's evaluations is called before the name of its metric

EVERY = "every"  # fact of such a series: steps between its values

EVALUATION_ENDS = "evaluation_ends"
"""Series of a goal: seconds from its first step to the end of each evaluation, as ``time_to_<metric>`` counts them."""

FINGERPRINT = "fingerprint"  # of what an iteration sends; a ``metrics=`` that lists others leaves it unjudged

OWN_NAMES = (WALL_TIME, *UNASKED, REPLICAS, CPU_THROTTLED, "network_rate", "network_round_trip", FINGERPRINT)
"""Of what the plugin itself records, besides phases."""

MOST_TAKEN_FROM = 1000  # values that are kept of what a number was taken from

NAME, AXIS = text(without="[]"), text(without="[]=,")
"""What can stand before a point in a key, ``latency`` in ``latency[message_bytes=4]``; and what can be a name in it."""

LONGEST_TEXT = 100  # characters of a text in a point: it is part of the metric's key

LARGEST_NUMBER = 1e300  # no measurement is beyond; sums and means over ranks and launches stay finite below it


Side = Literal["most", "least"]  # whether a value may be at most, or at least, what the bound says

BoundValue = float | str
"""As people write one: a number in the metric's own unit, or a text: ``"200us"``, ``">= 10 GB/s"``."""

_SIGNS: dict[str, Side] = {"<=": "most", ">=": "least"}
_WANTED = "wanted a number, or a text such as '200us', '>= 10 GB/s' or '>= 0.5 and <= 2.5'"


AskedBound = tuple[str, BoundValue, str]
"""A bound as a marker or a baseline file says it, before it is known what is measured: of a metric's key, or a name
that stands for all its points; the value, as it was written for :func:`terms_of`; and where it was set."""


Term = tuple[Side | None, float, str]
"""A limit that was written: its side, or None without a sign; the value; and its unit, or "" for the metric's own."""


def terms_of(given: object) -> list[Term]:
    """Read a bound as people write it; a text may give both sides: ``">= 0.5 and <= 2.5"``."""
    if not isinstance(given, str):
        number = as_float(given)
        if number is None or not math.isfinite(number):
            raise ConfigurationError(f"{show(given)} is no bound: {_WANTED}")
        return [(None, number, "")]
    terms: list[Term] = []
    for part in re.split(r"\s+and\s+", given.strip()):
        sign = next((sign for sign in _SIGNS if part.startswith(sign)), "")
        try:
            value, unit = parse_quantity(part.removeprefix(sign))
        except ConfigurationError:
            raise ConfigurationError(f"{show(given)} is no bound: {_WANTED}") from None
        terms.append((_SIGNS.get(sign), value, unit))
    if len(terms) > 1 and sorted(str(side) for side, _, _ in terms) != ["least", "most"]:
        raise ConfigurationError(f"{show(given)} is no bound: {_WANTED}")
    return terms


class Bound(Record, frozen=True, kw_only=True):
    """A limit of one metric's value, in the metric's unit."""

    side: Side
    value: float
    where: str  # where it was set: ``rank.record at test_a.py:12``
    rate: str = ""  # as it was written, where that is the rate of a sweep: ``busbw >= 10 GB/s``
    is_default: bool = False  # the plugin's own: one of the test or of a baseline's file, of the same side, replaces it
    doubt: str = ""
    """What is asked of a number that is beyond it in each launch, which then is inconclusive; empty: beyond."""

    def holds(self, value: float | None) -> bool:
        """Whether a value keeps to it. None, which says that there is no value, never does."""
        if value is None:
            return False
        return value <= self.value if self.side == "most" else value >= self.value


def bounds_between(at_least: object, at_most: object, *, unit: str, where: str) -> list[Bound]:
    """The bounds that the arguments ``at_least=`` and ``at_most=`` of a call give; None is none."""
    sides: tuple[tuple[str, Side, object], ...] = (("at_least", "least", at_least), ("at_most", "most", at_most))
    found = []
    for name, side, given in sides:
        if given is None:
            continue
        try:
            (sign, value, its_unit), *others = terms_of(given)
            is_signed = bool(others) or sign is not None
            value = value if is_signed else convert(value, its_unit, unit)
        except ConfigurationError as error:
            raise ConfigurationError(f"{name}: {error}") from None
        if is_signed:
            raise ConfigurationError(f"{name}={show(given)}: leave the sign out, {name} says it")
        found.append(Bound(side=side, value=value, where=where))
    if len(found) == len(sides) and found[0].value > found[1].value:
        raise ConfigurationError(f"at_least={show(at_least)} is more than at_most={show(at_most)}")
    return found


def tightest(bounds: Sequence[Bound], side: Side) -> float | None:
    """The one limit of several that excludes most; None where there is none on that side."""
    values = [bound.value for bound in bounds if bound.side == side]
    return (min(values) if side == "most" else max(values)) if values else None


class Spread(Record, frozen=True, kw_only=True, omit_defaults=True):
    """How far the values of one launch are apart: those of its series, and those of its ranks.

    A baseline keeps ``minimum``, ``p95`` and both means of all iterations of a timing, ``n`` of another series,
    ``over_ranks``.
    """

    n: int = 0
    minimum: float = 0.0
    p25: float = 0.0
    median: float = 0.0
    p95: float = 0.0
    p99: float = 0.0
    mean: float = 0.0
    stdev: float = 0.0
    geometric_mean: float | None = None  # of a series of times or rates; None where it has too few values, or one is 0
    mean_but_slowest: float | None = None
    """Of the same series: the arithmetic mean of the times without the slowest iteration; of rates the harmonic one."""
    slowest_rank: int | None = None  # the rank that was slowest most often; None where ranks were not compared
    slowest_share: float = 0.0  # share of the iterations in which that rank was the slowest, 0 to 1
    over_ranks: list[Number] = []
    """Of a mean over ranks in a training: the standard deviation of their values, for each value of the series; one
    stands for all where they are equal."""


class Sample(OfKind, frozen=True, kw_only=True, omit_defaults=True):
    """One number of one launch, reduced over its ranks: of this run, of another side, or of a baseline."""

    name: str
    unit: str
    at: dict[str, Scalar] = {}  # its point: the size of a message, a seed
    identity: dict[str, Scalar] = {}
    """What defines the number besides its name and point: it is not compared with one of another."""
    facts: dict[str, Scalar] = {}  # what describes it
    bounds: list[Bound] = []  # that were given with the number
    value: Number | None  # the launch's value; None says it has none (a goal never reached)
    values: list[Number] = []
    """The series of an exact, info or curve metric; of any other at most 41 of its values, see
    :func:`~pytest_distbench.records.kinds.distribution`. Of a number of a training what it was taken from; of
    memory what each rank needed."""
    whole: list[Number] = []
    """Of a curve: all values, of which ``values`` are the first, as ``kept_places`` keeps them; of a baseline as far as
    its launches agree. Empty: there are no more."""
    whole_length: int = 0  # values of the series that ``whole`` is of
    beside: list[str] = []
    """Of a curve that was read: what the script wrote beside each value, its own number of the step perhaps."""
    tensors: dict[str, dict[str, TensorState]] = {}
    """Of weights, and of what was saved: by the ranks that hold the same (``all``, ``0``, ``1-3``) and by name."""
    options: dict[str, dict[str, Option]] = {}  # of weights, what their optimizers were told, by the same ranks
    companions: dict[str, float] = {}
    """Of one iteration, summed over ranks: seconds (``cpu_s``: 25th percentile) and counts (``waits``: mean)."""
    spread: Spread | None = None  # of a series, and of a mean over ranks
    reduce: Reduce | None = None  # over its ranks, where that is not what its kind says
    ranks: int = 0  # that recorded it; 0: it is no number of ranks

    @property
    def key(self) -> str:
        """Name and point: ``latency[message_bytes=4096]``."""
        return metric_key(self.name, self.at)

    @property
    def key_over_seeds(self) -> str:
        """The same without the seed: a verdict on a training is over its seeds."""
        return metric_key(self.name, without(self.at, "seed"))

    @property
    def is_phase(self) -> bool:
        return self.name.startswith(PHASE)


class Observation(Sample, frozen=True, kw_only=True, omit_defaults=True):
    """A sample while it is reduced over ranks: the value or series of one of them, or of all those of a host.

    What has yet to be divided by the number of ranks, a mean, is their sum; witnesses are, too.
    """

    value: Number | None = None  # not known yet
    reduce: Reduce
    values: list[Number]
    is_series: bool
    taken_from: list[Number] = []
    witnesses: dict[str, list[float]] = {}
    """Of a clock, one value per iteration: ``cpu_s``, ``waits``; on a GPU what the host did, too."""
    loop: str = ""
    """Of a phase in a loop, the key of the loop's metric; of one in a script outside of its timed loops, that of its
    wall time. Empty: it is no such phase, nor is what follows of it."""
    path: list[str] = []  # names of the phases around it in the loop, the outermost first, and its own
    began_at: list[float] = []
    """Of a phase that enters collectives outside of its own parts: when it first began in each timed iteration,
    CLOCK_MONOTONIC seconds of the rank's host; 0 where it did not."""
    host_s: list[float] = []  # where its time is the device's: seconds that the host was in it, in each timed iteration
    is_apart: bool = False  # it is beside the step: an evaluation, or what is around one
    of_ranks: dict[int, dict[str, float]] = {}
    """By the rank that recorded it, ascending, means over its iterations: ``time_s``; of a phase ``host_s`` and, where
    the ranks have one clock, ``wait_s`` and ``late_s``. Empty in the report of a rank."""
    curve_steps: int = 0  # of a curve, how many of its values are judged as one; 0: all
    squares: list[Number] = []
    """Of a mean: the sum over these ranks of the squared deviation of each value from theirs; none where it is one."""
    slowest: list[int] = []  # of a series whose largest values are taken: the rank that each is of


MOST_WHOLE = 1000


def kept_places(length: int) -> list[int]:
    """Which values of a series are kept: the first thousand, and of the rest every 2nd, 4th ..., so many at most."""
    every = 1
    while (length - MOST_WHOLE) > MOST_WHOLE * every:
        every *= 2
    return [*range(min(length, MOST_WHOLE)), *range(MOST_WHOLE, length, every)]


def is_own_name(name: str) -> bool:
    """Whether the plugin itself records something of that name."""
    return name in OWN_NAMES or name.startswith(PHASE)


def as_scalar(value: object) -> Scalar | None:
    """A value of a point as it is stored; numpy's and torch's become Python's. None where it can be none."""
    if not isinstance(value, bool | int | float | str) and hasattr(value, "item"):
        try:
            value = value.item()
        except Exception:  # noqa: BLE001 an array of several elements, a tensor without memory
            return None
    match value:
        case bool():
            return value
        case str():
            return str(value) if value.isprintable() else None
        case int():
            return int(value) if abs(value) <= LARGEST_WHOLE else None
        case float():
            return float(value) if abs(value) <= LARGEST_NUMBER else None
    return None


def metric_name(key: str) -> str:
    """The name in such a key: ``latency`` of ``latency[message_bytes=4096]``."""
    return key.partition("[")[0]


def without(at: Mapping[str, Scalar], axis: str) -> dict[str, Scalar]:
    """A point but for one axis."""
    return {name: value for name, value in at.items() if name != axis}


def metric_key(name: str, at: dict[str, Scalar]) -> str:
    """Join a metric's name and its point into the key used in files and tables."""
    if not at:
        return name
    return f"{name}[{','.join(f'{k}={v}' for k, v in sorted(at.items()))}]"


NUMBER = r"([-+]?(?:\d+(?:,\d+)*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|[-+]?(?i:nan|inf(?:inity)?)\b)"
"""A group that takes a whole number, nan and inf too, for patterns: ``stdout(r"loss " + NUMBER)``."""

TAKES: dict[str, Callable[[Sequence[float]], float]] = {
    "first": lambda series: series[0],
    "last": lambda series: series[-1],
    "min": min,
    "max": max,
    "mean": statistics.fmean,
    "median": statistics.median,
    "sum": sum,
}
"""How a series becomes one number, by the name that ``take=`` has."""


class Reader(OfKind, frozen=True, kw_only=True):
    """One metric to be read after a launch. Made by the functions of :mod:`pytest_distbench.read`."""

    kind: str  # key of :data:`pytest_distbench.launch.readers.READERS`
    source: str  # a pattern, or a path with placeholders
    key: str = ""  # what is read there: a key, a column, a tag
    since: str = ""
    """Of a log of events: the event from which the seconds are counted; empty: the event's own value is read."""
    where: dict[str, Scalar] = {}  # of rows: columns, or keys, that have these values in those that count
    step: str | None = ""  # of rows: the column that says how far the training is; "": by its name; None: none does
    unit: str = ""
    scale: float = 1.0
    rank: int | Literal["all"] = 0  # whose output, or whose file
    skip: int = 0
    first: int | None = None
    take: str = ""  # key of :data:`TAKES`; empty: the metric kind decides
    at: dict[str, Scalar] = {}
    identity: dict[str, Scalar] = {}
    bounds: list[Bound] = []  # in the unit

    @property
    def defining(self) -> dict[str, Scalar]:
        """What defines the number: read in another way it is another number."""
        chosen: dict[str, Scalar] = {"skip": self.skip, "take": self.take, "since": self.since}
        return {**{name: value for name, value in chosen.items() if value}, **self.identity}
