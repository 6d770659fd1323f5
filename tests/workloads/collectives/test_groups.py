"""Groups of ranks that call at the same time."""

from __future__ import annotations

import pytest

from pytest_distbench.errors import ConfigurationError
from pytest_distbench.workloads.collectives.groups import groups_of


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
