"""The files and variables by which pytest and the ranks of a launch agree."""

from __future__ import annotations

import os
import re
from collections import Counter
from pathlib import Path

import pytest

import pytest_distbench
from pytest_distbench.records import launch_files
from pytest_distbench.records.launch_files import (
    CONTRACT,
    HOST_VARIABLES,
    INTERFACE,
    LaunchFiles,
    is_of_a_group,
    of_a_step,
    of_ranks,
    open_left,
)

PAGE = (Path(__file__).parents[2] / "docs" / "slurm.md").read_text()


def test_variables_stand_in_one_row_and_names_in_one_module() -> None:
    counts = Counter(name for row in HOST_VARIABLES for name in row.names)
    assert max(counts.values()) == 1
    assert [name for name in [*counts, INTERFACE] if f"`{name}`" not in PAGE] == []
    assert [row.of for row in HOST_VARIABLES if row.is_dropped == row.is_the_hosts] == []

    modules = Path(pytest_distbench.__file__).parent.rglob("*.py")
    assert [path for path in modules if NAME.search(path.read_text())] == [Path(launch_files.__file__)]

    of_a_rank = [
        file(rank) for file in (FILES.report, FILES.log, FILES.stacks, FILES.flight, FILES.groups) for rank in (1, 11)
    ]
    of_all = [FILES.plan, FILES.control, FILES.sockets, FILES.launcher_log, FILES.torchrun_logs]
    assert len({*of_a_rank, *of_all}) == 15

    assert [name for name in CONTRACT if not is_of_a_group(name)] == ["TORCH_NCCL_ASYNC_ERROR_HANDLING"]

    kept = {"SLURM_JOB_ID": "1", "SLURM_NTASKS_PER_NODE": "8", "CUDA_VISIBLE_DEVICES": "0", "NCCL_DEBUG": "WARN"}
    assert of_a_step({**kept, "SLURM_GPUS_PER_TASK": "1", "SRUN_CPUS_PER_TASK": "2"}) == kept


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


FILES = LaunchFiles(Path("/launch1"))

NAME = re.compile(
    r"""plan\.json["']|/ ["']control["']|"""
    r"""rank\{[\w.]+\}\.(json|log)|(stacks|flight|groups)\{|launcher\.log|nccl-flight|["']sockets"""
)


def test_what_is_no_regular_file_is_not_read(tmp_path: Path) -> None:
    """A pipe that nobody writes to would block for ever, a device might never end."""
    os.mkfifo(tmp_path / "rank0.log")
    (tmp_path / "rank1.log").symlink_to("/dev/zero")
    (tmp_path / "rank2.log").write_text("words")

    for rank in (0, 1):
        with pytest.raises(OSError, match="no regular file"):
            open_left(tmp_path / f"rank{rank}.log")
    with open_left(tmp_path / "rank2.log") as file:
        assert file.read() == b"words"
