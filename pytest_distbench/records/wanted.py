"""Values and limits that a user may choose, their defaults, and the check of an argument.

Options, markers, tests, plans, ranks and commands share them. Needs no msgspec: options are declared in every run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar, get_args

from pytest_distbench.errors import ConfigurationError, show
from pytest_distbench.units import as_float, as_int, as_share

Update = Literal["new", "failed", "changed", "all"]

UPDATES: tuple[Update, ...] = get_args(Update)

Confirm = Literal["auto", "always", "off"]
"""Comparisons with a baseline that are confirmed by interleaved A/B with its baseline commit."""

CONFIRMS: tuple[Confirm, ...] = get_args(Confirm)

CONFIRM_BUDGET_S = 60.0  # seconds of a run that go into confirmation

NoBaseline = Literal["warn", "fail", "skip"]  # what a case without a baseline does to its test

NO_BASELINE: tuple[NoBaseline, ...] = get_args(NoBaseline)

TracedCases = Literal["regressed", "all", "regressed:ranks", "all:ranks"]

TRACED_CASES: tuple[TracedCases, ...] = get_args(TracedCases)

Mode = Literal["per-iteration", "batch", "graph"]
"""Extent of one timing: an iteration, a batch of iterations, or replays of a CUDA graph."""

MODES: tuple[Mode, ...] = get_args(Mode)

OverRanks = Literal["max", "mean"]  # the timing of an iteration over its ranks: the slowest rank's, or the mean

LONG_BASELINE_LAUNCHES = 3  # the most launches in an update of a kind whose launches may take a minute each

RUN_LAUNCHES = 10  # launches of a case at most, while its answer is open

DEFAULT_TOLERANCE = 0.1  # accepted change from a baseline for the worse, as a fraction, by default

PAIRED_TOLERANCE = 0.05
"""A slowdown below this fails no A/B: two runs of the same code differ by a few percent in their memory layout, which
pairs do not cancel. Tolerances of baselines, which allow for environment shift, do not apply."""

MOST_TOLERANCE = 5.0  # a number that may become six times as large is not judged; one above is meant in per cent

TOLERANCE_WANTED = "a fraction from 0 to 5, such as 0.05 or 5%"

ANY_PLATFORM = "any"
"""Platform of the ``fake`` backend's baselines: what a program sends does not depend on the hardware it runs on."""

LARGEST_WHOLE = 2**53  # up to here JSON's numbers, which are float64, hold every whole number

MOST_LAUNCHES = 1000  # launches of a case. More, or more seeds, are a typing error.

SEEDS = range(-(2**63), 2**64)  # what ``torch.manual_seed`` takes

LONGEST_TIMEOUT_S = 7 * 86400.0  # of one launch: longer than this is a typing error


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Wanted(Generic[T]):
    """What a value of an option or argument must be, and how it is converted.

    Attributes:
        words: text that follows "wanted" in the error.
        take: converts a value to what is used; returns None if it is not of this kind.
    """

    words: str
    take: Callable[[Any], T | None]

    def __call__(self, name: str, value: object) -> T:
        """Return the value of an argument as it is used.

        Raises:
            ConfigurationError: it is not of this kind; the message has its name, itself and what was wanted.
        """
        found = self.take(value)
        if found is None:
            raise ConfigurationError(f"{name}={show(value)}; wanted {self.words}")
        return found

    def plain(self) -> Wanted[T]:
        """The same check for Python's own numbers alone, as numpy's cannot be sent to another process."""
        return Wanted(self.words, lambda value: self.take(value) if isinstance(value, int | float) else None)


def whole(least: int, most: int = LARGEST_WHOLE, *, read: Callable[[Any], int | None] = as_int) -> Wanted[int]:
    """A whole number; numpy's and torch's count as Python's, ``True`` and ``2.0`` do not."""

    def take(value: object) -> int | None:
        found = read(value)
        return found if found is not None and least <= found <= most else None

    return Wanted(f"a whole number of at least {least} and at most {most}", take)


def number(
    *,
    least: float = -math.inf,
    above: float = -math.inf,
    most: float = math.inf,
    read: Callable[[Any], float | None] = as_float,
) -> Wanted[float]:
    """A finite number; numpy's and torch's count as Python's, ``True`` and texts do not."""
    limits = {"above": above, "of at least": least, "at most": most}
    allowed = ", ".join(f"{side} {limit:g}" for side, limit in limits.items() if math.isfinite(limit))

    def take(value: object) -> float | None:
        found = read(value)
        fits = found is not None and math.isfinite(found) and found > above and least <= found <= most
        return found if fits else None

    return Wanted(f"a finite number {allowed}".rstrip(), take)


def seconds(*, least: float = -math.inf, above: float = -math.inf) -> Wanted[float]:
    limit = f"above {above:g}" if math.isfinite(above) else f"at least {least:g}"
    kind = number(least=least, above=above, most=LONGEST_TIMEOUT_S)
    return Wanted(f"seconds, {limit} and at most {LONGEST_TIMEOUT_S:g}", kind.take)


FRACTION = Wanted(TOLERANCE_WANTED, number(least=0, most=MOST_TOLERANCE, read=as_share).take)


def _tolerance(value: object) -> float | dict[str, float] | None:
    if not isinstance(value, Mapping):
        return FRACTION.take(value)
    names = [name for name in value if isinstance(name, str) and name.strip()]
    found = {name: fraction for name in names if (fraction := FRACTION.take(value[name])) is not None}
    return found if found and len(found) == len(value) else None


TOLERANCE: Wanted[float | dict[str, float]] = Wanted(f"{TOLERANCE_WANTED}, or one per metric name", _tolerance)


def text(*, longest: int | None = None, without: str = "", may_be_empty: bool = False) -> Wanted[str]:
    def take(value: object) -> str | None:
        is_text = isinstance(value, str) and value.isprintable() and len(value) <= (longest or len(value))
        is_short_of_nothing = is_text and (bool(str(value).strip()) or (may_be_empty and not value))
        return str(value) if is_short_of_nothing and not set(str(value)) & set(without) else None

    barred, limit = (
        (f" without {' '.join(without)}" if without else ""),
        (f" of at most {longest} characters" if longest else ""),
    )
    return Wanted(f"printable text{barred}{limit}{'' if may_be_empty else ', not empty'}", take)


def one_of(allowed: Iterable[str]) -> Wanted[str]:
    known = list(allowed)
    words = f"one of {', '.join(known)}"
    return Wanted(words, lambda value: value if isinstance(value, str) and value in known else None)


YES_OR_NO: Wanted[bool] = Wanted("True or False", lambda value: value if isinstance(value, bool) else None)

NAMED: Wanted[Mapping[str, Any]] = Wanted(
    "a dict whose keys are text",
    lambda value: value if isinstance(value, Mapping) and all(isinstance(key, str) for key in value) else None,
)
