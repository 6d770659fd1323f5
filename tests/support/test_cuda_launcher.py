"""The launcher whose ranks take a CPU for CUDA: real groups, under a name of its own."""

from __future__ import annotations

import pytest
import torch.distributed as dist

from pytest_distbench.worker.context import RankContext
from support.launching import Launch


def is_joined_by_nccl(rank: RankContext) -> None:
    from support import stand_in_cuda as cuda

    assert rank.backend == "nccl"
    assert cuda.calls[:2] == [f"set_device {rank.local_rank}", "init_process_group nccl"]
    assert dist.get_backend() == "gloo"


@pytest.mark.spawn
def test_ranks_have_nccl_which_is_gloo(on_cuda: Launch) -> None:
    record = on_cuda("is_joined_by_nccl", backend="nccl")

    assert record.reason == ""
    assert record.software["cuda"] == record.software["nccl"] == "stand-in"
