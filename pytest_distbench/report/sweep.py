"""The points of a collective's sweep over message sizes, with the rates that nccl-tests prints."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pytest_distbench.records.kinds import VERDICT_KINDS
from pytest_distbench.records.link_terms import BANDWIDTH, HALF_SIZE, LATENCY
from pytest_distbench.records.run import CaseResult
from pytest_distbench.records.verdict import Verdict
from pytest_distbench.units import GIGABYTE

_AXIS = "message_bytes"

OF_WHOLE_SWEEP = (LATENCY, BANDWIDTH, HALF_SIZE)
"""Metrics that follow from all sizes together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepPoint:
    """One message size.

    Attributes:
        message_bytes: size of the message.
        time: verdict on the time of one call; its ``current`` is a number.
        gravest: the kind of the gravest verdict at this size.
        time_s: of one call.
        algbw: GB/s (1e9 bytes).
        busbw: GB/s; None where the collective has no factor.
        wrong_elements: found by the check; None where nothing was checked.
    """

    message_bytes: int
    time: Verdict
    gravest: str
    time_s: float
    algbw: float
    busbw: float | None
    wrong_elements: float | None


def is_sweep(result: CaseResult) -> bool:
    """Whether the case measured over message sizes."""
    return any(_AXIS in v.at for v in result.verdicts)


def sweep_points(result: CaseResult) -> Iterator[SweepPoint]:
    """The sizes that have a time, the smallest first."""
    points: dict[int, dict[str, Verdict]] = {}
    for verdict in result.verdicts:
        if _AXIS in verdict.at:
            points.setdefault(int(verdict.at[_AXIS]), {})[verdict.name] = verdict
    for size, found in sorted(points.items()):
        time = found.get("latency")
        if time is None or time.current is None:
            continue
        factor = float(time.facts.get("busbw_factor", 0.0))
        algbw = size / time.current / GIGABYTE
        wrong = found.get("wrong_elements")
        yield SweepPoint(
            message_bytes=size,
            time=time,
            gravest=min((v.kind for v in found.values()), key=list(VERDICT_KINDS).index),
            time_s=time.current,
            algbw=algbw,
            busbw=algbw * factor if factor else None,
            wrong_elements=wrong.current if wrong else None,
        )
