"""What the nodes of a Slurm allocation are, told by themselves before the first launch."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping, Sequence
from typing import Any

from pytest_distbench.launch.starters import step
from pytest_distbench.launch.starters.allocation import read_allocation
from pytest_distbench.launch.starters.calls import Callers
from pytest_distbench.launch.starters.contract import HostsWanted
from pytest_distbench.launch.starters.hosts import describe_hosts
from pytest_distbench.records.environment import Environment


def describe(wanted: HostsWanted) -> Environment:
    """What the nodes of the allocation are, from one step on all of them. See :func:`describe_hosts`."""
    allocation = read_allocation(os.environ)
    return describe_hosts(
        f"the nodes of job {allocation.job}",
        functools.partial(_start, allocation.nodes),
        wanted,
        gpu_advice="allocate some, as salloc --gpus-per-node=4; with no partition that has any (sinfo -o '%P %G'), "
        "leave --gpu out",
    )


def _start(nodes: Sequence[str], module: str, *words: str, **callers: Any) -> Callers:
    def command(words: Sequence[str], variables: Mapping[str, str]) -> list[str]:
        del variables  # srun takes all that it has itself
        return [*step.srun(nodes), *words]

    return Callers(
        module,
        *words,
        command=command,
        environment=step.inherited(os.environ),
        count=len(nodes),
        names=nodes,
        advice="Are the nodes up (sinfo; salloc --exclude leaves one out), do they reach this host, and have they "
        "Python and pytest-distbench under the paths of this one?",
        **callers,
    )
