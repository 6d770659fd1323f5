"""Golden curves: where a series differs from the stored one of the same seed, by how much, and what that suggests.

A seeded training repeats its losses bit for bit under the same software, world size and thread count. Sums in another
order, or in another precision, deviate by a share of what the updates have done: by a thousandth of how far the loss
has changed (gradients in bfloat16), or by rounding (2e-7 of the loss). A fault deviates by a few percent of that
change, however small it still is, as under a warm-up. So a deviation is measured against how far the stored curve
itself has changed, see :func:`limits`; the numbers were measured on real trainings, see benchmarks/numerics.py.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal

from pytest_distbench.records.metric import FEWEST_CURVE_STEPS, MOST_CURVE_STEPS, kept_places
from pytest_distbench.units import format_share

RTOL = 1e-3
"""Accepted deviation of a loss, relative to it: a thousand times other hardware's rounding, an eighth of the weakest
gross fault of a training that learns at once. Before any update it is the only limit."""

SHARE_OF_MOVE = 5e-3
"""Accepted deviation relative to how far the stored curve has changed: five times what gradients in bfloat16 do to it,
a quarter of the weakest fault of an optimizer."""

FLOOR = 2e-6
"""Deviations up to this are rounding however little the curve has changed: ten times that of other instruction sets."""

TIMES_FIRST = 10.0
"""Accepted deviation of later values, in units of the deviation before any update, which another precision of the
forward pass causes; likewise in units of the difference between the baseline's launches."""

WANTED_MOVE = 0.1
"""A curve without a set length is as long as the loss takes to change by this share of it: then updates that are wrong
by a few percent deviate by more than any rounding."""

_AT_BEGIN, _AT_END = 3, 5  # values whose means are compared for that: each is of another batch

_FEW = 5
_SMALLEST = 5e-324
_LEAST = 1e-6  # of the largest value; smaller ones count as this share: a curve that touches zero has no ratio there

ROUNDING = 1e-5
"""Deviations up to this may be other rounding: they do not show at which step a training went another way."""

LOWER_ROUNDING = 1e-2
"""Rounding below float32, relative to the largest value: an operation in bfloat16 rounds by 4e-3."""

DIGITS = 9  # significant digits that distinguish any two float32; curves are stored and compared with this many

FEWEST_UNITS = 20
"""A curve that changes by fewer units of its last digit cannot show a fault of a tenth of what the updates do."""

ROUNDED_SHARE = 0.2  # if more values differ by one unit of their last digit, that is no rounding of what is printed


@dataclass(frozen=True, slots=True)
class Divergence:
    """How a curve differs from the stored one.

    Attributes:
        starts_at: first step, from 1, that differs by more than rounding, or None.
        exceeds_at: first step that differs by more than the tolerance, or None.
        is_identical: equal in every stored digit.
        largest_at: step at which it differs most, from 1.
    """

    starts_at: int | None
    exceeds_at: int | None
    largest: float
    is_identical: bool
    largest_at: int = 1

    @property
    def severity(self) -> tuple[bool, float]:
        """Sort key: beyond the tolerance is more severe."""
        return self.exceeds_at is not None, self.largest

    def describe(self, labels: Sequence[str]) -> str:
        """Say in a clause where it differs, and by how much.

        Args:
            labels: text that a script printed with each value, if the curve was read: its steps may have other numbers.
        """
        return f"diverges at {self.place(labels)}, differs by up to {format_share(self.largest)}"

    def place(self, labels: Sequence[str]) -> str:
        at = self.starts_at or self.exceeds_at
        return f"value {at} ({labels[at - 1]})" if at and labels else f"step {at}"

    def suggest(self, labels: Sequence[str], *, is_each_update: bool) -> str:
        """Likely causes of a divergence at this step: the loss of step n has seen n - 1 updates.

        Args:
            labels: as for :meth:`describe`.
            is_each_update: whether a script prints a value per update; else one value may cover several.
        """
        match self.starts_at or self.exceeds_at:
            case None:
                return "likely causes, behind the curve: data of a later epoch, a schedule, what was saved and loaded"
            case 1 if labels and labels[0].startswith("epoch"):
                return (
                    "likely causes, within the first epoch: initialisation, data and sharding, the forward pass, an "
                    "update, or what a restart or a change of membership loaded"
                )
            case int(at) if not is_each_update and at > 1:
                return (
                    "the value before agreed; likely causes: the gradient (its scale, reduction, clipping, "
                    "recomputation), an update (zero_grad, optimizer, learning rate), data, what was loaded"
                )
            case 1:
                return (
                    "likely causes, before any update: seed, initialisation or its broadcast, data, batch size and "
                    "sharding, the forward pass"
                )
            case 2:
                return (
                    "likely causes, in the first update: the gradient (its scale, reduction, clipping, recomputation), "
                    "batch size or accumulation, learning rate or weight decay, stale weights or activations"
                )
            case 3:
                return (
                    "likely causes, in the second update: gradients not cleared (zero_grad), momentum or other "
                    "optimizer state, or the learning rate's schedule"
                )
            case _:
                return (
                    "likely causes, after updates that agreed: a later batch or how its gradient is weighted, a "
                    "schedule, clipping, or rounding"
                )


def round_digits(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")


def deviations(stored: Sequence[float], current: Sequence[float]) -> list[float]:
    """Relative deviation per step, ``|current - stored| / |stored|``."""
    peak = max(map(abs, [*stored, *current]))
    return [
        0.0
        if round_digits(a) == round_digits(b)
        else abs(b / peak - a / peak) / max(abs(a / peak), _LEAST) or _SMALLEST
        for a, b in zip(stored, current, strict=True)
    ]


def limits(stored: Sequence[float], *, first: float = 0.0) -> list[float]:
    """Accepted relative deviation of each value: a share of how far the curve has changed up to there.

    That change is twice the difference between the means of its halves, as each value is of another batch; for few
    values it is their range.

    Args:
        first: relative difference that is known without any update: of the first values, or between baseline launches.
    """
    peak = max(map(abs, stored)) or 1.0
    values = [value / peak for value in stored]
    accepted, halves = [RTOL], 0.0
    for n, value in enumerate(values[1:], 2):
        known = values[:n]
        change = max(known) - min(known)
        if n > _FEW:
            halves = max(halves, abs(statistics.fmean(known[n // 2 :]) - statistics.fmean(known[: n // 2])))
            change = 2 * halves
        share = SHARE_OF_MOVE * change / max(abs(value), _LEAST)
        accepted.append(min(RTOL, max(share, FLOOR, TIMES_FIRST * first)))
    return accepted


def compare(
    stored: Sequence[float], current: Sequence[float], *, rtol: float | None, rounding: float, spread: float = 0.0
) -> Divergence:
    """Compare a curve with the stored one of the same seed.

    Args:
        current: the new curve: as many values as ``stored``, or more.
        rtol: accepted relative deviation of each step, if somebody has set one, or None for :func:`limits`.
        rounding: deviations up to this do not mark the step at which the divergence starts; 0 if the curve is known
            to repeat bit for bit.
        spread: relative deviation of the baseline's launches from each other.
    """
    found = deviations(stored, current[: len(stored)])
    accepted = [rtol] * len(stored) if rtol is not None else limits(stored, first=max(min(found[0], RTOL), spread))
    unit = unit_of([*stored, *current])
    differing = [i for i, deviation in enumerate(found) if deviation]
    if rtol is None and len(differing) <= ROUNDED_SHARE * len(found):
        for i in differing:
            if abs(current[i] - stored[i]) < 1.5 * unit:
                accepted[i] = max(accepted[i], found[i])
    exceeds = next((i for i, (is_, may) in enumerate(zip(found, accepted, strict=True), 1) if is_ > may), None)
    return Divergence(
        starts_at=_first_beyond(found, rounding),
        exceeds_at=exceeds,
        largest=max(found),
        is_identical=max(found) == 0.0,
        largest_at=found.index(max(found)) + 1,
    )


def common(launches: Sequence[Sequence[float]]) -> list[float]:
    """The values, in stored digits, on which all launches agree from the first on."""
    series = [list(map(round_digits, launch)) for launch in launches]
    agreeing = itertools.takewhile(lambda column: len(set(column)) == 1, zip(*series, strict=False))
    return [column[0] for column in agreeing]


@dataclass(frozen=True, slots=True)
class Beginning:
    """First difference of two series: number of the value, from 1, and whether rounding begins like that."""

    number: int
    then: float
    now: float
    deviation: float
    is_rounding: bool


def beginning(
    stored: Sequence[float], lengths: tuple[int, int], current: Sequence[float], *, is_exact: bool
) -> Beginning | None:
    """Find the first difference of two whole series, of the baseline and of this run, or None.

    Args:
        lengths: numbers of values in ``stored`` and ``current`` before they were thinned (``kept_places``).
        is_exact: whether both compute in float32 throughout.
    """
    places = [kept_places(length) for length in lengths]
    then, now = (dict(zip(*side, strict=False)) for side in zip(places, (stored, current), strict=True))
    unit = unit_of([*stored, *current])
    for place in sorted(then.keys() & now.keys()):
        a, b = round_digits(then[place]), round_digits(now[place])
        if a != b:
            rounding = ROUNDING * max(abs(a), abs(b)) if is_exact else LOWER_ROUNDING * max(map(abs, stored))
            deviation = abs(b - a) / max(abs(a), abs(b))
            return Beginning(place + 1, a, b, deviation, abs(a - b) <= max(rounding, 1.5 * unit))
    return None


def share_of_range(stored: Sequence[float], current: Sequence[float]) -> float:
    """The largest difference of two series, relative to the range of the first; infinite if that is 0."""
    largest = max((abs(b - a) for a, b in zip(stored, current, strict=False)), default=0.0)
    return largest / spread if (spread := max(stored) - min(stored)) > 0 else math.inf if largest else 0.0


def steps_to_move(losses: Sequence[float]) -> int:
    """How many of these losses make a curve whose updates have changed it far enough to be judged."""
    begin = statistics.fmean(losses[:_AT_BEGIN])
    for steps in range(FEWEST_CURVE_STEPS, min(MOST_CURVE_STEPS, len(losses))):
        change = statistics.fmean(losses[steps - _AT_END : steps]) - begin
        if abs(change) >= WANTED_MOVE * abs(begin):
            return steps
    return min(MOST_CURVE_STEPS, len(losses))


def unit_of(values: Sequence[float]) -> float:
    """One unit of the last digit that any of these has: 0.01 for losses that are printed with two decimals."""
    digits = [Decimal(repr(round_digits(value))).normalize().as_tuple().exponent for value in values if value]
    return min((10.0 ** int(exponent) for exponent in digits), default=1.0)


def stands_still(values: Sequence[float]) -> str:
    """Why a curve shows no learning, in a clause, or "" if its values differ by more than rounding."""
    peak = max(map(abs, values), default=0.0) or 1.0
    if len(values) < 2 or max(values) / peak - min(values) / peak > FLOOR:
        return ""
    return (
        f"the losses do not change: all {len(values)} are {values[0]:g}. This training does not learn, or the digits "
        "hide it, so no fault of it would show"
    )


def hides(stored: Sequence[float]) -> str:
    """Why a curve shows little, in a clause, or "" if its digits are fine enough for how far it changes."""
    unit = unit_of(stored)
    units = (max(stored) - min(stored)) / unit if unit else math.inf
    if len(stored) < 2 or units >= FEWEST_UNITS:
        return ""
    return (
        f"{len(set(stored))} of its {len(stored)} losses differ, in steps of {unit:g}: the whole range is "
        f"{units:.0f} such steps, so a fault in the updates would not show"
    )


@dataclass(frozen=True, slots=True)
class Disagreement:
    """How the curves of launches of the same code differ, if they differ too much for a golden curve.

    Attributes:
        starts_at: first value, from 1, at which a launch differs from the first one by more than rounding.
    """

    starts_at: int
    largest: float

    def describe(self, labels: Sequence[str]) -> str:
        """Say in a clause how they differ, with the line that fixes it."""
        by = f"by up to {self.largest:.1e}"
        if self.starts_at > 1:
            return f"differ {by} from value {self.starts_at} on: {_PARTLY}"
        return f"differ {by} from the first value on: {_SEED_OF_A_SCRIPT if labels else _SEED}"


_SEED_OF_A_SCRIPT = (
    "seed it: call torch.manual_seed before the model is made; where the script takes the seed as an argument, give it "
    'args=["--seed", "{seed}"], or ["seed={seed}"]'
)
_SEED = (
    "seed it: torch.manual_seed(rank.seed) before the model is made; a script gets its seed by "
    'args=["--seed", "{seed}"]'
)
ARITHMETIC = (
    "this training does not repeat, as deterministic algorithms are off (make_deterministic turns them on); it is "
    "judged by its other numbers"
)
_PARTLY = (
    "likely a race (a collective that nobody waits for, a buffer used too early), data or dropout in an order that is "
    "not seeded, or arithmetic that does not repeat"
)


def disagreement(launches: Sequence[Sequence[float]], *, rtol: float = RTOL) -> Disagreement | None:
    """How launches of a training differ; None if they agree but for rounding, or there is one.

    Weights, data or dropout without a seed show in the first values. Kernels with atomic additions differ by rounding
    there, and by less than the tolerance later.
    """
    steps = min(map(len, launches), default=0)
    found = [deviations(launches[0][:steps], series[:steps]) for series in launches[1:]] if steps else []
    largest = max((d for of_launch in found for d in of_launch), default=0.0)
    starts = [at for of_launch in found if (at := _first_beyond(of_launch, ROUNDING)) is not None]
    if not starts or (min(starts) > 1 and largest <= rtol):
        return None
    return Disagreement(min(starts), largest)


def _first_beyond(found: Sequence[float], limit: float) -> int | None:
    return next((step for step, deviation in enumerate(found, 1) if deviation > limit), None)
