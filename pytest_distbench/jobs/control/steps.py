"""The lines that a script prints of its steps, and one number for each step over the whole training."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from pytest_distbench.errors import ConfigurationError, ReadingError, show
from pytest_distbench.records.reader import Reader

NAMES = ("epoch", "loss", "accuracy", "top5", "lr")
"""Groups of a pattern that a step is told by, beside its number."""

_VALUE = "value"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepLine:
    """A step as a script told of it. Its number falls only where the training has gone back.

    ``is_laid``: the script counts anew in each epoch, and this is its first line of one: how many steps the epoch
    before had behind its last line nobody knows.
    """

    number: int
    is_laid: bool
    epoch: int | None
    loss: float | None
    accuracy: float | None
    top5: float | None
    lr: float | None


def check_pattern(reader: Reader) -> None:
    """Make sure that a reader finds steps."""
    if reader.kind != "stdout":
        raise ConfigurationError(
            f"a reader of {reader.kind}: steps are told by lines that the script prints, stdout(r'step (\\d+)')"
        )
    if reader.rank == "all":
        raise ConfigurationError("rank='all': the workers of a generation step together; say which rank's lines count")
    unused = [n for n, v in (("skip", reader.skip), ("first", reader.first), ("take", reader.take)) if v]
    if unused:
        raise ConfigurationError(f"{', '.join(unused)}: every line counts; wanted a pattern and, if need be, rank=")
    unknown = set(re.compile(reader.source).groupindex) - {_VALUE, *NAMES}
    if unknown:
        raise ConfigurationError(
            f"group {', '.join(sorted(unknown))}; known are {_VALUE} (the number of the step), {', '.join(NAMES)}"
        )


class StepLines:
    """The steps of one generation, line by line; ``before`` are those of the generation before.

    Where the script counts anew in each epoch, its epochs are laid end to end, so that numbers are of the whole
    training. A training that goes back to an earlier epoch goes back in these numbers too.
    """

    def __init__(self, pattern: str, before: StepLines | None = None) -> None:
        self._pattern = re.compile(pattern)
        self._group: int | str = _VALUE if _VALUE in self._pattern.groupindex else 1
        self._begins: dict[int, int] = dict(before._begins) if before is not None else {}
        """Epoch -> what is added to the numbers of its steps."""
        self._highest: int = before._highest if before is not None else 0
        self._last: tuple[int | None, int] | None = None

    def take(self, text: str) -> StepLine | None:
        """The step that a line tells of; None: of none, or of the one before once more.

        A number that is none, or that falls within the generation, cannot be used: :class:`ReadingError`.
        """
        found = self._pattern.search(text)
        if found is None:
            return None
        value = _whole(found[self._group], text)
        told = found.groupdict()
        epoch = _whole(told["epoch"], text) if told.get("epoch") is not None else None
        if self._last == (epoch, value):
            return None
        self._check(epoch, value, text)
        is_new = epoch is not None and epoch not in self._begins
        begin = self._begin(epoch, value)
        is_laid = is_new and self._last is not None and begin != self._begins.get(self._last[0] or 0, 0)
        number = value + begin
        self._last = epoch, value
        self._highest = max(self._highest, number)
        numbers = {name: _number(name, told.get(name), text) for name in NAMES if name != "epoch"}
        return StepLine(number=number, is_laid=is_laid, epoch=epoch, **numbers)

    def _check(self, epoch: int | None, value: int, text: str) -> None:
        if self._last is None:
            return
        before, last = self._last
        if value < last and (epoch is None or before is None or epoch <= before):
            raise ReadingError(
                f"steps=: the number of the step fell from {last} to {value} in one process, at {show(text.strip())}. "
                "Where the script counts anew in each epoch, let the pattern tell which: "
                r"stdout(r'epoch (?P<epoch>\d+) step (?P<value>\d+)')"
            )

    def _begin(self, epoch: int | None, value: int) -> int:
        """What is added to a number: nothing where the script counts on from epoch to epoch."""
        if epoch is None:
            return 0
        if epoch not in self._begins:
            earlier = max((e for e in self._begins if e < epoch), default=None)
            on = 0 if earlier is None else self._begins[earlier]
            anew = bool(self._begins) and value + on <= self._highest
            self._begins[epoch] = self._highest + 1 - value if anew else on
        elif self._last is None:  # it has gone back, or on: later epochs begin where this one will have ended
            self._begins = {e: begin for e, begin in self._begins.items() if e <= epoch}
            self._highest = value + self._begins[epoch]
        return self._begins[epoch]


def _whole(text: str | None, line: str) -> int:
    try:
        return int(str(text))
    except ValueError:
        raise ReadingError(
            f"steps=: {show(text)} is no whole number, of the line {show(line.strip()[:160])}: the pattern's group "
            "must be the number of the step"
        ) from None


def _number(name: str, text: str | None, line: str) -> float | None:
    try:
        number = float(text) if text is not None else math.nan
    except ValueError:
        raise ReadingError(
            f"steps=: {show(text)} is no number, of the line {show(line.strip()[:160])}: let the group {name} take the "
            rf"number alone, (?P<{name}>[-+.\de]+)"
        ) from None
    if text is not None and not math.isfinite(number):
        raise ReadingError(f"steps=: the {name} is {text}: the training has diverged, at {show(line.strip()[:160])}")
    return number if text is not None else None
