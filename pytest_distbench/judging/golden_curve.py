"""Golden curves: where a series of the same seed leaves the stored one, by how much, and what that suggests.

A seeded training repeats its losses bit for bit under the same software, world size and thread count. Other
instruction sets and thread counts round otherwise: up to 1e-6 in the first 25 steps, while a gross fault moves the loss
by 8e-3 or more at step 10. Both numbers were measured on trainings of 60 to 120 steps, see docs/convergence.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

RTOL = 1e-3
"""Accepted relative deviation: a thousand times other hardware's rounding, an eighth of the weakest gross fault."""

ROUNDING = 1e-5
"""Deviations up to this may be other rounding: they do not tell at which step a training went another way."""

DIGITS = 9
"""Significant digits that tell any two float32 apart; curves are stored and compared with so many."""


@dataclass(frozen=True, slots=True)
class Departure:
    """How a curve differs from the stored one.

    Attributes:
        starts_at: the first step, from 1, that differs by more than rounding; None where none does.
        exceeds_at: the first step beyond the tolerance; None where none is.
        largest: largest relative deviation.
        is_identical: equal in every stored digit.
    """

    starts_at: int | None
    exceeds_at: int | None
    largest: float
    is_identical: bool

    def tell(self, beside: Sequence[str]) -> str:
        """One clause: where and by how much.

        Args:
            beside: what a script wrote beside each value, if the curve was read: its steps have other numbers perhaps.
        """
        at = self.starts_at or self.exceeds_at
        where = f"value {at} ({beside[at - 1]})" if at and beside else f"step {at}"
        return f"departs at {where}, deviates by up to {self.largest:.1e}"

    def suggest(self, beside: Sequence[str]) -> str:
        """What a departure at this step usually comes from: the loss of step n has seen n - 1 updates.

        Args:
            beside: as for :meth:`tell`; how many updates a script makes between two values it shows is not known.
        """
        match self.starts_at or self.exceeds_at:
            case None:
                return ""
            case 1 if beside and beside[0].startswith("epoch"):
                return "in its first epoch: initialisation, data and sharding, the forward pass, or an update"
            case int(at) if beside and at > 1:
                return "the value before agreed: an update since then, or its data"
            case 1:
                return (
                    "before any update: seed, initialisation or its broadcast, data, batch size and sharding, the "
                    "forward pass"
                )
            case 2:
                return (
                    "by the first update: gradient averaging or synchronisation, batch size or accumulation, learning "
                    "rate or weight decay"
                )
            case 3:
                return (
                    "by the second update: gradients that are not cleared (zero_grad), momentum or other optimizer "
                    "state, or the learning rate's schedule"
                )
            case _:
                return "after updates that agreed: a schedule, a later batch, clipping, or a change too small to see"


def round_digits(value: float) -> float:
    """The value as it is stored, with :data:`DIGITS` significant digits."""
    return float(f"{value:.{DIGITS}g}")


def deviations(stored: Sequence[float], current: Sequence[float]) -> list[float]:
    """Relative deviation per step, ``|current - stored| / |stored|``.

    A stored value below a millionth of the largest counts as that millionth: a curve that touches zero has no ratio
    there.
    """
    peak = max(map(abs, [*stored, *current]))
    return [
        0.0 if round_digits(a) == round_digits(b) else abs(b / peak - a / peak) / max(abs(a / peak), 1e-6)
        for a, b in zip(stored, current, strict=True)
    ]


def compare(stored: Sequence[float], current: Sequence[float], *, rtol: float, rounding: float) -> Departure:
    """Compare a curve with the stored one of the same seed.

    Args:
        stored: golden curve.
        current: as many values.
        rtol: accepted relative deviation of each step.
        rounding: deviations up to this do not mark the step where the departure starts; 0 where the curve is known
            to repeat bit for bit.
    """
    found = deviations(stored, current)
    return Departure(
        starts_at=_first_beyond(found, rounding),
        exceeds_at=_first_beyond(found, rtol),
        largest=max(found),
        is_identical=max(found) == 0.0,
    )


@dataclass(frozen=True, slots=True)
class Disagreement:
    """How the curves of launches of the same code differ, where they differ too much for a golden curve.

    Attributes:
        starts_at: the first value, from 1, at which one of them leaves the first launch's by more than rounding.
        largest: largest relative deviation.
    """

    starts_at: int
    largest: float

    def tell(self, beside: Sequence[str]) -> str:
        """One clause, with the line that mends it."""
        by = f"by up to {self.largest:.1e}"
        if self.starts_at > 1:
            return f"differ {by} from value {self.starts_at} on: {_PARTLY}"
        return f"differ {by} from the first value on: {_SEED_OF_A_SCRIPT if beside else _SEED}"

    def tell_of_arithmetic(self) -> str:
        """The same where nothing makes the device add in the same order each time."""
        return f"differ by up to {self.largest:.1e} from value {self.starts_at} on: {_ARITHMETIC}"


_SEED_OF_A_SCRIPT = (
    'seed it: give the script args=["--seed", "{seed}"], or ["seed={seed}"] where it takes such ones, and let it call '
    "torch.manual_seed before the model is made"
)
_SEED = (
    "seed it: torch.manual_seed(rank.seed) before the model is made; a script gets its seed by "
    'args=["--seed", "{seed}"]'
)
_ARITHMETIC = (
    "this training does not repeat: deterministic algorithms are off (make_deterministic turns them on); what it "
    "comes to is judged by its other numbers"
)
_PARTLY = "the order of the data or dropout is not seeded, or the arithmetic does not repeat"


def disagreement(launches: Sequence[Sequence[float]], *, rtol: float = RTOL) -> Disagreement | None:
    """How launches of a training leave one another; None where they agree, but for rounding, or there is one.

    Weights, data or dropout that nobody seeded show in the first values. Kernels with atomic additions differ by
    rounding there, and by less than the tolerance later.
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
