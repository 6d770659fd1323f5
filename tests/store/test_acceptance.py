"""From rows of a tool to bounds and baselines: which rows, the margin, and several runs."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_distbench.errors import ConfigurationError
from pytest_distbench.records.bound_text import terms_of
from pytest_distbench.records.perf_output import PerfOutput, PerfRow
from pytest_distbench.store.acceptance import Rows, baselines_of, bounds_of


def row(size: int = 4096, time_s: float = 2e-4, **changes: Any) -> PerfRow:
    made = {"dtype": "float", "redop": "sum", "root": "-1", "in_place": True, "busbw": 100.0}
    return PerfRow(size=size, time_s=time_s, **(made | changes))


def output(*rows: PerfRow) -> PerfOutput:
    return PerfOutput(program="all_reduce_perf", ranks=8, device="", rows=rows, is_whole=True)


def test_rows_are_chosen_by_side_type_operation_and_size() -> None:
    run = output(row(8), row(4096), row(8192), row(in_place=False), row(dtype="half"), row(redop="max"))

    assert [r.size for r in Rows(in_place=True, dtype="float32", redop="sum", least=9, most=4096).of(run)] == [4096]


@pytest.mark.parametrize(
    ("rows", "chosen", "message"),
    [
        ([row(), row(dtype="half")], {}, "the rows are of float, half: give --dtype"),
        ([row(), row(redop="max")], {}, "the rows are of max, sum: give --redop"),
        ([row(), row(root="3")], {}, "the rows are of root -1, root 3: give a file of one"),
        ([row()], {"dtype": "half"}, "no row is in place and as asked for; there are float sum of 4096 to 4096 B"),
    ],
)
def test_rows_of_several_kinds_or_none_are_an_error(rows: list[PerfRow], chosen: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Rows(in_place=True, **chosen).of(output(*rows))


def test_a_bound_is_the_median_over_runs_with_a_margin() -> None:
    runs = [[row(time_s=time)] for time in (1e-4, 2e-4, 9e-4)]

    assert bounds_of(runs, metric="latency", margin=0.1) == {"latency[message_bytes=4096]": "<= 220 us"}
    assert bounds_of(runs, metric="busbw", margin=0.1) == {"busbw[message_bytes=4096]": ">= 90 GB/s"}


def test_what_was_printed_as_nothing_is_no_bound() -> None:
    assert bounds_of([[row(8, busbw=0.0), row()]], metric="busbw", margin=0.0).keys() == {"busbw[message_bytes=4096]"}
    assert bounds_of([[row(8, time_s=0.0)]], metric="latency", margin=0.0) == {}


def test_every_bound_that_is_made_can_be_read() -> None:
    for time in (1e-9, 3.3e-7, 0.123456, 7.0):
        for value in bounds_of([[row(time_s=time)]], metric="latency", margin=0.07).values():
            assert terms_of(value)[0].side == "most"


def test_a_baseline_has_a_time_per_run_where_all_have_one() -> None:
    runs = [[row(time_s=1.23456e-4), row(8)], [row(time_s=1e-4), row(time_s=3e-4)]]
    found = baselines_of(runs, in_place=True)

    assert found.keys() == {"latency[message_bytes=4096]"}
    [metric] = found.values()
    assert (metric.launches, metric.identity) == ([1.235e-4, 2e-4], {"in_place": True, "redop": "sum"})
