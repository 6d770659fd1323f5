"""Names of metrics at their points, and what their kind says of them."""

from __future__ import annotations

import math

import numpy
import pytest
from support.metrics import metric

from pytest_distbench.records.kinds import Better
from pytest_distbench.records.metric import as_scalar, is_own_name, metric_key, metric_name


def test_a_key_is_the_name_and_the_point_in_the_order_of_its_axes() -> None:
    assert metric_key("latency", {}) == "latency"
    assert metric_key("latency", {"seed": 1, "message_bytes": 4096}) == "latency[message_bytes=4096,seed=1]"


@pytest.mark.parametrize("key", ["latency", "latency[message_bytes=4096]", "latency[a=x[1],b=2]"])
def test_the_name_is_what_stands_before_the_point(key: str) -> None:
    assert metric_name(key) == "latency"


@pytest.mark.parametrize(
    ("better", "noisy", "judged"), [("lower", True, True), ("exact", False, True), ("info", False, False)]
)
def test_a_measurement_is_noisy_and_judged_as_its_kind_is(better: Better, noisy: bool, judged: bool) -> None:
    assert (metric(1.0, better).is_noisy, metric(1.0, better).is_judged) == (noisy, judged)


def test_an_unknown_kind_is_refused_with_those_there_are() -> None:
    with pytest.raises(ValueError, match=r"'best'.*lower"):
        metric(1.0, "best")  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["wall_time", "fingerprint", "phase/step/forward"])
def test_names_that_the_plugin_records_under_are_its_own(name: str) -> None:
    assert is_own_name(name)
    assert not is_own_name(f"my_{name}")


def test_a_value_of_a_point_becomes_python_s_or_is_none() -> None:
    taken = [True, "x", 3, 2.5, numpy.int64(3), numpy.float32(0.5), numpy.bool_(1), numpy.str_("x"), numpy.array([2])]
    refused = [None, "a\nb", 2**54, 1e301, math.nan, 1j, [1], numpy.ones(2), numpy.complex64(1), object()]

    assert [as_scalar(value) for value in taken] == [True, "x", 3, 2.5, 3, 0.5, True, "x", 2]
    assert {type(as_scalar(value)) for value in taken} == {bool, str, int, float}
    assert [as_scalar(value) for value in refused] == [None] * len(refused)
