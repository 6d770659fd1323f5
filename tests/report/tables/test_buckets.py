"""The table of bucket sweeps."""

from __future__ import annotations

from support.results import point, result, verdict

from pytest_distbench.records.metric import metric_key
from pytest_distbench.records.verdict import Verdict
from pytest_distbench.report.tables.buckets import BUCKETS


def bucket(calls: str, tensors: int, seconds: float | None) -> Verdict:
    at = {"calls": calls, "tensors": tensors}
    return verdict(metric=metric_key("latency", at), at=at, facts={"message_bytes": 10**6}, current=seconds)


def test_each_way_is_told_beside_its_own_fewest_tensors() -> None:
    made = result(bucket("each", 214, 0.04), bucket("each", 2, 0.01), bucket("coalesced", 2, 0.02))

    assert [row[1:] for row in BUCKETS.section([made]).texts] == [
        ["each", "2", "976.6 KiB", "10000.0", "1.00", "0.100", "unchanged"],
        ["each", "214", "976.6 KiB", "40000.0", "4.00", "0.025", "unchanged"],
        ["coalesced", "2", "976.6 KiB", "20000.0", "1.00", "0.050", "unchanged"],
    ]


def test_other_cases_have_none_and_points_without_a_time_are_left_out() -> None:
    assert BUCKETS.section([result(point(8), bucket("each", 1, None))]).rows == []
