"""What a process on another host has of pytest's environment."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from pytest_distbench.records.host_variables import HOST_VARIABLES, INTERFACE, of_a_step, of_ranks

PAGE = (Path(__file__).parents[2] / "docs" / "slurm.md").read_text()


def test_a_variable_is_of_one_row_and_stands_on_the_page() -> None:
    counts = Counter(name for row in HOST_VARIABLES for name in row.names)

    assert max(counts.values()) == 1
    assert [name for name in [*counts, INTERFACE] if f"`{name}`" not in PAGE] == []
    assert [row.of for row in HOST_VARIABLES if row.is_dropped == row.is_the_hosts] == []


@pytest.mark.parametrize(
    ("of_pytest", "here", "of_its_ranks"),
    [
        ({"CUDA_VISIBLE_DEVICES": "0,1,2,3"}, {"CUDA_VISIBLE_DEVICES": "4,5,6,7"}, {"CUDA_VISIBLE_DEVICES": "4,5,6,7"}),
        ({"CUDA_VISIBLE_DEVICES": ""}, {}, {}),  # as on a login node without GPUs
        ({}, {"ROCR_VISIBLE_DEVICES": "1"}, {"ROCR_VISIBLE_DEVICES": "1"}),
        ({"ZE_AFFINITY_MASK": "0", "MINE": "a"}, {"MINE": "b"}, {"MINE": "a"}),
        ({"SLURM_STEP_GPUS": "0", "NVIDIA_VISIBLE_DEVICES": "all"}, {"NVIDIA_VISIBLE_DEVICES": "GPU-1"},
         {"NVIDIA_VISIBLE_DEVICES": "GPU-1"}),
        ({"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, {"CUDA_DEVICE_ORDER": "x"}, {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}),
    ],
)  # fmt: skip
def test_what_names_devices_is_of_the_ranks_own_host(
    of_pytest: dict[str, str], here: dict[str, str], of_its_ranks: dict[str, str]
) -> None:
    assert of_ranks(of_pytest, here) == of_its_ranks


def test_a_step_gets_what_is_of_no_task() -> None:
    kept = {"SLURM_JOB_ID": "1", "SLURM_NTASKS_PER_NODE": "8", "CUDA_VISIBLE_DEVICES": "0", "NCCL_DEBUG": "WARN"}

    assert of_a_step({**kept, "SLURM_GPUS_PER_TASK": "1", "SRUN_CPUS_PER_TASK": "2"}) == kept
