"""Which sizes of a sweep moved, in words."""

from __future__ import annotations

import pytest

from pytest_distbench.judging.sizes import which


@pytest.mark.parametrize(
    ("hit", "words"),
    [
        ([4, 8, 16, 32], "at all 4 sizes"),
        ([16, 32], "from 16 B up"),
        ([4, 8], "up to 8 B"),
        ([8, 16], "from 8 B to 16 B"),
        ([8], "at 8 B only"),
        ([4, 16], "at 2 of 4 sizes, first at 4 B"),
    ],
)
def test_sizes_in_words(hit: list[int], words: str) -> None:
    assert which(hit, [4, 8, 16, 32]) == words
