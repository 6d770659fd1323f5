"""The reduce operations: their inputs give exact results that tell the operations apart."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from pytest_distbench.errors import ConfigurationError
from pytest_distbench.workloads.collectives.inputs import Inputs
from pytest_distbench.workloads.collectives.reductions import REDUCTIONS, reduction


def rows(redop: str, *, world_size: int, dtype: str = "float32") -> tuple[torch.Tensor, torch.Tensor]:
    made = Inputs(100, rank=0, world_size=world_size, device=torch.device("cpu"), redop=redop, dtype=dtype)
    sent = torch.stack([made.of(rank).make(0, 100, torch.int64) for rank in range(world_size)])
    return sent, made.reduced().make(0, 100, torch.float64)


@pytest.mark.parametrize("redop", REDUCTIONS)
def test_torch_has_each_by_its_name(redop: str) -> None:
    assert hasattr(dist.ReduceOp, REDUCTIONS[redop].torch_name)


@pytest.mark.parametrize("world_size", [2, 3, 4, 8])
@pytest.mark.parametrize("redop", REDUCTIONS)
def test_no_result_is_that_of_another_operation_or_of_one_rank(redop: str, world_size: int) -> None:
    sent, result = rows(redop, world_size=world_size)
    others = {name: row.combine(sent).double() for name, row in REDUCTIONS.items() if name != redop}

    assert [name for name, other in others.items() if torch.equal(other, result)] == []
    assert not any(torch.equal(one.double(), result) for one in sent)


@pytest.mark.parametrize("world_size", [2, 3, 4, 6, 8, 64])
@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e5m2"])
def test_results_are_exact_in_the_smallest_types(dtype: str, world_size: int) -> None:
    if dtype == "float8_e5m2" and world_size > 8:
        pytest.skip("three significant bits hold no sum of so many ranks")
    for redop in ("sum", "avg", "product", "min", "max"):  # torch has the others for integers only
        _, result = rows(redop, world_size=world_size, dtype=dtype)
        if redop == "avg" and dtype == "float8_e5m2":
            continue  # no backend has it
        assert result.to(getattr(torch, dtype)).double().tolist() == result.tolist(), redop


def test_products_of_many_ranks_stay_small() -> None:
    _, result = rows("product", world_size=64)

    assert result.max() == 6


def test_an_unknown_name_is_an_error_that_lists_the_known_ones() -> None:
    with pytest.raises(ConfigurationError, match="unknown reduce operation 'mean': known are sum, avg"):
        reduction("mean")
