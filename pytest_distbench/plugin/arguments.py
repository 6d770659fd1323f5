"""Arguments of the fixtures, checked where they are given: what was wanted, what was found, and the test's line."""

from __future__ import annotations

import contextlib
import math
import os
import re
import sys
from collections.abc import Collection, Mapping, Sequence, Set
from pathlib import Path
from typing import Any, NoReturn

from pytest_distbench.errors import ConfigurationError, show
from pytest_distbench.launch.contract import SESSION_VARIABLE
from pytest_distbench.launch.readers.check import problem_with
from pytest_distbench.plugin.outcomes import Misuse
from pytest_distbench.records.bound import Bound, bounds_between
from pytest_distbench.records.choices import MOST_LAUNCHES
from pytest_distbench.records.kinds import METRIC_KINDS
from pytest_distbench.records.metric import PHASE, Scalar
from pytest_distbench.records.plan import PLACEHOLDERS
from pytest_distbench.records.reader import Reader
from pytest_distbench.records.torchrun import NOTES_VARIABLE
from pytest_distbench.records.wire import can_be_written
from pytest_distbench.units import as_float

LONGEST_NAME = 100
_OUR_NAMES = ("wall_time", "fingerprint")
_SEEDS = range(-(2**63), 2**64)
"""What ``torch.manual_seed`` takes."""
_PLACEHOLDERS = {re.sub(r"\W|_", "", name): name for name in PLACEHOLDERS}
"""By their letters."""
_PACKAGE = str(Path(__file__).resolve().parents[1])


class Arguments:
    """The arguments of one call.

    Args:
        call: as the user wrote it: ``distbench.run``.
        file: of the test.
    """

    def __init__(self, call: str, file: Path) -> None:
        self._call = call
        self._file = str(file)

    def refuse(self, problem: str) -> NoReturn:
        """Fail the test.

        Raises:
            Misuse: always; the call, the problem, and the line of the test that made the call.
        """
        line = self._line()
        raise Misuse(f"{self._call}: {problem}{f' ({line})' if line else ''}") from None

    def whole(self, name: str, value: object, *, least: int, most: int | None = None) -> int:
        """A whole number; numpy's are taken too, ``True`` and ``2.0`` are not."""
        number = _as_int(value)
        if number is None or number < least or (most is not None and number > most):
            upto = "" if most is None else f" and at most {most}"
            self.refuse(f"{name}={show(value)}; wanted a whole number of at least {least}{upto}")
        return number

    def ranks(self, options: Mapping[str, object], usual: int) -> int:
        """``world_size=`` of keywords that are handed on, or as many ranks as the test has."""
        wanted = options.get("world_size")
        return usual if wanted is None else self.whole("world_size", wanted, least=1)

    def number(
        self, name: str, value: object, *, least: float = -math.inf, above: float = -math.inf, most: float = math.inf
    ) -> float:
        """A finite number."""
        number = as_float(value)
        if number is None or not math.isfinite(number) or number < least or number <= above or number > most:
            limit = f" above {above:g}" if above > -math.inf else f" of at least {least:g}" if least > -math.inf else ""
            limit += f", at most {most:g}" if most < math.inf else ""
            self.refuse(f"{name}={show(value)}; wanted a finite number{limit}")
        return number

    def numbers(self, name: str, value: object) -> list[float]:
        """One finite number, or several: a list, a tuple, an array of one dimension."""
        listed: list[object] = [value]
        if isinstance(value, Collection) and not isinstance(value, str | bytes | Mapping | Set):
            with contextlib.suppress(Exception):  # an array without dimension is one number; the rest is told below
                listed = list(value)
        return [self.number(name, number) for number in listed]

    def tolerance(self, value: object) -> float | dict[str, float]:
        """A fraction, or one per metric name."""
        if not isinstance(value, Mapping):
            return self.number("tolerance", value, least=0.0)
        if not value or not all(isinstance(key, str) for key in value):
            self.refuse(f"tolerance={show(value)}; wanted a fraction such as 0.05, or one per metric name")
        return {key: self.number(f"tolerance[{key!r}]", inner, least=0.0) for key, inner in value.items()}

    def text(self, name: str, value: object, *, may_be_empty: bool = False, without: str = "") -> str:
        """Printable text of moderate length."""
        is_text = isinstance(value, str) and value.isprintable() and len(value) <= LONGEST_NAME
        if not is_text or not (value or may_be_empty) or any(character in str(value) for character in without):
            barred = f" without {' '.join(without)}" if without else ""
            self.refuse(f"{name}={show(value)}; wanted printable text{barred} of at most {LONGEST_NAME} characters")
        return str(value)

    def seeds(self, value: object) -> tuple[int, ...]:
        """At least one seed, each once."""
        wanted = "wanted whole numbers, each once, such as range(5)"
        if isinstance(value, str | bytes | Mapping) or not isinstance(value, Sequence) or not len(value):
            self.refuse(f"seeds={show(value)}; {wanted}")
        found = [_as_int(seed) for seed in value[: MOST_LAUNCHES + 1]]
        seeds = tuple(seed for seed in found if seed is not None and seed in _SEEDS)
        if len(seeds) < len(value) or len(set(seeds)) < len(seeds):
            self.refuse(f"seeds={show(value)}; {wanted}")
        return seeds

    def command_line(self, value: object) -> list[str]:
        """Arguments of a script: texts, numbers and paths."""
        if isinstance(value, str | bytes | Mapping) or not isinstance(value, Sequence):
            self.refuse(f"args={show(value)}; wanted a list, one text for each argument: ['--steps', '50']")
        for argument in value:
            if isinstance(argument, bool) or not isinstance(argument, str | int | float | os.PathLike):
                self.refuse(f"args: {show(argument)} is a {type(argument).__name__}; wanted text, a number or a path")
            if "\0" in str(argument) or not can_be_written(str(argument)):
                self.refuse(f"args: {show(argument)} holds a character that no command line can")
            self._placeholders("args", str(argument))
        return [os.fspath(a) if isinstance(a, os.PathLike) else str(a) for a in value]

    def variables(self, value: object) -> dict[str, str]:
        """``env=``: environment variables, texts, numbers and paths."""
        found = self.mapping("env", {} if value is None else value)
        for name, inner in found.items():
            if not name or "=" in name or "\0" in name or not can_be_written(name):
                self.refuse(f"env: {show(name)} is no name of an environment variable")
            if name in (SESSION_VARIABLE, NOTES_VARIABLE):
                self.refuse(f"env: {name} is the plugin's own, by which it finds what it has started")
            if isinstance(inner, bool) or not isinstance(inner, str | int | float | os.PathLike):
                self.refuse(f"env[{name!r}]={show(inner)}; wanted text, a number or a path")
            if "\0" in str(inner) or not can_be_written(str(inner)):
                self.refuse(f"env[{name!r}]={show(inner)} holds a character that no environment can")
            self._placeholders(f"env[{name!r}]", str(inner))
        return {name: os.fspath(v) if isinstance(v, os.PathLike) else str(v) for name, v in found.items()}

    def _placeholders(self, name: str, text: str) -> None:
        """One that is written in another way would go to the script as it is."""
        for found in re.findall(r"\{[\w-]+\}", text):
            meant = _PLACEHOLDERS.get(re.sub(r"\W|_", "", found).lower(), found)
            if meant != found:
                self.refuse(f"{name}: {show(text)} has {found}, which is no placeholder; wanted {meant}")

    def readers(self, value: object) -> dict[str, Reader]:
        """``read=``: what is read of a script's output and files, by the metric's name."""
        wanted = "wanted a dict from metric names to readers of pytest_distbench.read, such as stdout(r'loss (.*)')"
        if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
            self.refuse(f"read={show(value)}; {wanted}")
        for name, reader in value.items():
            self.text("a name in read", name, without="[]")
            if name in _OUR_NAMES or name.startswith(PHASE):
                self.refuse(f"read[{name!r}]: the plugin itself records something of that name; give it another one")
            if not isinstance(reader, Reader):
                self.refuse(f"read[{name!r}]={show(reader)}; {wanted}")
            if problem := problem_with(reader):
                self.refuse(f"read[{name!r}]: {problem}")
        return dict(value)

    def mapping(self, name: str, value: object) -> Mapping[str, Any]:
        """A mapping with text as keys."""
        if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
            self.refuse(f"{name}={show(value)}; wanted a dict whose keys are text")
        return value

    def point(self, value: object) -> dict[str, Scalar]:
        """``at=``: names and plain values."""
        point = self.mapping("at", value)
        for key, inner in point.items():
            self.text("a name in at", key, without="[]=,")
            if isinstance(inner, float) and not math.isfinite(inner):
                self.refuse(f"at={show(value)}: {key} is not finite")
            if not isinstance(inner, bool | int | float | str) or (isinstance(inner, str) and not inner.isprintable()):
                self.refuse(f"at={show(value)}: {key} is a {type(inner).__name__}; wanted a number or short text")
        return dict(point)

    def bounds(self, at_least: object, at_most: object, *, unit: str) -> list[Bound]:
        """``at_least=`` and ``at_most=``: numbers in the unit, or texts with a unit of the same kind."""
        try:
            return bounds_between(at_least, at_most, unit=unit, where=f"judge at {self._line()}")
        except ConfigurationError as error:
            self.refuse(str(error))

    def derived_kind(self, value: object) -> str:
        """``better=`` of a number that a test derives."""
        allowed = [name for name, kind in METRIC_KINDS.items() if not kind.is_of_training]
        if not isinstance(value, str) or value not in allowed:
            self.refuse(
                f"better={show(value)}; wanted {', '.join(allowed[:-1])} or {allowed[-1]}. What a seed's training "
                "gave is recorded in its body, with rank.record"
            )
        return value

    def choice(self, name: str, value: object, allowed: Sequence[str]) -> str:
        """One of several words."""
        if not isinstance(value, str) or value not in allowed:
            self.refuse(f"{name}={show(value)}; wanted one of {', '.join(allowed)}")
        return value

    def options(self, given: Mapping[str, object], allowed: Sequence[str]) -> None:
        """Keywords that are handed on."""
        if unknown := sorted(set(given) - set(allowed)):
            self.refuse(f"unknown keyword {', '.join(unknown)}; known are {', '.join(allowed)}")

    def _line(self) -> str:
        """The line of the test that made the call: ``test_a.py:12``; of another file where a helper made it."""
        frame = sys._getframe(2)
        outside = ""
        while frame is not None:
            file = frame.f_code.co_filename
            if file == self._file:
                return f"{Path(file).name}:{frame.f_lineno}"
            if not outside and not file.startswith(_PACKAGE):
                outside = f"{Path(file).name}:{frame.f_lineno}"
            frame = frame.f_back  # type: ignore[assignment] # None ends the loop
        return outside


def _as_int(value: object) -> int | None:
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        return None
    try:
        return int(value.__index__())
    except Exception:  # noqa: BLE001 whatever its class does, it is no number
        return None
