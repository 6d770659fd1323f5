"""The table of bucket sweeps: the same bytes in few tensors and in many."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from pytest_distbench.records.run import CaseResult
from pytest_distbench.records.verdict import Verdict
from pytest_distbench.report.tables.table import TEST, Column, TableKind, microseconds, num_bytes, number
from pytest_distbench.units import GIGABYTE

_AXES = {"tensors", "calls"}


class BucketRow(NamedTuple):
    """One number of tensors, sent in one way, and how long the fewest tensors take that are sent in the same way."""

    result: CaseResult
    verdict: Verdict
    time_s: float
    fewest_s: float

    @property
    def message_bytes(self) -> int:
        """Of all tensors together."""
        return int(self.verdict.facts["message_bytes"])


def _rows(results: Sequence[CaseResult]) -> Iterator[BucketRow]:
    """By the way they are sent, the fewest tensors first."""
    for result in results:
        ways: dict[str, list[tuple[Verdict, float]]] = {}
        for verdict in result.verdicts:
            if verdict.name == "latency" and verdict.at.keys() == _AXES and verdict.current:
                ways.setdefault(str(verdict.at["calls"]), []).append((verdict, verdict.current))
        for found in ways.values():
            found.sort(key=lambda pair: int(pair[0].at["tensors"]))
            yield from (BucketRow(result, verdict, time_s, fewest_s=found[0][1]) for verdict, time_s in found)


BUCKETS: TableKind[BucketRow] = TableKind(
    summary="Every bucket sweep: time against the number of tensors.",
    rows=lambda results: list(_rows(results)),
    columns=[
        TEST,
        Column("calls", str, "calls", lambda row: str(row.verdict.at["calls"])),
        Column("tensors", int, "tensors", lambda row: int(row.verdict.at["tensors"])),
        Column("message_bytes", int, "size", lambda row: num_bytes(row.message_bytes)),
        Column("time_s", float, "time us", lambda row: microseconds(row.time_s, ".1f")),
        Column("times_fewest_tensors", float, "x fewest", lambda row: number(row.time_s / row.fewest_s, ".2f")),
        Column(
            "algbw_gb_per_s",
            float,
            "algbw GB/s",
            lambda row: number(row.message_bytes / row.time_s / GIGABYTE, ".3f"),
        ),
        Column("verdict", str, "verdict", lambda row: row.verdict.kind),
    ],
)
