"""The points of a bucket sweep."""

from __future__ import annotations

from support.results import point, result, verdict

from pytest_distbench.records.metric import metric_key
from pytest_distbench.records.verdict import Verdict
from pytest_distbench.report.buckets import BUCKETS, bucket_points


def bucket(calls: str, tensors: int, seconds: float | None) -> Verdict:
    at = {"calls": calls, "tensors": tensors}
    return verdict(metric=metric_key("latency", at), at=at, facts={"message_bytes": 4000}, current=seconds)


def test_each_way_is_told_beside_its_own_fewest_tensors() -> None:
    found = list(bucket_points(result(bucket("each", 8, 0.04), bucket("each", 2, 0.01), bucket("coalesced", 2, 0.02))))

    assert [(p.calls, p.tensors, p.share) for p in found] == [
        ("each", 2, 1.0),
        ("each", 8, 4.0),
        ("coalesced", 2, 1.0),
    ]
    assert found[0].algbw == 4000 / 0.01 / 1e9


def test_other_cases_have_none_and_points_without_a_time_are_left_out() -> None:
    assert list(bucket_points(result(point(8), bucket("each", 1, None)))) == []


def test_buckets_are_told_beside_the_fewest_tensors() -> None:
    points = [bucket("each", 1, 0.001), bucket("each", 214, 0.01)]

    assert [row[1:] for row in BUCKETS.section([result(*points)]).texts] == [
        ["each", "1", "3.906 KiB", "1000.0", "1.00", "0.004", "unchanged"],
        ["each", "214", "3.906 KiB", "10000.0", "10.00", "0.000", "unchanged"],
    ]
