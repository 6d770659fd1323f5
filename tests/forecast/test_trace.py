"""What a trace replaces in torch so that a step of thousands of ranks costs what one rank's does."""

from __future__ import annotations

import pytest
import torch
from torch.distributed.fsdp._fully_shard._fsdp_common import _chunk_with_empty

from pytest_distbench.forecast.trace import Chunks


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("shape", [(8, 3), (7, 4), (3, 3), (1, 1), (0, 2)])
@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
def test_shards_made_when_read_are_those_of_torch(shape: tuple[int, int], ranks: int, dim: int) -> None:
    tensor = torch.arange(float(shape[0] * shape[1])).reshape(shape)
    expected = _chunk_with_empty(tensor, ranks, dim)
    chunks = Chunks(tensor, ranks, dim)

    assert len(chunks) == len(expected) == ranks
    assert [(shard.shape, shard.tolist()) for shard in chunks] == [(each.shape, each.tolist()) for each in expected]
    assert chunks[-1].data_ptr() == expected[-1].data_ptr()
    assert [shard.shape for shard in chunks[1:]] == [each.shape for each in expected[1:]]
    with pytest.raises(IndexError):
        chunks[ranks]
