"""A verdict: its metric's name, and whether it fails a test."""

from __future__ import annotations

import pytest
from support.results import point, verdict


def test_the_name_is_without_the_point() -> None:
    assert (point(4096).metric, point(4096).name) == ("latency[message_bytes=4096]", "latency")


@pytest.mark.parametrize(
    ("kind", "fails"),
    [("regressed", True), ("changed", True), ("improved", False), ("inconclusive", False), ("missing", False)],
)
def test_some_kinds_fail_a_test_under_every_policy(kind: str, fails: bool) -> None:
    assert verdict(kind).is_failure is fails


def test_an_unknown_kind_is_refused_with_those_there_are() -> None:
    with pytest.raises(ValueError, match=r"'worse'.*regressed"):
        verdict("worse")
