"""How many iterations a group runs before the other one has its turn."""

from __future__ import annotations

import pytest

from pytest_distbench.worker.clock.blocks import block_length


@pytest.mark.parametrize(("iterations", "length"), [(1, 10), (600, 10), (601, 11), (6000, 100)])
def test_a_loop_has_at_most_sixty_blocks_of_ten_iterations_or_more(iterations: int, length: int) -> None:
    assert block_length(iterations) == length
