"""Numbers that other programs print or write: where they are read, and what one run of nccl-tests measured."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from pytest_distbench.records.bound import Bound
from pytest_distbench.records.kinds import OfKind
from pytest_distbench.records.metric import Scalar

NCCL_DTYPES = {
    "float32": "float", "float16": "half", "float64": "double", "float8_e4m3fn": "f8e4m3", "float8_e5m2": "f8e5m2",
}  # fmt: skip
"""What torch calls a type -> what these tools call it, where that differs."""

NCCL_REDOPS = {"product": "prod"}
"""The same of reduce operations."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PerfRow:
    """One message size, in place or not.

    Attributes:
        dtype: as the tool calls it: ``float``, ``half``.
        redop: ``sum``; ``none`` or empty where nothing is reduced.
        root: rank; -1 or empty where there is none.
        in_place: whether the received buffer is the sent one.
        busbw: GB/s, as printed.
    """

    size: int
    dtype: str
    redop: str
    root: str
    in_place: bool
    time_s: float
    busbw: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PerfOutput:
    """One run.

    Attributes:
        program: ``all_reduce_perf``; empty where the output does not say.
        ranks: of the group; None where the output does not say.
        device: of the first rank; empty where the output does not say.
        rows: in the order they were measured, at least one.
        is_whole: whether the tool came to its end.
    """

    program: str
    ranks: int | None
    device: str
    rows: Sequence[PerfRow]
    is_whole: bool


NUMBER = r"([-+]?(?:\d+(?:,\d+)*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|[-+]?(?i:nan|inf(?:inity)?)\b)"
"""A group that takes a whole number, nan and inf too, for patterns: ``stdout(r"loss " + NUMBER)``."""

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

    kind: str
    """Key of :data:`pytest_distbench.launch.readers.READERS`."""
    source: str
    """A pattern, or a path with placeholders."""
    key: str = ""
    """What is read there: a key, a column, a tag."""
    since: str = ""
    """Of a log of events: the event from which the seconds are counted; empty: the event's own value is read."""
    unit: str = ""
    scale: float = 1.0
    rank: int | Literal["all"] = 0
    """Whose output, or whose file."""
    skip: int = 0
    first: int | None = None
    take: str = ""
    """Key of :data:`TAKES`; empty: the metric kind decides."""
    at: dict[str, Scalar] = {}
    identity: dict[str, Scalar] = {}
    bounds: list[Bound] = []
    """In the unit."""

    @property
    def defining(self) -> dict[str, Scalar]:
        """What defines the number: read in another way it is another number."""
        chosen: dict[str, Scalar] = {"skip": self.skip, "take": self.take, "since": self.since}
        return {**{name: value for name, value in chosen.items() if value}, **self.identity}
