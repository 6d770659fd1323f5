"""Which samples a rank trains on: one permutation per epoch, that goes on at the same place after a change of ranks."""

from __future__ import annotations

import torch


def permutation(samples: int, *, seed: int, epoch: int) -> torch.Tensor:
    """The order of an epoch's samples (samples,), the same in every rank of every generation."""
    own = (1000 * seed + epoch) % 2**64  # as torch takes negative ones, too
    return torch.randperm(samples, generator=torch.Generator().manual_seed(own))


def next_count(left: int, *, batch: int, world_size: int, most: int) -> int:
    """Samples of the next step, over all ranks: a batch for each, or all that is left where that is hardly more.

    What a step leaves of an epoch is nothing, or at least a sample for each of the most ranks there may be: so no rank
    is ever without one, however many there are in the next step.
    """
    count = batch * world_size
    return left if left - count < most else count


def share(chosen: torch.Tensor, *, rank: int, world_size: int) -> torch.Tensor:
    """A rank's part of a step's samples; those of two ranks differ by one sample at most."""
    return chosen[rank::world_size]
