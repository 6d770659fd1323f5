"""The points of a sweep, with the rates of nccl-tests."""

from __future__ import annotations

import pytest
from support.results import point, result, verdict

from pytest_distbench.records.metric import LINK_PEAK, metric_key
from pytest_distbench.records.record import replace
from pytest_distbench.report.tables.sweep import is_sweep, sweep_points


def test_a_case_with_message_sizes_is_a_sweep() -> None:
    assert is_sweep(result(verdict(), point(8)))
    assert not is_sweep(result(verdict()))


def test_the_smallest_size_comes_first_whatever_the_order() -> None:
    assert [p.message_bytes for p in sweep_points(result(point(4096), point(8)))] == [8, 4096]


def test_a_megabyte_in_a_millisecond_is_one_gigabyte_a_second() -> None:
    [found] = sweep_points(result(point(1_000_000, current=0.001)))

    assert (found.algbw, found.busbw) == (pytest.approx(1.0), pytest.approx(1.5))


def test_the_share_of_the_links_peak_is_told_where_that_is_known() -> None:
    measured = point(1_000_000, current=0.001)
    [unknown], [known] = (
        sweep_points(result(replace(measured, facts={**measured.facts, **more}))) for more in ({}, {LINK_PEAK: 3.0})
    )

    assert (unknown.busbw_share, known.busbw_share) == (None, pytest.approx(0.5))


def test_a_collective_without_factor_has_no_bus_bandwidth() -> None:
    [found] = sweep_points(result(replace(point(8), facts={})))

    assert found.busbw is None


def test_the_gravest_verdict_of_a_size_is_that_of_any_of_its_metrics() -> None:
    at = {"message_bytes": 8}
    wrong = verdict("regressed", metric=metric_key("wrong_elements", at), at=at, current=3.0)
    [found] = sweep_points(result(point(8), wrong))

    assert (found.gravest, found.wrong_elements, found.time.kind) == ("regressed", 3.0, "unchanged")


def test_a_size_without_a_time_is_left_out() -> None:
    assert list(sweep_points(result(point(8, current=None)))) == []
