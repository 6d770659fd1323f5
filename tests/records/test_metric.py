"""Names of metrics at their points, and what their kind says of them."""

from __future__ import annotations

import math

import numpy
import pytest
from support.metrics import metric

from pytest_distbench.records.metric import as_scalar, is_own_name, metric_key


def test_a_key_is_the_name_with_its_point_and_values_are_pythons() -> None:
    assert metric_key("latency", {}) == "latency"
    assert metric_key("latency", {"seed": 1, "message_bytes": 4096}) == "latency[message_bytes=4096,seed=1]"

    with pytest.raises(ValueError, match=r"'best'.*lower"):
        metric(1.0, "best")  # type: ignore[arg-type]

    taken = [True, "x", 3, 2.5, numpy.int64(3), numpy.float32(0.5), numpy.bool_(1), numpy.str_("x"), numpy.array([2])]
    refused = [None, "a\nb", 2**54, 1e301, math.nan, 1j, [1], numpy.ones(2), numpy.complex64(1), object()]
    assert [as_scalar(value) for value in taken] == [True, "x", 3, 2.5, 3, 0.5, True, "x", 2]
    assert {type(as_scalar(value)) for value in taken} == {bool, str, int, float}
    assert [as_scalar(value) for value in refused] == [None] * len(refused)


@pytest.mark.parametrize("name", ["wall_time", "fingerprint", "phase/step/forward"])
def test_names_that_the_plugin_records_under_are_its_own(name: str) -> None:
    assert is_own_name(name)
    assert not is_own_name(f"my_{name}")
