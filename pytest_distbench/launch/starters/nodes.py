"""What the nodes of a Slurm allocation are, told by themselves before the first launch."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence

import msgspec

from pytest_distbench.errors import ConfigurationError, show
from pytest_distbench.launch.site.describe import HostDescription
from pytest_distbench.launch.starters import step
from pytest_distbench.launch.starters.allocation import read_allocation
from pytest_distbench.records.environment import Environment
from pytest_distbench.records.record import replace


def describe(*, gpu: bool, platform: str | None) -> Environment:
    """What the nodes of the allocation are, from one step on all of them.

    Args:
        gpu: the ranks are to have GPUs.
        platform: the class of hardware that the user has named; None: that of the nodes, which must be one.

    Raises:
        ConfigurationError: they are of several classes, run other software, have no GPU, or do not tell.
    """
    allocation = read_allocation(os.environ)
    nodes = len(allocation.nodes)
    limit_s = step.within_s(nodes)
    told = [sys.executable, "-m", "pytest_distbench.launch.site.describe", *(["--gpu"] if gpu else [])]
    try:
        done = subprocess.run(
            [*step.srun(allocation.nodes), *told],
            env=step.inherited(os.environ), stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
            timeout=limit_s,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise ConfigurationError(
            f"the nodes of job {allocation.job} do not say what they are within {limit_s:.0f} s: does srun "
            "--overlap hostname answer?"
        ) from None
    try:
        hosts = [msgspec.json.decode(line, type=HostDescription) for line in done.stdout.splitlines()]
    except msgspec.MsgspecError:
        hosts = []
    if done.returncode or len(hosts) != nodes:
        raise ConfigurationError(
            f"{len(hosts)} of {nodes} nodes of job {allocation.job} say what they are: {show(done.stderr.strip())}. "
            f"{sys.executable} and pytest-distbench have to be there under the same path, on a shared disk for one"
        )
    hosts.sort(key=lambda host: allocation.nodes.index(host.host))
    first = hosts[0].environment
    _refuse_differences(hosts, lambda found: found.software, "run other software")
    if platform is None:
        _refuse_differences(
            hosts, lambda found: found.platform, "are of several classes of hardware: take nodes of one (salloc "
            "--constraint=), or name the class of all of them, --distbench-platform NAME",
        )  # fmt: skip
    if gpu and first.gpu_host is None:
        raise ConfigurationError(
            f"--gpu: no GPU is visible on {hosts[0].host} of job {allocation.job}: allocate some, as salloc "
            "--gpus-per-node=4; with no partition that has any (sinfo -o '%P %G'), leave --gpu out"
        )
    return first if platform is None else replace(first, platform=platform)


def _refuse_differences(hosts: Sequence[HostDescription], of: Callable[[Environment], object], told: str) -> None:
    """Refuse nodes of which something differs that has to be one."""
    found: dict[str, list[str]] = {}
    for host in hosts:
        found.setdefault(show(of(host.environment)), []).append(host.host)
    if len(found) > 1:
        shown = "; ".join(f"{', '.join(names[:4])}: {what}" for what, names in found.items())
        raise ConfigurationError(f"the nodes of the allocation {told}: {shown}")
