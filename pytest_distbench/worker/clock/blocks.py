"""Blocks: how many iterations a group runs before the other one has its turn, where two groups run in turns."""

from __future__ import annotations

import math

MOST_BLOCKS = 60
"""Of one timed loop: each change of turns costs about a millisecond."""

SHORTEST_BLOCK = 10
"""Iterations. The first one after a change of turns finds cold caches, and must stay a small part of its block."""


def block_length(iterations: int) -> int:
    """Iterations of one block, in a loop of so many."""
    return max(SHORTEST_BLOCK, math.ceil(iterations / MOST_BLOCKS))
