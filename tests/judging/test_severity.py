"""Which verdict is the worst."""

from __future__ import annotations

import pytest

from pytest_distbench.judging.severity import severity, worst
from pytest_distbench.records.verdict import Verdict


def regressed(metric: str, ratio: float | None, better: str = "lower") -> Verdict:
    return Verdict(metric=metric, kind="regressed", unit="", better=better, ratio=ratio)


def test_a_halved_throughput_is_as_grave_as_a_doubled_time() -> None:
    assert severity(regressed("time", 2.0)) == pytest.approx(severity(regressed("rate", 0.5, "higher")))


def test_what_has_no_ratio_is_graver_than_any_that_has_one() -> None:
    assert worst([regressed("a", 100.0), regressed("b", None), regressed("c", 0.001)]).metric == "b"


def test_a_curve_is_named_before_what_follows_from_it() -> None:
    assert worst([regressed("a", None), regressed("loss", 1.01, "curve")]).metric == "loss"


def test_what_is_beyond_a_bound_is_named_first() -> None:
    beyond = Verdict(metric="b", kind="beyond", unit="", better="lower", ratio=1.0)

    assert worst([regressed("loss", None, "curve"), beyond, regressed("a", None)]).metric == "b"
