"""Read the markers of a test: its world sizes, the chosen surroundings of its launches, and its requirement."""

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
"""Links that a test may want between any two of its GPUs: ``p2p`` is NVLink, XGMI, or PCIe with peer access."""

REPORTED_SHARE = 0.93
"""The least share of a GPU's nominal memory that its driver reports. ECC takes a sixteenth if it is kept in the same
memory (A10, L40S, T4: 15 GiB of 16); firmware and tables take the rest (H100: 79.65 GiB of 80)."""

_LEAST_MEMORY = 2**20  # fewer bytes are a number without its unit

_CAPABILITY = re.compile(r"(\d+)\.(\d+)")


def gpu_obstacle(
    gpus: Gpus, ranks: int, *, min_memory: int = 0, capability: tuple[int, int] = (0, 0), link: str = ""
) -> str:
    """Why the first ``ranks`` GPUs do not fit, or "". A property that the driver does not report does not fit.

    Args:
        gpus: the GPUs of this host.
        ranks: number of ranks, each on a GPU of its own.
        min_memory: nominal bytes of each GPU; :data:`REPORTED_SHARE` of them is enough.
        capability: least compute capability, (major, minor).
        link: key of :data:`LINKS`, wanted between any two GPUs, or "".
    """
    chosen = gpus.visible[:ranks]
    for gpu in chosen:
        if min_memory and (gpu.memory_bytes is None or gpu.memory_bytes < REPORTED_SHARE * min_memory):
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
    """The distbench markers of a test, the closest first; ``distbench_gpu`` is given as ``gpu``.

    Short names count only under the ini key ``distbench_short_options``, because another plugin may have them.
    """
    for mark in node.iter_markers():
        name = mark.name.removeprefix("distbench_")
        if name != mark.name and name in MARKERS:
            yield getattr(pytest.mark, name).with_args(*mark.args, **mark.kwargs).mark
        elif name == "distbench" or node.config.getini("distbench_short_options"):
            yield mark


def options_of(markers: Iterable[pytest.Mark], name: str) -> dict[str, Any]:
    """The checked keywords of the markers of one name; the closest marker wins keyword by keyword."""
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
"""Name of a marker -> its keywords."""


def chosen_by(markers: Iterable[pytest.Mark]) -> dict[str, str]:
    """The surroundings of launches that markers choose, by name; the closest marker wins.

    Raises:
        ConfigurationError: the argument of a marker is none of the choices.
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
    """The keywords of a test's marker ``distbench``; the setting of the run applies if one is None.

    Attributes:
        timeout: seconds that one launch may take.
        launches: launches that are judged first.
        tolerance: accepted change for the worse: 0.1, "10 %", or one per metric name.
        metrics: names of the metrics that are judged; the others are shown only.
        bounds: bounds by a metric's key or name; they need no baseline.
        xfail_perf: reason why a regression is expected.
        advisory: reason why its verdicts fail no test.
        fake_rank: rank that the backend ``fake`` simulates; -1 is the last.
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
    """The attribute ``world_size`` of a test class is no number of ranks, which fails the tests of that class alone."""


def sizes(item: pytest.Item, settings: Settings, owner: type | None = None) -> dict[int, str]:
    """World size -> why the test does not run with it, or "" if it does.

    All markers of the test are checked. The attribute ``world_size`` of its class, a number or a list, counts if there
    is no such marker.
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
    """The attribute ``world_size`` of a test class, or () if there is none or it is computed for each object."""
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
    """Check the ``distbench`` markers of a test and join them."""
    given = options_of(markers, "distbench")
    for key, bound in given.get("bounds", {}).items():
        try:
            terms_of(bound)
        except ConfigurationError as error:
            raise ConfigurationError(f"@pytest.mark.distbench: bounds[{key!r}]: {error}") from None
    return Requirement(**given)


def choose_ranks(item: pytest.Item, settings: Settings) -> None:
    """Choose the largest world size that markers and the run allow, for a method of unittest.TestCase.

    pytest cannot parametrize such a test. It is skipped if no size is allowed.
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
    """Warn of the world sizes and backends with which a method of unittest.TestCase does not run."""
    if _LEFT_OUT in item.stash:
        item.warn(
            DistbenchWarning(
                f"pytest cannot parametrize a method of unittest.TestCase: it runs {item.stash[_LEFT_OUT]}. "
                "A function, or a method of a plain class, runs with each"
            )
        )


def _if_yours(name: str) -> str:
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
