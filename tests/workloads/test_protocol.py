"""How a sweep measures: its types, sizes, groups and transports, which are read without torch."""

from __future__ import annotations

import numpy
import pytest
import torch

from pytest_distbench.errors import ConfigurationError
from pytest_distbench.records.options import BACKENDS
from pytest_distbench.workloads.collectives import OPERATIONS
from pytest_distbench.workloads.protocol import DTYPES, PRESETS, TRANSPORTS, groups_of, item_bytes, mlbench_sizes


@pytest.mark.parametrize("name", DTYPES)
def test_an_element_has_as_many_bytes_as_torch_says(name: str) -> None:
    assert item_bytes(name) == getattr(torch, name).itemsize


@pytest.mark.parametrize("name", DTYPES)
def test_every_whole_number_up_to_the_largest_is_exact(name: str) -> None:
    numbers = torch.arange(DTYPES[name][1] + 1)
    found = numbers.to(getattr(torch, name))

    assert (found.real if found.is_complex() else found).to(torch.int64).tolist() == numbers.tolist()


def test_sizes_are_those_of_the_protocols_and_unknown_names_are_told() -> None:
    with pytest.raises(ConfigurationError, match=r"float33.*bfloat16"):
        item_bytes("float33")

    sizes = PRESETS["powers"].sizes(4)
    assert (sizes[0], sizes[-1], len(sizes)) == (4, 67108864, 25)

    counts = sorted(set(numpy.logspace(0, 8, num=80).astype(int).tolist()))
    assert mlbench_sizes(4) == [4 * c for c in counts]


@pytest.mark.parametrize("name", TRANSPORTS)
def test_a_transport_is_of_known_backends_and_collectives_and_sets_what_no_other_sets(name: str) -> None:
    variables, collectives = TRANSPORTS[name]

    assert set(variables) <= set(BACKENDS)
    assert set(collectives) <= set(OPERATIONS)
    assert all(variables.values())
    assert all(variables != other for key, (other, _) in TRANSPORTS.items() if key != name)


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
