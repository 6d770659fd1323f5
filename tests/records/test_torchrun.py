"""torchrun's variables: which ones a rank may not inherit."""

from __future__ import annotations

import pytest

from pytest_distbench.records.torchrun import CONTRACT, is_of_a_group


@pytest.mark.parametrize(
    "name", ["RANK", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_OF_A_LATER_TORCH", "PET_NNODES"]
)
def test_what_an_outer_torchrun_set_is_its_groups(name: str) -> None:
    assert is_of_a_group(name)


@pytest.mark.parametrize("name", ["TORCH_NCCL_ASYNC_ERROR_HANDLING", "RANKS", "OMP_NUM_THREADS"])
def test_what_the_user_may_set_is_not(name: str) -> None:
    assert not is_of_a_group(name)


def test_only_what_torchrun_takes_over_from_the_user_is_both_given_and_the_users() -> None:
    assert [name for name in CONTRACT if not is_of_a_group(name)] == ["TORCH_NCCL_ASYNC_ERROR_HANDLING"]
