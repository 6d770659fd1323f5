"""What a process on another host has of pytest's environment: all of it, but for the rows of one table.

A step of a Slurm job has one process on each node, which starts all ranks of the node: what the job gives to each of
its tasks would be what they share. What names devices was said by whoever started a process on that host, the step, a
pod or an engine; pytest's own value is of pytest's host.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class HostVariables:
    """Some environment variables that are not simply handed on.

    Attributes:
        of: what they decide.
        names: of the variables.
        is_dropped: a step of ours does not get them. Else it does.
        is_the_hosts: ranks have the value of their own host, or none where it has none. Else they have pytest's.
        instead: what takes their place.
    """

    of: str
    names: tuple[str, ...]
    is_dropped: bool = False
    is_the_hosts: bool = False
    instead: str = ""


HOST_VARIABLES = (
    HostVariables(
        of="GPUs of a task",
        names=(
            "SLURM_GPUS", "SLURM_GPUS_PER_NODE", "SLURM_GPUS_PER_SOCKET", "SLURM_GPUS_PER_TASK", "SLURM_GPU_BIND",
            "SLURM_NTASKS_PER_GPU", "SLURM_NTASKS_PER_TRES", "SLURM_TRES_BIND", "SLURM_TRES_PER_TASK",
        ),
        is_dropped=True,
        instead="--gpus-per-node of the job, --gpu-bind=none",
    ),
    HostVariables(
        of="CPUs of a task",
        names=(
            "SLURM_CPUS_PER_GPU", "SLURM_CPUS_PER_TASK", "SLURM_CPU_BIND", "SLURM_CPU_BIND_LIST", "SLURM_CPU_BIND_TYPE",
            "SLURM_CPU_BIND_VERBOSE", "SLURM_EXACT", "SLURM_HINT", "SLURM_NTASKS_PER_CORE", "SLURM_THREADS_PER_CORE",
            "SRUN_CPUS_PER_TASK",
        ),
        is_dropped=True,
        instead="--cpu-bind=none; all that the job has on the node",
    ),
    HostVariables(
        of="memory of a task",
        names=("SLURM_MEM_BIND", "SLURM_MEM_PER_CPU", "SLURM_MEM_PER_GPU"),
        is_dropped=True,
        instead="all that the job has on the node",
    ),
    HostVariables(
        of="devices",
        names=(
            "CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL", "HIP_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES",
            "ROCR_VISIBLE_DEVICES", "SLURM_JOB_GPUS", "SLURM_STEP_GPUS", "ZE_AFFINITY_MASK",
        ),
        is_the_hosts=True,
        instead="what the step, the pod or the engine has given the host",
    ),
)  # fmt: skip
"""A row for what they decide."""

INTERFACE = "GLOO_SOCKET_IFNAME"
"""Of ranks on several hosts: set where it is not, to the interface by which the host reached pytest's."""

_DROPPED = frozenset(name for row in HOST_VARIABLES if row.is_dropped for name in row.names)
_OF_THE_HOST = frozenset(name for row in HOST_VARIABLES if row.is_the_hosts for name in row.names)


def of_a_step(variables: Mapping[str, str]) -> dict[str, str]:
    """Those that a step gets."""
    return {name: value for name, value in variables.items() if name not in _DROPPED}


def of_ranks(variables: Mapping[str, str], here: Mapping[str, str]) -> dict[str, str]:
    """Those of ranks on this host, made of pytest's and of those that were set here."""
    kept = {name: value for name, value in variables.items() if name not in _OF_THE_HOST}
    return kept | {name: here[name] for name in sorted(_OF_THE_HOST & here.keys())}
