"""Sizes and bandwidths, with nccl-tests' and MLBench's numbers written out."""

from __future__ import annotations

import numpy
import pytest

from pytest_distbench.errors import ConfigurationError
from pytest_distbench.workloads.collectives import (
    algbw,
    busbw,
    collective,
    item_bytes,
    mlbench_sizes,
    power_of_two_sizes,
)


def test_all_reduce_of_1_gb_in_1_s_on_4_ranks_is_1_5_gb_per_s_of_bus_bandwidth() -> None:
    assert algbw(1e9, 1.0) == 1e9
    assert busbw("all_reduce", message_bytes=1e9, seconds=1.0, world_size=4) == 1.5e9


def test_one_rank_moves_nothing() -> None:
    assert busbw("all_reduce", message_bytes=1e9, seconds=1.0, world_size=1) == 0


def test_the_default_sweep_goes_from_4_b_to_64_mib() -> None:
    sizes = power_of_two_sizes(4, 64 * 2**20)

    assert (sizes[0], sizes[-1], len(sizes)) == (4, 67108864, 25)


def test_mlbench_sizes_are_numpys_logspace() -> None:
    counts = sorted(set(numpy.logspace(0, 8, num=80).astype(int).tolist()))

    assert mlbench_sizes(4) == [4 * c for c in counts]


def test_unknown_names_are_errors_that_list_the_known_ones() -> None:
    with pytest.raises(ConfigurationError, match="known are all_reduce"):
        collective("all_reduze")
    with pytest.raises(ConfigurationError, match=r"float33.*bfloat16"):
        item_bytes("float33")
