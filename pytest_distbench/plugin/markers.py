"""The markers of a test, read into its world sizes, what is chosen to be around its launches, and one requirement."""

from __future__ import annotations

import contextlib
import math
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import pytest

from pytest_distbench.errors import ConfigurationError, DistbenchWarning, show
from pytest_distbench.plugin.names import RANKS
from pytest_distbench.plugin.settings import CHOICES, MARKERS
from pytest_distbench.records.metric import BoundValue, terms_of
from pytest_distbench.records.wanted import MOST_LAUNCHES, NAMED, TOLERANCE, Wanted, one_of, seconds, text, whole
from pytest_distbench.units import as_int, format_quantity, parse_bytes

if TYPE_CHECKING:
    from pytest_distbench.machine.gpus import Gpus
    from pytest_distbench.run.request import Settings


LINKS = {"nvlink": "NVLink", "xgmi": "XGMI", "p2p": "peer access"}
"""What may be wanted between any two GPUs of a test: ``p2p`` is NVLink, XGMI, or PCIe with peer access."""

TOLD_SHARE = 0.93
"""Of the memory a product is sold with, the least that its driver tells: ECC takes a sixteenth where it is kept in the
same memory (A10, L40S, T4: 15 GiB of 16), firmware and tables take the rest (H100: 79.65 GiB of 80)."""

_LEAST_MEMORY = 2**20  # fewer bytes are a number without its unit

_CAPABILITY = re.compile(r"(\d+)\.(\d+)")


def gpu_obstacle(
    gpus: Gpus, ranks: int, *, min_memory: int = 0, capability: tuple[int, int] = (0, 0), link: str = ""
) -> str:
    """Why the first so many GPUs will not do; empty: they do. What the driver does not tell will not do.

    The memory is in bytes, as products are sold: :data:`TOLD_SHARE` of them is enough. The compute capability is its
    major and minor number, and the link between any two of them a key of :data:`LINKS`.
    """
    chosen = gpus.visible[:ranks]
    for gpu in chosen:
        if min_memory and (gpu.memory_bytes is None or gpu.memory_bytes < TOLD_SHARE * min_memory):
            found = "reports none" if gpu.memory_bytes is None else f"has {format_quantity(gpu.memory_bytes, 'B')}"
            return f"not run: needs GPUs with {format_quantity(min_memory, 'B')}; {gpu.label} {found}"
        if capability > (_parse(gpu.capability) or (0, 0)):
            wanted = ".".join(map(str, capability))
            return f"not run: needs compute capability {wanted}; {gpu.label} has {gpu.capability or 'none known'}"
    for a, first in enumerate(chosen):
        for b, second in enumerate(chosen[:a]):
            there = gpus.links[a][b] if a < len(gpus.links) else ""
            kinds = ("nvlink", "xgmi") if link == "p2p" else (link,)
            if not there.startswith(kinds) and not (link == "p2p" and "-p2p" in there):
                return (
                    f"not run: needs {LINKS[link]} between its GPUs; "
                    f"{second.label} and {first.label} have {there or 'no link that is known'}"
                )
    return ""


def own_markers(node: pytest.Item) -> Iterator[pytest.Mark]:
    """Our markers of a test, the closest first, as ``gpu`` and not ``distbench_gpu``: both spellings are one marker.

    The short names may be somebody else's, as the ini key ``distbench_short_options`` says.
    """
    for mark in node.iter_markers():
        name = mark.name.removeprefix("distbench_")
        if name != mark.name and name in MARKERS:
            yield getattr(pytest.mark, name).with_args(*mark.args, **mark.kwargs).mark
        elif name == "distbench" or node.config.getini("distbench_short_options"):
            yield mark


def options_of(markers: Iterable[pytest.Mark], name: str) -> dict[str, Any]:
    """What the markers of a name ask for; of several, the closest one wins keyword by keyword."""
    options: dict[str, object] = {}
    for mark in markers:
        declared = re.match(r"\((.*)\): ", MARKERS.get(mark.name, ""))  # as it is declared to pytest
        known = re.findall(r"(\w+)=", declared[1]) if declared else []
        unknown = sorted(set(mark.kwargs) - set(known)) if mark.name in MARKERS else []
        called = f"@pytest.mark.{mark.name}"
        if mark.name in ("gpu", "cpu", "full", "distbench") and mark.args:
            raise ConfigurationError(f"{called} takes keywords only, found {mark.args!r}{_if_yours(mark.name)}")
        if unknown:
            allowed = (", ".join(known) or "none") + _if_yours(mark.name)
            raise ConfigurationError(f"{called}: unknown keyword {', '.join(unknown)}; known are: {allowed}")
        if mark.name == name:
            options = {**mark.kwargs, **options}
    return {
        keyword: wanted(f"@pytest.mark.{name}: {keyword}", options[keyword])
        for keyword, wanted in WANTED[name].items()
        if options.get(keyword) is not None
    }


def _memory(value: object) -> int | None:
    found = as_int(value)
    if isinstance(value, str):
        with contextlib.suppress(ConfigurationError):
            found = parse_bytes(value)
    return found if found is not None and found >= _LEAST_MEMORY else None


def _parse(text: str) -> tuple[int, int] | None:
    found = _CAPABILITY.fullmatch(text)
    return (int(found[1]), int(found[2])) if found else None


def _metrics(value: object) -> tuple[str, ...] | None:
    is_list = isinstance(value, list | tuple) and value and all(isinstance(name, str) for name in value)
    return tuple(value) if is_list else None  # type: ignore[arg-type] # it is one


_BOUNDS = {"latency[message_bytes=4096]": "200us"}
WANTED: dict[str, dict[str, Wanted[Any]]] = {
    "gpu": {
        "min_memory": Wanted("a size such as '40GiB', or at least 1048576 bytes", _memory),
        "capability": Wanted("a text such as '9.0'", lambda value: _parse(value) if isinstance(value, str) else None),
        "link": one_of(LINKS),
    },
    "distbench": {
        "timeout": seconds(above=0),
        "launches": whole(1, MOST_LAUNCHES),
        "tolerance": TOLERANCE,
        "metrics": Wanted("a list of metric names", _metrics),
        "bounds": Wanted(f"a dict such as {_BOUNDS}", lambda value: NAMED.take(value) or None),
        "xfail_perf": Wanted("the reason as text", text().take),
        "advisory": Wanted("the reason as text", text().take),
        "fake_rank": Wanted("a rank, 0 or more, or -1 for the last", as_int),
    },
}
"""The keywords of markers, by the names of those."""


def chosen_by(markers: Iterable[pytest.Mark]) -> dict[str, str]:
    """What markers choose to be around the launches of a test, by name; of several the closest.

    Raises:
        ConfigurationError: it is none; the message says what is wanted.
    """
    found: dict[str, str] = {}
    for mark in markers:
        if mark.name in CHOICES and mark.name not in found:
            try:
                found[mark.name] = CHOICES[mark.name].of_marker(mark)
            except ConfigurationError as error:
                raise ConfigurationError(f"@pytest.mark.{mark.name}: {error}{_if_yours(mark.name)}") from None
    return found


_LEFT_OUT = pytest.StashKey[str]()


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirement:
    """What a test's markers ask for. None: the run's setting applies.

    Attributes:
        timeout: seconds that one launch may take.
        launches: launches that are judged first.
        tolerance: accepted change for the worse: 0.1, "10 %", or one per metric name.
        metrics: names of the metrics that are judged; the others are shown only.
        bounds: bounds by a metric's key or name; they need no baseline.
        xfail_perf: reason why a regression is expected.
        advisory: reason why its verdicts fail no test.
        fake_rank: the rank that the backend ``fake`` stands for; negative: from the end.
    """

    timeout: float | None = None
    launches: int | None = None
    tolerance: float | Mapping[str, float] | None = None
    metrics: tuple[str, ...] | None = None
    bounds: Mapping[str, BoundValue] | None = None
    xfail_perf: str | None = None
    advisory: str | None = None
    fake_rank: int | None = None


class UnfitClass(ConfigurationError):
    """The attribute ``world_size`` of a class of tests is no number of ranks: an error of those tests alone."""


def sizes(item: pytest.Item, settings: Settings, owner: type | None = None) -> dict[int, str]:
    """The world sizes a test runs at, and those it would have run at with more ranks; with why it does not, or "".

    All of its markers are checked; the closest is the first. The attribute ``world_size`` of its class, a number or a
    list, counts without a marker.
    """
    marks = list(own_markers(item))
    requirement(marks)
    chosen_by(marks)
    names = {m.name for m in marks}
    wanted, least, most = _world_size(marks)
    if "world_size" not in names:
        wanted = sizes_of_class(owner)
    if {"gpu", "cpu"} <= names:
        raise ConfigurationError("@pytest.mark.gpu and @pytest.mark.cpu: a test is on the one or on the other")
    need, given = options_of(marks, "gpu"), settings.world_sizes
    listed = ", ".join(map(str, given))

    def obstacle(ranks: int, why: str = "") -> str:
        if "gpu" in names and not settings.gpu:
            return "not run: needs a GPU: give --gpu"
        return why or gpu_obstacle(settings.gpus, ranks, **need)

    if wanted:
        if not any(least <= n <= most for n in wanted):
            named = ", ".join(map(str, wanted))
            raise ConfigurationError(f"@pytest.mark.world_size: none of {named} lies within min and max")
        found = {}
        for ranks in (n for n in wanted if least <= n <= most):
            why = f"not run: needs {ranks} ranks, {settings.largest} given" if ranks > settings.largest else ""
            if settings.only_these_sizes and ranks not in given:
                why = f"not run: {ranks} ranks are not among the given {listed}"
            found[ranks] = obstacle(ranks, why)
        return found
    if settings.only_these_sizes:
        span = f"at least {least:g}" if most == math.inf else f"{least:g} to {most:g}"
        return {n: obstacle(n) for n in given if least <= n <= most} or {
            given[-1]: f"not run: wants {span} ranks, {listed} given"
        }
    if settings.largest < least:
        return {int(least): f"not run: needs {int(least)} ranks, {settings.largest} given"}
    ranks = int(min(settings.largest, most))
    return {ranks: obstacle(ranks)}


def sizes_of_class(owner: type | None) -> tuple[int, ...]:
    """The attribute ``world_size`` of a test's class; none where it has none, or computes it for each object."""
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
    """The ``distbench`` marker of a test."""
    given = options_of(markers, "distbench")
    for key, bound in given.get("bounds", {}).items():
        try:
            terms_of(bound)
        except ConfigurationError as error:
            raise ConfigurationError(f"@pytest.mark.distbench: bounds[{key!r}]: {error}") from None
    return Requirement(**given)


def choose_ranks(item: pytest.Item, settings: Settings) -> None:
    """Have a test that pytest cannot parametrize run on the most ranks that its markers and the run allow, if any.

    Such tests are methods of unittest.TestCase.
    """
    wanted = sizes(item, settings, getattr(item, "cls", None))
    running = sorted(ranks for ranks, not_run in wanted.items() if not not_run)
    last = [*wanted][-1]
    if not running:
        item.add_marker(pytest.mark.skip(reason=wanted[last]))
    item.stash[RANKS] = running[-1] if running else last
    left_out = [f"on {ranks} ranks" for ranks in running[:-1]] + [f"with {name}" for name in settings.backends[1:]]
    if left_out:
        ours = f"on {item.stash[RANKS]} ranks with {settings.backends[0]}"
        item.stash[_LEFT_OUT] = f"{ours}, and not {', not '.join(left_out)}"


def warn_of_left_out(item: pytest.Item) -> None:
    """Say at which sizes, and with which backends, such a test does not run; as part of the test."""
    if _LEFT_OUT in item.stash:
        item.warn(
            DistbenchWarning(
                f"pytest cannot parametrize a method of unittest.TestCase: it runs {item.stash[_LEFT_OUT]}. "
                "A function, or a method of a plain class, runs with each"
            )
        )


def _if_yours(name: str) -> str:
    """What to do about a marker whose name somebody else uses for another thing."""
    if name == "distbench":
        return ""
    return (
        f". If the marker is not ours: distbench_short_options = false in the ini file; distbench_{name} is ours then"
    )


def _world_size(marks: list[pytest.Mark]) -> tuple[tuple[int, ...], float, float]:
    for mark in marks:
        if mark.name != "world_size":
            continue
        least, most = mark.kwargs.get("min", 1), mark.kwargs.get("max", math.inf)
        if not _sizes([*mark.args, *mark.kwargs.values()]):
            raise ConfigurationError(
                f"@pytest.mark.world_size: wants numbers of ranks, found {(*mark.args, *mark.kwargs.items())!r}"
            )
        if least > most:
            raise ConfigurationError(f"@pytest.mark.world_size: min={least} is more than max={most}")
        return tuple(dict.fromkeys(_sizes(mark.args))), least, most
    return (), 1, math.inf


def _sizes(numbers: Sequence[object]) -> tuple[int, ...]:
    found = tuple(n for n in map(as_int, numbers) if n is not None and n >= 1)
    return found if len(found) == len(numbers) else ()
