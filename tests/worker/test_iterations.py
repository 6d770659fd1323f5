"""The clock around the body of a timed loop, in a group of one rank."""

from __future__ import annotations

import pytest
from support.ranks import make_rank


@pytest.mark.parametrize(("warmup", "iterations"), [(0, 1), (2, 3)])
def test_warm_up_counts_up_to_nought_and_only_the_rest_is_timed(warmup: int, iterations: int) -> None:
    rank = make_rank()
    seen = list(rank.timed("step", warmup=warmup, iterations=iterations))
    [timed] = [o for o in rank.notebook.observations if o.name == "step"]

    assert seen == list(range(-warmup, iterations))
    assert len(timed.values) == iterations
    assert set(timed.companions) == {"cpu_s", "waits"}
    assert [len(values) for values in timed.companions.values()] == [iterations] * 2
