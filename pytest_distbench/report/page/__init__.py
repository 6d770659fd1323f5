"""The page of a run, one HTML file that opens offline; here what its charts are: a few kinds, which ``page.js`` draws.

Each has its values as a table. They are in base units (seconds, bytes); the page scales them where it prints them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from pytest_distbench.records.record import Record

Point = tuple[float, float]


class Axis(Record, frozen=True, kw_only=True, omit_defaults=True):
    """One axis; ``log2`` has its ticks at powers of two.

    The unit ``%`` is of shares: 0.5 is 50 %; ``date`` is of seconds since 1970, UTC.
    """

    name: str
    unit: str = ""
    scale: Literal["linear", "log", "log2"] = "linear"
    from_zero: bool = False
    """It begins at 0, where its least value is well above that."""
    ticks: list[str] = []
    """What the points at 0, 1 and so on are called; empty: they are numbers."""


class Series(Record, frozen=True, kw_only=True, omit_defaults=True):
    name: str
    points: list[Point]
    look: Literal["", "thin", "reference", "dots", "steps"] = ""
    """Empty: a thick line with a dot for each point, of few of them. Thin: one launch of several. Reference: dotted,
    what was before. Dots: no line. Steps: the value holds until the next point."""
    labels: list[str] = []
    """Written beside the points; empty: nothing is."""
    names: list[str] = []
    """What the points are called where they are read out, instead of by their x; empty: nothing."""


class Lines(Record, frozen=True, kw_only=True, omit_defaults=True, tag="lines"):
    """Numbers against numbers."""

    title: str
    x: Axis
    y: Axis
    series: list[Series]
    allowed: list[tuple[float, float, float]] = []
    """A band around the series: x, least and most."""
    target: float | None = None
    """On the y axis."""


class Bars(Record, frozen=True, kw_only=True, omit_defaults=True, tag="bars"):
    title: str
    unit: str
    parts: list[str]
    rows: list[tuple[str, list[float]]]


class Spans(Record, frozen=True, kw_only=True, omit_defaults=True, tag="spans"):
    """What went on in each row, and when: seconds."""

    title: str
    rows: list[str]
    spans: list[tuple[int, float, float, str]]
    """Row, begin, end, and what it was: equal ones have one colour."""
    marks: list[tuple[float, str]] = []
    """Moments, for all rows."""


class Heat(Record, frozen=True, kw_only=True, omit_defaults=True, tag="heat"):
    title: str
    unit: str
    down: str
    across: str
    labels: list[str]
    """Of the rows, and of the columns."""
    cells: list[list[float | None]]


class Grid(Record, frozen=True, kw_only=True, omit_defaults=True, tag="grid"):
    """A table, beside charts or by itself."""

    title: str
    head: list[str]
    right: list[bool]
    """Which columns are of numbers."""
    rows: list[list[str]]
    changed: list[bool] = []
    """Which rows are marked; empty: none."""
    foot: list[str] = []


class Choice(Record, frozen=True, kw_only=True, tag="choice"):
    """One chart in several forms, of which one is drawn at a time: the first, until another name is chosen."""

    names: list[str]
    charts: list[Lines]


Chart = Lines | Bars | Spans | Heat | Grid | Choice


def short(value: float) -> float:
    return float(f"{value:.4g}")


def points(pairs: Iterable[tuple[float, float | None]]) -> list[Point]:
    return [(short(x), short(y)) for x, y in pairs if y is not None]
