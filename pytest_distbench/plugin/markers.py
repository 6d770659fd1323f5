"""The markers of a test, read into its world sizes and one requirement; ``gpu_marker`` has what GPUs it needs."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import pytest

from pytest_distbench.errors import ConfigurationError, show
from pytest_distbench.plugin.gpu_marker import gpu_need
from pytest_distbench.records.bound_text import BoundValue, terms_of
from pytest_distbench.records.choices import LONGEST_TIMEOUT_S, MOST_LAUNCHES, MOST_TOLERANCE, TOLERANCE_WANTED
from pytest_distbench.units import as_float, as_int, convert, parse_quantity

if TYPE_CHECKING:
    from pytest_distbench.run.settings import Settings

KEYWORDS = {
    "world_size": ("min", "max"),
    "gpu": ("min_memory", "capability", "link"),
    "cpu": (),
    "full": (),
    "distbench": ("timeout", "launches", "tolerance", "metrics", "bounds", "xfail_perf", "fake_rank", "takes"),
}


LONG_FORM = "not run: a long form: give --distbench-full"


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirement:
    """What a test's markers ask for. None: the run's setting applies.

    Attributes:
        timeout_s: seconds that one launch may take.
        launches: process groups that are judged first.
        tolerance: accepted change towards worse, as a fraction, or one per metric name.
        metrics: names of the metrics that are judged; the others are only shown.
        bounds: limits that need no baseline, by a metric's key or its name: docs/bounds.md.
        xfail_perf: reason why a regression is expected.
        fake_rank: the rank that one process stands for on the backend ``fake``; negative: from the end.
        takes_s: what the test takes with one launch of each case, for the estimate before the first run.
    """

    timeout_s: float | None = None
    launches: int | None = None
    tolerance: float | Mapping[str, float] | None = None
    metrics: tuple[str, ...] | None = None
    bounds: Mapping[str, BoundValue] | None = None
    xfail_perf: str | None = None
    fake_rank: int | None = None
    takes_s: float | None = None


@dataclass(frozen=True, slots=True)
class Size:
    """One world size of a test, and why it does not run, if it does not."""

    ranks: int
    not_run: str = ""


class UnfitClass(ConfigurationError):
    """The attribute ``world_size`` of a class of tests is no number of ranks: an error of those tests alone."""


def sizes(markers: Iterable[pytest.Mark], settings: Settings, owner: type | None = None) -> list[Size]:
    """The world sizes a test runs at, and those it would have run at with more ranks.

    Args:
        markers: of the test, the closest first.
        settings: of the run.
        owner: the test's class, whose attribute ``world_size``, a number or a list, counts without a marker.

    Raises:
        ConfigurationError: a marker's arguments cannot be used.
        UnfitClass: the attribute cannot.
    """
    marks = list(markers)
    wanted, least, most = _world_size(marks)
    if not any(m.name == "world_size" for m in marks):
        wanted = sizes_of_class(owner)
    names = {m.name for m in marks}
    if {"gpu", "cpu"} <= names:
        raise ConfigurationError("@pytest.mark.gpu and @pytest.mark.cpu: a test is on the one or on the other")
    need = gpu_need(marks)
    needs_gpu = "gpu" in names and not settings.gpu
    given = settings.world_sizes

    def size(ranks: int, obstacle: str = "") -> Size:
        if needs_gpu:
            return Size(ranks, "not run: needs a GPU: give --gpu")
        return Size(ranks, obstacle or need.obstacle(settings.gpus, ranks))

    if wanted:
        if not any(least <= n <= most for n in wanted):
            raise ConfigurationError(f"@pytest.mark.world_size: none of {_list(wanted)} lies within min and max")
        return [size(n, _obstacle(n, settings)) for n in wanted if least <= n <= most]
    fitting = [n for n in given if least <= n <= most]
    if settings.only_these_sizes:
        return [size(n) for n in fitting] or [
            Size(given[-1], f"not run: wants {_range(least, most)} ranks, {_list(given)} given")
        ]
    if settings.largest < least:
        return [Size(int(least), f"not run: needs {int(least)} ranks, {settings.largest} given")]
    return [size(int(min(settings.largest, most)))]


def sizes_of_class(owner: type | None) -> tuple[int, ...]:
    """The attribute ``world_size`` of a test's class; none where it has none, or computes it for each object.

    Raises:
        UnfitClass: it is no number of ranks, and no list of such.
    """
    value = getattr(owner, "world_size", None)
    if value is None or isinstance(value, property) or callable(value):
        return ()
    numbers = _sizes(value if isinstance(value, list | tuple) else (value,))
    if not numbers:
        of = next(c for c in cast(type, owner).__mro__ if "world_size" in vars(c))
        file = getattr(sys.modules.get(of.__module__), "__file__", None) or of.__module__
        raise UnfitClass(
            f"{of.__qualname__}.world_size={show(value)} ({file}); wanted a number of ranks, or a list of such"
        )
    return tuple(dict.fromkeys(numbers))


def requirement(markers: Iterable[pytest.Mark]) -> Requirement:
    """The ``distbench`` marker of a test; of several, the closest one wins keyword by keyword.

    Raises:
        ConfigurationError: unknown keyword or unusable value.
    """
    options: dict[str, object] = {}
    for mark in markers:
        _check_keywords(mark)
        if mark.name == "distbench":
            if mark.args:
                raise ConfigurationError(f"@pytest.mark.distbench takes keywords only, found {mark.args!r}")
            options = {**mark.kwargs, **options}
    return Requirement(
        timeout_s=_timeout(options.get("timeout")),
        launches=_launches(options.get("launches")),
        tolerance=_tolerance(options.get("tolerance")),
        metrics=_metrics(options.get("metrics")),
        bounds=_bounds(options.get("bounds")),
        xfail_perf=_reason(options.get("xfail_perf")),
        fake_rank=_rank(options.get("fake_rank")),
        takes_s=_takes(options.get("takes")),
    )


def _check_keywords(mark: pytest.Mark) -> None:
    known = KEYWORDS.get(mark.name)
    unknown = sorted(set(mark.kwargs) - set(known or ())) if known is not None else []
    if mark.name in ("gpu", "cpu", "full") and mark.args:
        raise ConfigurationError(f"@pytest.mark.{mark.name} takes keywords only, found {mark.args!r}")
    if unknown:
        allowed = ", ".join(known or ()) or "none"
        raise ConfigurationError(
            f"@pytest.mark.{mark.name}: unknown keyword {', '.join(unknown)}; known are: {allowed}"
        )


def _world_size(marks: list[pytest.Mark]) -> tuple[tuple[int, ...], float, float]:
    for mark in marks:
        if mark.name != "world_size":
            continue
        _check_keywords(mark)
        least, most = mark.kwargs.get("min", 1), mark.kwargs.get("max", float("inf"))
        if not _sizes([*mark.args, *mark.kwargs.values()]):
            raise ConfigurationError(
                f"@pytest.mark.world_size: wants numbers of ranks, found {(*mark.args, *mark.kwargs.items())!r}"
            )
        if least > most:
            raise ConfigurationError(f"@pytest.mark.world_size: min={least} is more than max={most}")
        return tuple(dict.fromkeys(_sizes(mark.args))), least, most
    return (), 1, float("inf")


def _sizes(numbers: Sequence[object]) -> tuple[int, ...]:
    """Numbers of ranks; none where one of them is no such number."""
    found = tuple(n for n in map(as_int, numbers) if n is not None and n >= 1)
    return found if len(found) == len(numbers) else ()


def _obstacle(ranks: int, settings: Settings) -> str:
    if settings.only_these_sizes and ranks not in settings.world_sizes:
        return f"not run: {ranks} ranks are not among the given {_list(settings.world_sizes)}"
    if ranks > settings.largest:
        return f"not run: needs {ranks} ranks, {settings.largest} given"
    return ""


def _timeout(value: object) -> float | None:
    if value is None:
        return None
    seconds = as_float(value)
    if seconds is None or not 0 < seconds <= LONGEST_TIMEOUT_S:
        raise ConfigurationError(
            f"@pytest.mark.distbench: timeout={value!r}; wanted seconds, above 0 and at most {LONGEST_TIMEOUT_S:g}"
        )
    return seconds


def _launches(value: object) -> int | None:
    if value is None:
        return None
    number = as_int(value)
    if number is None or not 1 <= number <= MOST_LAUNCHES:
        raise ConfigurationError(
            f"@pytest.mark.distbench: launches={value!r}; wanted a whole number from 1 to {MOST_LAUNCHES}"
        )
    return number


def _rank(value: object) -> int | None:
    rank = as_int(value)
    if value is None or rank is not None:
        return rank
    raise ConfigurationError(
        f"@pytest.mark.distbench: fake_rank={value!r}; wanted a rank, 0 or more, or -1 for the last"
    )


def _takes(value: object) -> float | None:
    if value is None:
        return None
    try:
        amount, unit = parse_quantity(value) if isinstance(value, str) else (as_float(value), "s")
        seconds = None if amount is None else convert(amount, unit, "s")
    except ConfigurationError:
        seconds = None
    if seconds is None or not 0 < seconds <= LONGEST_TIMEOUT_S:
        raise ConfigurationError(
            f"@pytest.mark.distbench: takes={value!r}; wanted how long the test takes: '2 min', '40 s' or a number of "
            "seconds, above 0 and at most a week"
        )
    return seconds


def _tolerance(value: object) -> float | Mapping[str, float] | None:
    if value is None:
        return None
    given = value if isinstance(value, Mapping) else {"all": value}
    found = {
        name: fraction
        for name, v in given.items()
        if (fraction := as_float(v)) is not None and 0 <= fraction <= MOST_TOLERANCE
    }
    if found and len(found) == len(given) and all(isinstance(name, str) and name.strip() for name in found):
        return found if isinstance(value, Mapping) else found["all"]
    raise ConfigurationError(
        f"@pytest.mark.distbench: tolerance={value!r}; wanted {TOLERANCE_WANTED}, or one per metric name"
    )


def _metrics(value: object) -> tuple[str, ...] | None:
    if value is None:
        return None
    if not isinstance(value, (list, tuple)) or not value or not all(isinstance(v, str) for v in value):
        raise ConfigurationError(f"@pytest.mark.distbench: metrics={value!r}; wanted a list of metric names")
    return tuple(value)


def _bounds(value: object) -> Mapping[str, BoundValue] | None:
    if value is None:
        return None
    if not isinstance(value, Mapping) or not value or not all(isinstance(key, str) for key in value):
        example = {"latency[message_bytes=4096]": "200us"}
        raise ConfigurationError(f"@pytest.mark.distbench: bounds={value!r}; wanted a dict such as {example}")
    for key, given in value.items():
        try:
            terms_of(given)
        except ConfigurationError as error:
            raise ConfigurationError(f"@pytest.mark.distbench: bounds[{key!r}]: {error}") from None
    return value


def _reason(value: object) -> str | None:
    if value is None or (isinstance(value, str) and value):
        return value
    raise ConfigurationError(f"@pytest.mark.distbench: xfail_perf={value!r}; wanted the reason as text")


def _range(least: float, most: float) -> str:
    return f"at least {least:g}" if most == float("inf") else f"{least:g} to {most:g}"


def _list(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, numbers))
