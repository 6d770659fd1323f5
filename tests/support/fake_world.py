"""One process as a rank of a large world: the backend ``fake``, in the test's own process."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch.distributed as dist

from pytest_distbench.worker.context import RankContext
from pytest_distbench.worker.torch_internals import join_fake_group
from support.ranks import make_rank


@contextlib.contextmanager
def fake_rank(rank: int = 0, *, world_size: int = 64, **plan: object) -> Iterator[RankContext]:
    """A rank's context in such a world, whose watch looks."""
    join_fake_group(rank=rank, world_size=world_size)
    made = make_rank(stands_for=rank, **plan)
    made.rank, made.world_size = rank, world_size
    made.watch.look()
    try:
        yield made
    finally:
        made.watch.look_away()
        dist.destroy_process_group()
