"""Numbers of charts."""

from __future__ import annotations

from pytest_distbench.report.page import points, short


def test_a_point_without_a_value_is_left_out_and_others_have_four_digits() -> None:
    assert points([(1, 0.123456), (2, None), (3, 0.0)]) == [(1.0, 0.1235), (3.0, 0.0)]
    assert short(123456) == 123500.0
