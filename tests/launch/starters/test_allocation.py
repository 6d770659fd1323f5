"""The Slurm allocation: read from the environment, with what to do where there is none, or it is too small."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_distbench.errors import ConfigurationError
from pytest_distbench.launch.starters.slurm import Allocation, read_allocation

SCONTROL = """\
case "$2 $3" in
  "hostnames n[1-2]") printf "n1\\nn2\\n" ;;
  "job -d") echo "JobId=$4 NumNodes=2 AllocTRES=cpu=8,node=2${ALLOCATED:-} JOB_GRES=${GRES:-(null)}" ;;
  *) exit 1 ;;
esac"""


@pytest.fixture
def variables(tmp_path: Path) -> dict[str, str]:
    """Of a job on two nodes, with stand-ins for Slurm's programs."""
    answers = {"srun": "echo slurm-wlm ${RELEASE:-24.05.1}", "scontrol": SCONTROL}
    for name, answer in answers.items():
        program = tmp_path / name
        program.write_text(f"#!/bin/sh\n{answer}\n")
        program.chmod(0o755)
    return {"PATH": f"{tmp_path}:/usr/bin:/bin", "SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-2]"}


def test_it_knows_its_nodes(variables: dict[str, str]) -> None:
    assert read_allocation(variables) == Allocation(job="7", nodes=["n1", "n2"])


@pytest.mark.parametrize(("given", "gpus"), [("4", 4), ("a100:4", 4), ("a100:2,h100:2", 4), ("", 0), ("all", 0)])
def test_it_knows_the_gpus_of_a_node(variables: dict[str, str], given: str, gpus: int) -> None:
    assert read_allocation({**variables, "SLURM_GPUS_PER_NODE": given}).gpus_per_node == gpus


@pytest.mark.parametrize(
    ("told", "gpus"),
    [
        ({"ALLOCATED": ",billing=8,gres/gpu=8,gres/gpu:a100=8"}, 4),
        ({"GRES": "gpu:8"}, 4),
        ({"GRES": "gpu:a100:8"}, 4),
        ({"GRES": "gpu:a100:4,gpu:h100:4,nic:2"}, 4),
        ({"GRES": "nic:8"}, 0),
        ({"ALLOCATED": ",gres/gpu=4", "GRES": "gpu:4"}, 2),
        ({}, 0),
    ],
)
def test_what_the_environment_does_not_say_of_gpus_the_job_does(
    variables: dict[str, str], told: dict[str, str], gpus: int
) -> None:
    assert read_allocation({**variables, **told}).gpus_per_node == gpus


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"SLURM_JOB_ID": ""}, r"SLURM_JOB_ID is not set: run it inside one, as salloc --nodes=2 pytest"),
        ({"PATH": "/nowhere"}, r"srun and scontrol cannot be found on PATH: load Slurm's module"),
        ({"RELEASE": "20.02.7"}, r"srun --version says 'slurm-wlm 20.02.7'; wanted Slurm 20.11 or later"),
        ({"SLURM_JOB_NODELIST": "x"}, r"scontrol show hostnames x ended with exit code 1"),
    ],
)
def test_what_is_missing_is_told_with_the_next_step(
    variables: dict[str, str], changes: dict[str, str], told: str
) -> None:
    with pytest.raises(ConfigurationError, match=told):
        read_allocation({**variables, **changes})


@pytest.mark.parametrize(
    ("allocation", "ranks", "on_gpus", "wanted"),
    [
        (Allocation(job="7", nodes="abcd"), 4, False, [range(1), range(1, 2), range(2, 3), range(3, 4)]),
        (Allocation(job="7", nodes="ab"), 5, False, [range(3), range(3, 5)]),
        (Allocation(job="7", nodes="ab", tasks_per_node=4), 4, False, [range(4)]),
        (Allocation(job="7", nodes="abcd", gpus_per_node=4), 8, True, [range(4), range(4, 8)]),
        (Allocation(job="7", nodes="ab", gpus_per_node=4), 2, False, [range(1), range(1, 2)]),
    ],
)
def test_ranks_fill_nodes_as_was_asked_or_by_their_gpus_or_in_equal_parts(
    allocation: Allocation, ranks: int, on_gpus: bool, wanted: list[range]
) -> None:
    assert allocation.layout(ranks, on_gpus=on_gpus) == wanted


@pytest.mark.parametrize(
    ("allocation", "told"),
    [
        (
            Allocation(job="7", nodes="ab", gpus_per_node=2),
            "8 ranks: job 7 has room for 4, 2 on each of 2 nodes",
        ),
        (
            Allocation(job="7", nodes="ab", tasks_per_node=4, gpus_per_node=2),
            r"4 ranks per node .* has 2 GPUs on each",
        ),
    ],
)
def test_an_allocation_that_is_too_small_says_what_to_ask_for(allocation: Allocation, told: str) -> None:
    with pytest.raises(ConfigurationError, match=told):
        allocation.layout(8, on_gpus=True)
