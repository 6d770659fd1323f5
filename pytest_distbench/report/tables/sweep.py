"""The points of a collective's sweep over message sizes, with the rates that nccl-tests prints."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pytest_distbench.records.kinds import VERDICT_KINDS
from pytest_distbench.records.metric import LINK_PEAK, Scalar
from pytest_distbench.records.run import CaseResult
from pytest_distbench.records.verdict import Verdict
from pytest_distbench.units import GIGABYTE, format_bytes

_AXIS = "message_bytes"


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepPoint:
    """One message size. Bandwidths are in GB/s (1e9 bytes).

    None is a busbw of a collective without a factor, its share of links whose peak is not known, and the wrong elements
    where nothing was checked. The ``current`` of the verdict on the time of one call is a number.
    """

    message_bytes: int
    time: Verdict
    gravest: str
    time_s: float
    algbw: float
    busbw: float | None
    busbw_share: float | None
    wrong_elements: float | None

    @property
    def text(self) -> str:
        """The size, and what else tells the points of its case apart."""
        return " ".join([*(str(v) for k, v in self.time.at.items() if k != _AXIS), format_bytes(self.message_bytes)])


def is_sweep(result: CaseResult) -> bool:
    """Whether the case measured over message sizes."""
    return any(_AXIS in v.at for v in result.verdicts)


def sweep_points(result: CaseResult) -> Iterator[SweepPoint]:
    """The points that have a time, the smallest size first; of several dtypes one after the other."""
    series: dict[tuple[Scalar, ...], dict[int, dict[str, Verdict]]] = {}
    for verdict in result.verdicts:
        if _AXIS in verdict.at:
            others = tuple(value for axis, value in verdict.at.items() if axis != _AXIS)
            point = series.setdefault(others, {}).setdefault(int(verdict.at[_AXIS]), {})
            point[verdict.name] = verdict
    for points in series.values():
        for size, found in sorted(points.items()):
            time = found.get("latency")
            if time is not None and time.current is not None:
                yield _point(size, time, time.current, found)


def refusals(result: CaseResult) -> list[Verdict]:
    """What the backend was asked for and has not: the verdicts on it, whose facts give its reason."""
    return [v for v in result.verdicts if v.name == "supported" and v.current == 0 and "reason" in v.facts]


def _point(size: int, time: Verdict, time_s: float, found: dict[str, Verdict]) -> SweepPoint:
    factor = float(time.facts.get("busbw_factor", 0.0))
    peak = float(time.facts.get(LINK_PEAK, 0.0))
    algbw = size / time_s / GIGABYTE if time_s else 0.0
    wrong = found.get("wrong_elements")
    return SweepPoint(
        message_bytes=size,
        time=time,
        gravest=min((v.kind for v in found.values()), key=list(VERDICT_KINDS).index),
        time_s=time_s,
        algbw=algbw,
        busbw=algbw * factor if factor else None,
        busbw_share=algbw * factor / peak if factor and peak else None,
        wrong_elements=wrong.current if wrong else None,
    )
