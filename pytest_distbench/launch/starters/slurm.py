"""Ranks on the nodes of a Slurm allocation: a job step for each launch, with a relay on every node."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping, Sequence
from typing import Any

import psutil

from pytest_distbench.launch.site import processes
from pytest_distbench.launch.site.relayed import RelayedSite
from pytest_distbench.launch.starters.allocation import read_allocation
from pytest_distbench.launch.starters.calls import Callers, open_site
from pytest_distbench.launch.starters.contract import SESSION_VARIABLE, HostsWanted
from pytest_distbench.launch.starters.hosts import describe_hosts
from pytest_distbench.records.environment import Environment
from pytest_distbench.records.plan import LaunchPlan

_OF_THE_BATCH = ("SLURM_CPU_BIND", "SLURM_CPU_BIND_TYPE", "SLURM_CPU_BIND_LIST", "SLURM_MEM_PER_CPU")
"""What the allocation's own step was given, and a step of ours would take over."""


def describe(wanted: HostsWanted) -> Environment:
    """What the nodes of the allocation are, from one step on all of them. See :func:`describe_hosts`."""
    allocation = read_allocation(os.environ)
    return describe_hosts(
        f"the nodes of job {allocation.job}",
        functools.partial(step, allocation.nodes),
        wanted,
        gpu_advice="allocate some, as salloc --gpus-per-node=4; with no partition that has any (sinfo -o '%P %G'), "
        "leave --gpu out",
    )


class SlurmLauncher:
    """Starts a job step per launch."""

    name = "slurm"

    def __init__(self, session: str) -> None:
        self.session = session
        self.allocation = read_allocation(os.environ)

    def prepare(self, variables: dict[str, str]) -> None:
        """Nothing can be prepared."""

    def open(self, plan: LaunchPlan) -> RelayedSite:
        layout = self.allocation.layout(plan.processes, on_gpus=plan.device == "cuda")
        nodes = self.allocation.nodes[: len(layout)]
        return open_site(plan, layout, functools.partial(step, nodes, session=self.session))

    def leftovers(self) -> list[psutil.Process]:
        """What there is on this host: the sruns of steps that have not ended."""
        return processes.find_marked(SESSION_VARIABLE, self.session)

    def close(self) -> None:
        """End the steps that are still there."""
        processes.kill(self.leftovers())


def step(nodes: Sequence[str], module: str, *words: str, **callers: Any) -> Callers:
    """One ``srun`` that starts a process on each node, beside whatever runs there."""
    srun = [
        "srun", "--overlap", f"--nodes={len(nodes)}", f"--ntasks={len(nodes)}", "--ntasks-per-node=1",
        f"--nodelist={','.join(nodes)}", "--distribution=block", "--cpu-bind=none", "--mpi=none", "--input=none",
        "--unbuffered", "--kill-on-bad-exit=0", "--export=ALL", "--label",
    ]  # fmt: skip

    def command(words: Sequence[str], variables: Mapping[str, str]) -> list[str]:
        del variables  # srun takes all that it has itself
        return [*srun, *words]

    return Callers(
        module,
        *words,
        command=command,
        environment={name: value for name, value in os.environ.items() if name not in _OF_THE_BATCH},
        count=len(nodes),
        names=nodes,
        advice="Are the nodes up (sinfo), do they reach this host, and have they Python and pytest-distbench under the "
        "paths of this one?",
        **callers,
    )
