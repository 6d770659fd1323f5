"""The choices of a sweep: presets of sizes with MLBench's numbers written out, and groups of ranks."""

from __future__ import annotations

import numpy
import pytest

from pytest_distbench.errors import ConfigurationError
from pytest_distbench.workloads.protocol import groups_of, mlbench_sizes, power_of_two_sizes


def test_the_default_sweep_goes_from_4_b_to_64_mib() -> None:
    sizes = power_of_two_sizes(4, 64 * 2**20)

    assert (sizes[0], sizes[-1], len(sizes)) == (4, 67108864, 25)


def test_mlbench_sizes_are_numpys_logspace() -> None:
    counts = sorted(set(numpy.logspace(0, 8, num=80).astype(int).tolist()))

    assert mlbench_sizes(4) == [4 * c for c in counts]


@pytest.mark.parametrize(
    ("name", "world_size", "groups"),
    [
        ("all", 3, [(0, 1, 2)]),
        ("all", 1, [(0,)]),
        ("half", 4, [(0, 1)]),
        ("halves", 4, [(0, 1), (2, 3)]),
        ("halves", 5, [(0, 1), (2, 3)]),
        (3, 4, [(0, 1, 2)]),
    ],
)
def test_a_name_stands_for_ranks(name: str | int, world_size: int, groups: list[tuple[int, ...]]) -> None:
    assert groups_of(name, world_size) == groups


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("half", "group='half' of 2 ranks is one rank: it needs 4 ranks, --world-size 4"),
        ("third", "group='third': wanted one of all, half, halves, or a number of ranks"),
        (3, "group=3: wanted 2 to 2 ranks, the world size"),
        (True, "group=True: wanted one of all"),
    ],
)
def test_what_is_no_group_is_told(name: str | int, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        groups_of(name, 2)
