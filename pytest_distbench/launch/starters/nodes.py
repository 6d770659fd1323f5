"""What the nodes of a Slurm allocation are, told by themselves before the first launch."""

from __future__ import annotations

import functools
import os
import sys
from typing import Any

from pytest_distbench.launch.starters.allocation import Allocation, read_allocation
from pytest_distbench.launch.starters.calls import Callers
from pytest_distbench.launch.starters.contract import HostsFound, HostsWanted
from pytest_distbench.launch.starters.hosts import describe_hosts
from pytest_distbench.launch.starters.step import start_step


def describe(wanted: HostsWanted) -> HostsFound:
    """What the nodes of the allocation are, from one step on all of them. See :func:`describe_hosts`."""
    allocation = read_allocation(os.environ)
    return describe_hosts(
        f"the nodes of job {allocation.job}",
        functools.partial(_start, allocation),
        wanted,
        gpu_advice="allocate some, as salloc --gpus-per-node=4; with no partition that has any (sinfo -o '%P %G'), "
        "leave --gpu out",
    )


def _start(allocation: Allocation, module: str, *words: str, **callers: Any) -> Callers:
    return start_step(
        allocation.nodes,
        lambda where: [sys.executable, "-m", module, *where, *words],
        gpus=allocation.gpus_per_node,
        variables=os.environ,
        **callers,
    )
