"""The table of bucket sweeps: the same bytes in few tensors and in many."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pytest_distbench.records.run import CaseResult
from pytest_distbench.records.verdict import Verdict
from pytest_distbench.report.section import TEST, Column, TableKind, microseconds, num_bytes, number
from pytest_distbench.units import GIGABYTE

_AXES = {"tensors", "calls"}


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketPoint:
    """One number of tensors, sent in one way.

    Attributes:
        result: of its case.
        calls: how they are sent.
        tensors: how many.
        message_bytes: of all together.
        time_s: of all together.
        share: time over that of the fewest tensors sent in the same way.
        algbw: GB/s (1e9 bytes).
        kind: of the verdict.
    """

    result: CaseResult
    calls: str
    tensors: int
    message_bytes: int
    time_s: float
    share: float | None
    algbw: float
    kind: str


def bucket_points(result: CaseResult) -> Iterator[BucketPoint]:
    """By the way they are sent, the fewest tensors first."""
    ways: dict[str, dict[int, Verdict]] = {}
    for verdict in result.verdicts:
        if verdict.name == "latency" and verdict.at.keys() == _AXES and verdict.current:
            ways.setdefault(str(verdict.at["calls"]), {})[int(verdict.at["tensors"])] = verdict
    for calls, points in ways.items():
        fewest = points[min(points)].current
        for tensors, verdict in sorted(points.items()):
            time_s, message_bytes = verdict.current or 0.0, int(verdict.facts["message_bytes"])
            yield BucketPoint(
                result=result,
                calls=calls,
                tensors=tensors,
                message_bytes=message_bytes,
                time_s=time_s,
                share=time_s / fewest if fewest else None,
                algbw=message_bytes / time_s / GIGABYTE,
                kind=verdict.kind,
            )


BUCKETS: TableKind[BucketPoint] = TableKind(
    summary="Every bucket sweep: time against the number of tensors.",
    rows=lambda results: [point for result in results for point in bucket_points(result)],
    columns=[
        TEST,
        Column("calls", str, "calls", lambda point: point.calls),
        Column("tensors", int, "tensors", lambda point: point.tensors),
        Column("message_bytes", int, "size", lambda point: num_bytes(point.message_bytes)),
        Column("time_s", float, "time us", lambda point: microseconds(point.time_s, ".1f")),
        Column("times_fewest_tensors", float, "x fewest", lambda point: number(point.share, ".2f")),
        Column("algbw_gb_per_s", float, "algbw GB/s", lambda point: number(point.algbw, ".3f")),
        Column("verdict", str, "verdict", lambda point: point.kind),
    ],
)
