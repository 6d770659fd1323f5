"""What was found of the links between the ranks of a case that became slower, in a launch of its own."""

from __future__ import annotations

from pytest_distbench.records.record import Record


class SlowLink(Record, frozen=True, kw_only=True):
    """A way from one rank to another that takes longer than a typical one."""

    source: int
    target: int
    times: float
    """How many times as long as a typical one it takes."""


class LinkCheck(Record, frozen=True, kw_only=True, omit_defaults=True):
    """Every way between two ranks, one at a time, with large messages."""

    measured: int = 0
    most: float = 1.0
    """How many times as long as a typical one the slowest takes."""
    spread: float = 1.0
    """How many times as long a link takes in the second look as in the quickest, median of all; 1: there was one."""
    slow: list[SlowLink] = []
    """Those that stand out by more than that."""
    why_not: str = ""
    """They were not looked at, or the launch did not pass."""
