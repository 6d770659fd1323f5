"""A row of the table: bandwidth factor and sizes, with nccl-tests' numbers written out."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest

from pytest_distbench.errors import ConfigurationError
from pytest_distbench.workloads.collectives import OPERATIONS, operation

ALL_REDUCE = operation("all_reduce")


def test_all_reduce_of_1_gb_in_1_s_on_4_ranks_is_1_5_gb_per_s_of_bus_bandwidth() -> None:
    assert 1e9 / 1.0 * ALL_REDUCE.busbw_factor(4) == 1.5e9


def test_one_rank_moves_nothing() -> None:
    assert ALL_REDUCE.busbw_factor(1) == 0


def test_an_unknown_name_is_an_error_that_lists_the_known_ones() -> None:
    with pytest.raises(ConfigurationError, match=r"known are all_reduce, all_gather, .*; one of your own"):
        operation("all_reduze")


def test_sizes_are_whole_elements_each_once() -> None:
    assert ALL_REDUCE.message_sizes([2, 4, 6, 64], item_bytes=4, world_size=3) == [4, 64]


def test_an_operation_that_cuts_its_message_rounds_down_to_a_share_for_every_rank() -> None:
    cut = replace(ALL_REDUCE, granularity=lambda n: n)

    assert cut.message_sizes([4, 12, 32, 35], item_bytes=4, world_size=3) == [12, 24]


def test_an_operation_that_sends_nothing_has_one_size() -> None:
    empty = replace(ALL_REDUCE, granularity=lambda n: 0)

    assert empty.message_sizes([4, 64], item_bytes=4, world_size=2) == [0]


def test_no_size_left_is_an_error_that_says_what_it_sends() -> None:
    cut = replace(ALL_REDUCE, granularity=lambda n: n)

    with pytest.raises(ConfigurationError, match=r"multiples of 16 B, the largest size given is 12 B"):
        cut.message_sizes([4, 12], item_bytes=4, world_size=4)


def test_the_table_is_read_without_torch() -> None:
    code = "import sys, pytest_distbench.workloads.collectives; print('torch' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


@pytest.mark.parametrize(
    ("name", "factor", "size", "sent", "received"),
    [
        ("all_reduce", 1.5, 4100, 1025, 1025),
        ("all_gather", 0.75, 4096, 256, 1024),
        ("reduce_scatter", 0.75, 4096, 1024, 256),
        ("broadcast", 1.0, 4100, 1025, 1025),
        ("reduce", 1.0, 4100, 1025, 1025),
        ("gather", 0.75, 4096, 256, 1024),
        ("scatter", 0.75, 4096, 1024, 256),
        ("all_to_all", 0.75, 4096, 1024, 1024),
        ("all_to_all_v", 0.75, 4000, 1000, 1000),
        ("send_recv", 1.0, 4100, 1025, 1025),
        ("barrier", 0.0, 0, 0, 0),
    ],
)
def test_factor_size_and_counts_are_those_of_nccl_tests_on_4_ranks(
    name: str, factor: float, size: int, sent: int, received: int
) -> None:
    row = operation(name)

    assert row.busbw_factor(4) == factor
    assert row.busbw_factor(1) == 0
    assert row.message_sizes([4102], item_bytes=4, world_size=4) == [size]
    assert row.counts(size // 4, 4) == (sent, received)


def test_every_row_has_its_numbers_here() -> None:
    assert len(OPERATIONS) == 11


def test_a_message_in_parts_is_rounded_so_that_each_part_can_be_sent() -> None:
    assert operation("all_gather").message_sizes([1000], item_bytes=4, world_size=4, parts=4) == [768]
