"""Metrics as a rank observes them, as a launch has them and as readers give them; and their bounds."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import msgspec

from pytest_distbench.errors import ConfigurationError, show
from pytest_distbench.records.kinds import OfKind, Reduce
from pytest_distbench.records.record import Number, Record
from pytest_distbench.records.trained import Option, TensorState
from pytest_distbench.records.wanted import LARGEST_WHOLE, text
from pytest_distbench.units import as_float, convert, parse_quantity

Scalar = bool | int | float | str


CPU_S = "cpu_s"  # companion of a timing: seconds of CPU time of all ranks, per iteration

CPU_SPREAD = "cpu_spread"
"""Companion of a stored timing: standard deviation of the logarithm of that CPU time between launches."""

HOST_S = "host_s"  # companion of a GPU's timing: seconds that the host needed to enqueue

UNTIL_CHANGED = "until_moved"
"""Fact of a curve without a set length: its baseline keeps as many values as the loss takes to change."""

FEWEST_CURVE_STEPS, MOST_CURVE_STEPS = 10, 50
"""Limits of the length of a curve without a set one: after more steps a perturbation of 1e-5 may have grown to 1e-2."""

SAID = "told"  # fact of a number: explanation that is printed if it violates a bound

LINK_PEAK = "link_peak_gb_per_s"
"""Name of a fact of a collective's time: GB/s that the links of a rank's GPU carry in one direction."""

PHASE = "phase/"  # prefix of phases among the metrics

WALL_TIME = "wall_time"  # of a script or a command from its start to its end

PEAK_MEMORY = "peak_memory"  # of the rank that needed most, in bytes; of a command, of the largest of its processes

UNDER_WAY = 3
"""Number of updates after which a training has allocated all that it keeps: a second peak of memory begins there."""

WEIGHTS = "weights"  # what the optimizers trained, at the end

SAVED = "saved"  # what was saved last under each name

REPLICAS = "replicas"
"""Tensors that DistributedDataParallel, or a replicate dimension of a mesh, keeps equal, and that differ."""

UNASKED = (PEAK_MEMORY, WEIGHTS, SAVED)
"""Metrics that are recorded in every test, unasked: not judged if there are no others, or if one side lacks them."""

CPU_THROTTLED = "cpu_throttled"
"""Metric: share of a CPU quota's periods in which the quota stopped the rank; of all ranks the smallest."""


EVALUATED = "evaluated_"  # prefix of the series of a goal's evaluations, before the name of its metric

EVERY = "every"  # fact of such a series: steps between its values

EVALUATION_ENDS = "evaluation_ends"
"""Series of a goal: seconds from its first step to the end of each evaluation, as ``time_to_<metric>`` counts them."""

FINGERPRINT = "fingerprint"  # metric of a fingerprint; a ``metrics=`` that lists others leaves it unjudged

OWN_NAMES = (WALL_TIME, *UNASKED, REPLICAS, CPU_THROTTLED, "network_rate", "network_round_trip", FINGERPRINT)
"""Names of what the plugin itself records, besides phases."""

MOST_TAKEN_FROM = 1000  # values that are kept of the series that a number was taken from

NAME, AXIS = text(without="[]"), text(without="[]=,")
"""Name before the point in a key, ``latency`` in ``latency[message_bytes=4]``; and name of an axis in it."""

LONGEST_TEXT = 100  # characters of a text in a point, which is part of the metric's key

LARGEST_NUMBER = 1e300  # no measurement is beyond; sums and means over ranks and launches stay finite below it


Side = Literal["most", "least"]  # whether a value may be at most, or at least, what the bound says

BoundValue = float | str
"""Bound as people write it: a number in the metric's own unit, or a text: ``"200us"``, ``">= 10 GB/s"``."""

_SIGNS: dict[str, Side] = {"<=": "most", ">=": "least"}
_WANTED = "wanted a number, or a text such as '200us', '>= 10 GB/s' or '>= 0.5 and <= 2.5'"


AskedBound = tuple[str, BoundValue, str]
"""Bound in a marker or a baseline file, before it is known what is measured: metric key, or a name that stands for all
its points; value, as written for :func:`terms_of`; and where it was set."""


Term = tuple[Side | None, float, str]
"""Limit as written: its side, or None without a sign; its value; and its unit, or "" for the metric's own."""


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
    """Limit of one metric's value, in the metric's unit."""

    side: Side
    value: float
    where: str  # where it was set: ``rank.record at test_a.py:12``
    rate: str = ""  # text of the bound, if it is on the rate of a sweep: ``busbw >= 10 GB/s``
    is_default: bool = False  # the plugin's own: one of the same side in the test or the baseline file replaces it
    suspicion: str = msgspec.field(default="", name="doubt")
    """What to ask about a number that violates the bound in each launch: it is then inconclusive. "": it then fails."""

    def holds(self, value: float | None) -> bool:
        """Whether a value keeps to the bound. None, no value, never does."""
        if value is None:
            return False
        return value <= self.value if self.side == "most" else value >= self.value


def bounds_between(at_least: object, at_most: object, *, unit: str, where: str) -> list[Bound]:
    """Bounds from the arguments ``at_least=`` and ``at_most=`` of a call; None is none."""
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
    """The tightest limit of some bounds on one side, or None."""
    values = [bound.value for bound in bounds if bound.side == side]
    return (min(values) if side == "most" else max(values)) if values else None


class Spread(Record, frozen=True, kw_only=True, omit_defaults=True):
    """Spread of the values of one launch: of its series, and of its ranks.

    A baseline keeps ``minimum``, ``p95`` and both means of a timing, ``n`` of another series, and ``over_ranks``.
    """

    n: int = 0
    minimum: float = 0.0
    p25: float = 0.0
    median: float = 0.0
    p95: float = 0.0
    p99: float = 0.0
    mean: float = 0.0
    stdev: float = 0.0
    geometric_mean: float | None = None  # of a series of times or rates; None if it has too few values, or one is 0
    mean_but_slowest: float | None = None
    """Mean without the slowest iteration: arithmetic for times, harmonic for rates."""
    slowest_rank: int | None = None  # rank that was slowest most often; None if ranks were not compared
    slowest_share: float = 0.0  # share of the iterations in which that rank was the slowest, 0 to 1
    over_ranks: list[Number] = []
    """Standard deviation over ranks behind a training's mean, for each value of the series, or once if all are
    equal."""


class Sample(OfKind, frozen=True, kw_only=True, omit_defaults=True):
    """One number of one launch, reduced over its ranks: of this run, of the other side, or of a baseline."""

    name: str
    unit: str
    at: dict[str, Scalar] = {}  # its point: the size of a message, a seed
    identity: dict[str, Scalar] = {}
    """Definition of the number besides name and point: numbers of other definitions are not compared."""
    facts: dict[str, Scalar] = {}  # description, which defines nothing
    bounds: list[Bound] = []  # given with the number
    value: Number | None  # None: it has none (a goal never reached)
    values: list[Number] = []
    """Series of an exact, info or curve metric; else at most 41 of its values, see
    :func:`~pytest_distbench.records.kinds.distribution`. For a number of a training, what it was taken from; for
    memory, what each rank needed."""
    whole: list[Number] = []
    """All values of a curve that begins with ``values``, thinned as in ``kept_places``; in a baseline as far as its
    launches agree; empty if there are no more."""
    whole_length: int = 0  # length of the series before thinning
    beside: list[str] = []
    """Text that a script printed with each value of a curve that was read, perhaps its own step number."""
    tensors: dict[str, dict[str, TensorState]] = {}
    """Tensors of weights and saved files, by ranks that hold the same (``all``, ``0``, ``1-3``) and by name."""
    options: dict[str, dict[str, Option]] = {}  # options of the weights' optimizers, by the same ranks
    companions: dict[str, float] = {}
    """Secondary signals per iteration, summed over ranks: ``cpu_s`` (25th percentile), ``waits`` (mean count)."""
    spread: Spread | None = None  # of a series, and of a mean over ranks
    reduce: Reduce | None = None  # reduction over ranks, if not that of its kind
    ranks: int = 0  # number of ranks that recorded it; 0: it is no number of ranks

    @property
    def key(self) -> str:
        """Name and point: ``latency[message_bytes=4096]``."""
        return metric_key(self.name, self.at)

    @property
    def key_over_seeds(self) -> str:
        """Key without the seed: trainings are judged over their seeds."""
        return metric_key(self.name, without(self.at, "seed"))

    @property
    def is_phase(self) -> bool:
        return self.name.startswith(PHASE)


class Observation(Sample, frozen=True, kw_only=True, omit_defaults=True):
    """Sample during the reduction over ranks: the value or series of one rank, or of all ranks of a host.

    Means are kept as sums until they are divided by the number of ranks; so are secondary signals.
    """

    value: Number | None = None  # not known yet
    reduce: Reduce
    values: list[Number]
    is_series: bool
    taken_from: list[Number] = []
    secondary: dict[str, list[float]] = {}
    """Secondary signals of a timing, one value per iteration: ``cpu_s``, ``waits``; on a GPU the host's time too."""
    loop: str = ""
    """Key of the metric of the loop that a phase is in; outside of a script's timed loops, that of its wall time. Empty
    if it is no such phase; then the fields below are empty too."""
    path: list[str] = []  # names of the enclosing phases, outermost first, and its own
    began_at: list[float] = []
    """CLOCK_MONOTONIC seconds of the rank's host at which a phase first began in each timed iteration, or 0; for phases
    that enter collectives outside of their own parts."""
    host_s: list[float] = []  # host seconds in each timed iteration, if its time is the device's
    is_apart: bool = False  # it is not part of the step: an evaluation, or what surrounds one
    of_ranks: dict[int, dict[str, float]] = {}
    """Means over iterations by rank, ascending: ``time_s``; for a phase ``host_s`` and, if the ranks share one
    host clock, ``wait_s`` and ``late_s``. Empty in the report of a rank."""
    curve_steps: int = 0  # number of a curve's values that are judged; 0: all
    squares: list[Number] = []
    """Sum over ranks of each value's squared deviation from the mean of the ranks; empty for one rank."""
    slowest: list[int] = []  # rank of each value, in a series reduced by the maximum


MOST_WHOLE = 1000


def kept_places(length: int) -> list[int]:
    """Indices of a series that are kept: the first thousand, and then every 2nd, 4th ..., at most a thousand more."""
    every = 1
    while (length - MOST_WHOLE) > MOST_WHOLE * every:
        every *= 2
    return [*range(min(length, MOST_WHOLE)), *range(MOST_WHOLE, length, every)]


def is_own_name(name: str) -> bool:
    """Whether the plugin itself records something of that name."""
    return name in OWN_NAMES or name.startswith(PHASE)


def as_scalar(value: object) -> Scalar | None:
    """A value of a point as it is stored, numpy's and torch's as Python's; or None if it cannot be stored."""
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
    """Name in a metric key: ``latency`` in ``latency[message_bytes=4096]``."""
    return key.partition("[")[0]


def without(at: Mapping[str, Scalar], axis: str) -> dict[str, Scalar]:
    """A point without one axis."""
    return {name: value for name, value in at.items() if name != axis}


def metric_key(name: str, at: dict[str, Scalar]) -> str:
    """Join a metric's name and its point into the key used in files and tables."""
    if not at:
        return name
    return f"{name}[{','.join(f'{k}={v}' for k, v in sorted(at.items()))}]"


NUMBER = r"([-+]?(?:\d+(?:,\d+)*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|[-+]?(?i:nan|inf(?:inity)?)\b)"
"""Group that matches a whole number, nan and inf too, for patterns: ``stdout(r"loss " + NUMBER)``."""

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
    key: str = ""  # key, column or tag that is read there
    since: str = ""
    """Event in a log from which the seconds are counted, or "" to read the event's own value."""
    where: dict[str, Scalar] = {}  # columns or keys, and the values that rows that count have in them
    step: str | None = ""  # column of rows that says how far the training is; "": found by its name; None: none does
    unit: str = ""
    scale: float = 1.0
    rank: int | Literal["all"] = 0  # rank whose output or file is read
    skip: int = 0
    first: int | None = None
    take: str = ""  # key of :data:`TAKES`, or "" for the metric kind's choice
    at: dict[str, Scalar] = {}
    identity: dict[str, Scalar] = {}
    bounds: list[Bound] = []  # in the unit

    @property
    def defining(self) -> dict[str, Scalar]:
        """How the number is read, as its ``identity``: numbers read in different ways are not compared."""
        chosen: dict[str, Scalar] = {"skip": self.skip, "take": self.take, "since": self.since}
        return {**{name: value for name, value in chosen.items() if value}, **self.identity}
