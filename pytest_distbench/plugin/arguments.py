"""Arguments of the fixtures: the keywords that several calls take, and their check.

An error says what was wanted, what was found, and the line of the test.
"""

from __future__ import annotations

import inspect
import itertools
import math
import os
import re
import sys
from collections.abc import Callable, Collection, Mapping, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn, TypedDict, TypeVar

from pytest_distbench.errors import ConfigurationError, show
from pytest_distbench.launch.readers import problem_with
from pytest_distbench.plugin.outcomes import Misuse
from pytest_distbench.records.kinds import METRIC_KINDS
from pytest_distbench.records.launch_files import NOTES_VARIABLE
from pytest_distbench.records.metric import (
    LARGEST_NUMBER,
    LONGEST_TEXT,
    Bound,
    Reader,
    Scalar,
    as_scalar,
    bounds_between,
    is_own_name,
)
from pytest_distbench.records.plan import PLACEHOLDERS, Work
from pytest_distbench.records.wanted import (
    FRACTION,
    LARGEST_WHOLE,
    MOST_LAUNCHES,
    NAMED,
    SEEDS,
    TOLERANCE,
    YES_OR_NO,
    Wanted,
    number,
    one_of,
    text,
    whole,
)
from pytest_distbench.records.wire import SESSION_VARIABLE
from pytest_distbench.units import as_float, as_int


class WorkKeywords(TypedDict, total=False):
    """Keywords that say what a launch runs.

    Attributes:
        module: name of a module to run instead of a body, as ``torchrun -m``.
        params: JSON-able; a function gets them as ``rank.params`` and as arguments of these names.
        args: command line of a script. It, ``env`` and ``cwd`` may hold ``{launch_dir}`` (a folder of each launch),
            ``{data_dir}`` (of the run), ``{seed}``, ``{world_size}``.
        cwd: working directory, relative to the test's file. Default of a script: a new folder with links to the
            script's files.
        env: variables added to the ranks' environment.
        read: metrics that readers take from each launch's output and files, by name: :mod:`pytest_distbench.read`.
    """

    module: str
    params: Mapping[str, Any] | None
    args: Sequence[str | os.PathLike[str]]
    cwd: str | os.PathLike[str] | None
    env: Mapping[str, str] | None
    read: Mapping[str, Reader] | None


class Judged(TypedDict, total=False):
    """Keywords that say how often a case is launched, and how it is judged.

    Attributes:
        timeout: seconds that one launch may take.
        launches: launches that are judged first; not of ``check``.
        name: distinguishes several runs of one test; not of ``check``.
        tolerance: accepted change for the worse: 0.1, "10 %", or one per metric name; not of ``measure`` and ``check``.
    """

    timeout: float | None
    launches: int | None
    name: str
    tolerance: float | Mapping[str, float] | None


class ShapeKeywords(Judged, total=False):
    """Keywords of fixtures that run work of their own in ranks, such as a sweep, and no body of the user's.

    Attributes:
        world_size: ranks of this launch, at most those of the run; part of the case's name.
        network: network between the ranks, as in the marker: ``"1gbit,delay=1ms,overlay"``; part of the case's name.
    """

    world_size: int | None
    network: str | None


class RunKeywords(WorkKeywords, ShapeKeywords, total=False):
    """Keywords of launches of ranks.

    Attributes:
        makes_group: whether a script has to make a process group, and a function gets one.
        seeds: the body runs once per seed, in the same group, with ``rank.seed`` set.
        oversubscribed: ``world_size`` may be more than the ranks of the run, on a CPU; beyond the cores timings are
            shown and not judged.
        cpus: CPU quota of each rank, in cores, at least 0.01; part of the case's name.
    """

    makes_group: bool
    seeds: Sequence[int]
    oversubscribed: bool
    cpus: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Called:
    """The keywords of a call, with the work that they resolve to, where it runs, and its identity.

    ``argument`` is the name of the body in the call. ``called_by`` is set if the body is no function, see
    :class:`~pytest_distbench.records.plan.BodyReference`. The identity distinguishes the workload from others:
    parameters, arguments and variables, without secrets and without paths of this machine.
    """

    body: object = None
    argument: str = "body"
    called_by: str = ""
    module: str = ""
    params: Mapping[str, Any] | None = None
    args: Sequence[str | os.PathLike[str]] = ()
    cwd: str | os.PathLike[str] | None = None
    env: Mapping[str, str] | None = None
    read: Mapping[str, Reader] | None = None
    makes_group: bool = True
    seeds: Sequence[int] = (0,)
    world_size: int | None = None
    network: str | None = None
    launches: int | None = None
    timeout: float | None = None
    tolerance: float | Mapping[str, float] | None = None
    name: str = ""
    oversubscribed: bool = False
    cpus: float | None = None
    work: Work | None = None
    folder: str = ""
    is_mirrored: bool = False
    own_variables: dict[str, str] = field(default_factory=dict)
    identity: dict[str, Any] = field(default_factory=dict)


T = TypeVar("T")

LONGEST_NAME = 100
MOST_ITERATIONS = 10**6
_PLACEHOLDERS = {re.sub(r"\W|_", "", name): name for name in PLACEHOLDERS}  # by their letters
_PACKAGE = str(Path(__file__).resolve().parents[1])


class Arguments:
    """The arguments of one call, named as the user wrote it: ``distbench.run``."""

    def __init__(self, call: str, file: Path) -> None:
        self._call = call
        self.file = file

    def __enter__(self) -> None:
        """Fail the test by a ConfigurationError that is raised inside."""

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, ConfigurationError):
            self.refuse(str(error))

    def refuse(self, problem: str) -> NoReturn:
        """Fail the test with the call, the problem, and the line of the test that made the call."""
        line = self.line
        raise Misuse(f"{self._call}: {problem}{f' ({line})' if line else ''}") from None

    def take(self, wanted: Wanted[T], name: str, value: object) -> T:
        """Convert the value of an argument, or fail the test if it is not what is wanted."""
        with self:
            return wanted(name, value)

    def whole(self, name: str, value: object, *, least: int, most: int = LARGEST_WHOLE) -> int:
        return self.take(whole(least, most), name, value)

    def ranks(self, wanted: object, usual: int) -> int:
        """Check ``world_size=`` of a call; the default is that of the test."""
        return usual if wanted is None else self.whole("world_size", wanted, least=1)

    def number(
        self, name: str, value: object, *, least: float = -math.inf, above: float = -math.inf, most: float = math.inf
    ) -> float:
        return self.take(number(least=least, above=above, most=most), name, value)

    def numbers(self, name: str, value: object) -> list[float]:
        """Check one number that a rank could record, or several: a list, a tuple, an array of shape (n,)."""
        listed = several(value, most=MOST_LAUNCHES)
        if listed is None:
            if as_float(value) is None:
                self.refuse(f"{name}={show(value)}; wanted a number, or a list of numbers")
            listed = [value]
        if len(listed) > MOST_LAUNCHES:
            self.refuse(f"{name}={show(value)}; wanted one number per repetition, at most {MOST_LAUNCHES}")
        return [self.number(name, number, least=-LARGEST_NUMBER, most=LARGEST_NUMBER) for number in listed]

    def tolerance(self, value: object) -> float | dict[str, float]:
        """Check a tolerance: a fraction, or one per metric name."""
        if isinstance(value, Mapping):  # of many, the error names the one that is wrong
            for name, inner in value.items():
                self.fraction(f"tolerance[{name!r}]", inner)
        return self.take(TOLERANCE, "tolerance", value)

    def fraction(self, name: str, value: object) -> float:
        return self.take(FRACTION, name, value)

    def text(self, name: str, value: object, *, may_be_empty: bool = False, without: str = "") -> str:
        """Check a printable text of at most :data:`LONGEST_NAME` characters."""
        return self.take(text(longest=LONGEST_NAME, without=without, may_be_empty=may_be_empty), name, value)

    def metric_name(self, name: str, value: object) -> str:
        """Check the name of a metric: none of those that the plugin itself records."""
        found = self.text(name, value, without="[]")
        if is_own_name(found):
            self.refuse(f"{name}={found!r}: the plugin itself records a metric of that name; choose another name")
        return found

    def seed(self, name: str, value: object) -> int:
        return self.whole(name, value, least=SEEDS.start, most=SEEDS.stop - 1)

    def seeds(self, value: object) -> tuple[int, ...]:
        """Check a list of seeds: at least one, each once."""
        listed = several(value, most=MOST_LAUNCHES)
        if listed is None:
            self.refuse(f"seeds={show(value)}; wanted a list of whole numbers, each once, such as range(5)")
        seeds = [self.seed("seeds: a seed", seed) for seed in listed]
        if not 1 <= len(seeds) <= MOST_LAUNCHES or len(set(seeds)) < len(seeds):
            self.refuse(f"seeds={show(value)}; wanted 1 to {MOST_LAUNCHES} whole numbers, each once, such as range(5)")
        return tuple(seeds)

    def command_line(self, value: object) -> list[str]:
        """Check the arguments of a script: texts, numbers and paths."""
        if isinstance(value, str | bytes | Mapping) or not isinstance(value, Sequence):
            self.refuse(f"args={show(value)}; wanted a list, one text for each argument: ['--steps', '50']")
        for argument in value:
            if not _can_be_text(argument):
                self.refuse(f"args: {show(argument)} is a {type(argument).__name__}; wanted text, a number or a path")
            self._placeholders("args", str(argument))
        return [os.fspath(a) if isinstance(a, os.PathLike) else str(a) for a in value]

    def variables(self, value: object) -> dict[str, str]:
        """Check ``env=``: environment variables, whose values are texts, numbers or paths."""
        found = self.mapping("env", {} if value is None else value)
        for name, inner in found.items():
            if name in (SESSION_VARIABLE, NOTES_VARIABLE):
                self.refuse(f"env: {name} is reserved: the plugin uses it to find the processes that it started")
            if not _can_be_text(inner):
                self.refuse(f"env[{name!r}]={show(inner)}; wanted text, a number or a path")
            self._placeholders(f"env[{name!r}]", str(inner))
        return {name: os.fspath(v) if isinstance(v, os.PathLike) else str(v) for name, v in found.items()}

    def _placeholders(self, name: str, text: str) -> None:
        for found in re.findall(r"\{[\w-]+\}", text):
            meant = _PLACEHOLDERS.get(re.sub(r"\W|_", "", found).lower(), found)
            if meant != found:
                self.refuse(f"{name}: {show(text)} has {found}, which is no placeholder; wanted {meant}")

    def readers(self, value: object) -> dict[str, Reader]:
        """Check ``read=``: readers by the name of their metric."""
        wanted = "wanted a dict from metric names to readers of pytest_distbench.read, such as stdout(r'loss (.*)')"
        if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
            self.refuse(f"read={show(value)}; {wanted}")
        for name, reader in value.items():
            self.metric_name("a name in read", name)
            if not isinstance(reader, Reader):
                self.refuse(f"read[{name!r}]={show(reader)}; {wanted}")
            if problem := problem_with(reader):
                self.refuse(f"read[{name!r}]: {problem}")
        return dict(value)

    def mapping(self, name: str, value: object) -> Mapping[str, Any]:
        return self.take(NAMED, name, value)

    def point(self, value: object) -> dict[str, Scalar]:
        """Check ``at=``: scalars by name."""
        point: dict[str, Scalar] = {}
        for key, inner in self.mapping("at", value).items():
            self.text("a name in at", key, without="[]=,")
            found = as_scalar(inner)
            if found is None or (isinstance(found, str) and len(found) > LONGEST_TEXT):
                self.refuse(
                    f"at[{key!r}]={show(inner)}; wanted True, False, printable text of at most {LONGEST_TEXT} "
                    f"characters, or a number: finite, up to {LARGEST_NUMBER:g}, a whole one up to {LARGEST_WHOLE}"
                )
            point[key] = found
        return point

    def bounds(self, at_least: object, at_most: object, *, unit: str) -> list[Bound]:
        """Check ``at_least=`` and ``at_most=``: numbers in the unit, or texts with a unit of the same kind."""
        try:
            return bounds_between(at_least, at_most, unit=unit, where=f"judge at {self.line}")
        except ConfigurationError as error:
            self.refuse(str(error))

    def derived_kind(self, value: object) -> str:
        """Check ``better=`` of a number that a test derives."""
        allowed = [name for name, kind in METRIC_KINDS.items() if not kind.is_of_training]
        if not isinstance(value, str) or value not in allowed:
            self.refuse(
                f"better={show(value)}; wanted {', '.join(allowed[:-1])} or {allowed[-1]}. Record the results of a "
                f"seed's training in its body, with rank.record"
            )
        return value

    def choice(self, name: str, value: object, allowed: Sequence[str]) -> str:
        return self.take(one_of(allowed), name, value)

    def yes_or_no(self, name: str, value: object) -> bool:
        return self.take(YES_OR_NO, name, value)

    def keywords(
        self, given: Mapping[str, object], call: Callable[..., object], others: type, *, but: Sequence[str] = ()
    ) -> None:
        """Refuse keywords that neither the signature of the call nor ``others`` without ``but`` has."""
        own = [name for name, p in inspect.signature(call).parameters.items() if p.kind is not p.VAR_KEYWORD]
        self.known(given, [*own, *(name for name in others.__annotations__ if name not in but)])

    def known(self, given: Mapping[str, object], allowed: Sequence[str]) -> None:
        """Refuse keywords that are not allowed."""
        if unknown := sorted(set(given) - set(allowed)):
            self.refuse(f"unknown keyword {', '.join(unknown)}; known are {', '.join(allowed)}")

    @property
    def line(self) -> str:
        """The line that made the call: ``test_a.py:12``, or that of a helper in another file."""
        frame = sys._getframe(1)
        outside = ""
        while frame is not None:
            file = frame.f_code.co_filename
            if file == str(self.file):
                return f"{Path(file).name}:{frame.f_lineno}"
            if not outside and not file.startswith(_PACKAGE):
                outside = f"{Path(file).name}:{frame.f_lineno}"
            frame = frame.f_back  # type: ignore[assignment] # None ends the loop
        return outside


def several(value: object, *, most: int) -> list[object] | None:
    """Return the first ``most`` + 1 elements of a list, a tuple, a range or an array, or None for any other value."""
    if not isinstance(value, Collection) or isinstance(value, str | bytes | bytearray | Mapping | Set):
        return None
    try:
        return list(itertools.islice(value, most + 1))
    except Exception:  # noqa: BLE001 an array without dimension, or any error of an object
        return None


def _can_be_text(value: object) -> bool:
    return isinstance(value, str | float | os.PathLike) or as_int(value) is not None
