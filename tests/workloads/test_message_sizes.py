"""The presets of sizes, with MLBench's numbers written out."""

from __future__ import annotations

import numpy

from pytest_distbench.workloads.message_sizes import mlbench_sizes, power_of_two_sizes


def test_the_default_sweep_goes_from_4_b_to_64_mib() -> None:
    sizes = power_of_two_sizes(4, 64 * 2**20)

    assert (sizes[0], sizes[-1], len(sizes)) == (4, 67108864, 25)


def test_mlbench_sizes_are_numpys_logspace() -> None:
    counts = sorted(set(numpy.logspace(0, 8, num=80).astype(int).tolist()))

    assert mlbench_sizes(4) == [4 * c for c in counts]
