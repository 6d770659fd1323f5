"""The Slurm allocation that pytest runs in: its nodes, the GPUs on each, and which ranks live where.

It is read from the environment, whose variables ``salloc`` and ``sbatch`` set (sbatch(1), *OUTPUT ENVIRONMENT
VARIABLES*).
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pytest_distbench.errors import ConfigurationError, show

_JOB, _NODES = "SLURM_JOB_ID", "SLURM_JOB_NODELIST"
_ANSWER_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """Nodes that are ours for a while.

    Attributes:
        nodes: names, in Slurm's order.
        tasks_per_node: that were asked for; None: nobody has said.
        gpus_per_node: that were allocated; 0: none, or nobody knows.
    """

    job: str
    nodes: Sequence[str]
    tasks_per_node: int | None = None
    gpus_per_node: int = 0

    def layout(self, ranks: int, *, on_gpus: bool) -> list[range]:
        """Which ranks live on each of the first nodes: as many as were asked for, or one for each GPU, or equal parts.

        Raises:
            ConfigurationError: the nodes have no room for so many.
        """
        per_node = self.tasks_per_node or (self.gpus_per_node if on_gpus else 0) or -(-ranks // len(self.nodes))
        if ranks > per_node * len(self.nodes):
            raise ConfigurationError(
                f"{ranks} ranks: job {self.job} has room for {per_node * len(self.nodes)}, {per_node} on each of "
                f"{len(self.nodes)} nodes: salloc --nodes={-(-ranks // per_node)}, or a smaller --world-size"
            )
        return [range(first, min(first + per_node, ranks)) for first in range(0, ranks, per_node)]


def read_allocation(variables: Mapping[str, str]) -> Allocation:
    """The allocation that this process is in.

    Raises:
        ConfigurationError: it is in none, or Slurm cannot be asked.
    """
    if not variables.get(_JOB) or not variables.get(_NODES):
        raise ConfigurationError(
            f"--distbench-launcher slurm starts job steps in an allocation, and {_JOB} is not set: run it inside one, "
            "as salloc --nodes=2 pytest ..., or in an sbatch script"
        )
    nodes = _run(["scontrol", "show", "hostnames", variables[_NODES]], variables).split()
    return Allocation(
        job=variables[_JOB],
        nodes=nodes,
        tasks_per_node=_number(variables.get("SLURM_NTASKS_PER_NODE", "")),
        gpus_per_node=_gpus_per_node(variables, len(nodes)),
    )


def _gpus_per_node(variables: Mapping[str, str], nodes: int) -> int:
    """As the environment tells, or else the job, of all nodes together.

    That is its ``TRES=...,gres/gpu=8``, where GPUs are accounted, or else ``JOB_GRES=gpu:a100:8``.
    """
    told = variables.get("SLURM_GPUS_PER_NODE") or variables.get("SLURM_GPUS_ON_NODE") or ""
    if (number := _number(told)) is not None:
        return number
    job = _run(["scontrol", "show", "job", "-d", variables[_JOB]], variables)
    accounted, allocated = re.search(r"TRES=\S*gres/gpu=(\d+)", job), re.search(r"JOB_GRES=(\S+)", job)
    kinds = allocated[1].split(",") if allocated else []
    return int(accounted[1] if accounted else _number(",".join(k for k in kinds if k.startswith("gpu:"))) or 0) // nodes


def _run(command: list[str], variables: Mapping[str, str]) -> str:
    try:
        done = subprocess.run(
            command, env=dict(variables), capture_output=True, text=True, timeout=_ANSWER_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigurationError(f"{' '.join(command)} does not answer: {error}") from error
    if done.returncode:
        said = show(done.stderr.strip() or done.stdout.strip())
        raise ConfigurationError(f"{' '.join(command)} ended with exit code {done.returncode}: {said}")
    return done.stdout


def _number(text: str) -> int | None:
    """Of ``4``, ``a100:4``; a sum over ``a100:2,h100:2``. None: there is none."""
    found = [int(part.rpartition(":")[2]) for part in text.split(",") if part.rpartition(":")[2].isdecimal()]
    return sum(found) or None
