"""How a rank becomes a process of its host, where hosts are namespaces that a network was made for."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

from pytest_distbench.errors import LauncherError
from pytest_distbench.records.network import USER_NAMESPACE, VARIABLES, host_address, host_place, rank_hosts
from pytest_distbench.records.plan import LaunchPlan

_NEW_USER, _NEW_NET = 0x10000000, 0x40000000
"""CLONE_NEWUSER and CLONE_NEWNET (linux/sched.h)."""
_LIBC = ctypes.CDLL(None, use_errno=True)


def enter_network(plan: LaunchPlan, rank: int) -> None:
    """Have no network from now on but that of the rank's host, in this thread and those that it will start.

    The ranks meet at the host of rank 0, which holds the store, as no host can reach the agent's: under the port that
    the agent has found, so that two groups can use one network. NCCL takes the hosts for what they pose as, and would
    find another way between two GPUs of one machine else.

    Raises:
        LauncherError: the kernel does not let it.
    """
    assert plan.network is not None
    hosts = rank_hosts(plan.network, plan.world_size)
    user = Path(plan.network_place, USER_NAMESPACE)
    if user.exists():
        _enter(user, _NEW_USER, rank)
    _enter(Path(host_place(plan.network_place, hosts[rank])), _NEW_NET, rank)
    os.environ |= {
        "MASTER_ADDR": host_address(hosts[0]),
        "TORCHELASTIC_USE_AGENT_STORE": str(False),
        **{name: value.format(host=hosts[rank]) for name, value in VARIABLES.items()},
    }
    if plan.device == "cpu":  # a GPU is chosen by the local rank, and all are on this machine
        os.environ |= {
            "LOCAL_RANK": str(rank - hosts.index(hosts[rank])),
            "LOCAL_WORLD_SIZE": str(hosts.count(hosts[rank])),
            "GROUP_RANK": str(hosts[rank]),
            "GROUP_WORLD_SIZE": str(hosts[-1] + 1),
        }


def _enter(place: Path, kind: int, rank: int) -> None:
    """Enter a namespace of a kind."""
    try:
        descriptor = os.open(place, os.O_RDONLY | os.O_CLOEXEC)
        try:
            if _LIBC.setns(descriptor, kind) != 0:
                number = ctypes.get_errno()
                raise OSError(number, os.strerror(number))
        finally:
            os.close(descriptor)
    except OSError as error:
        why = " (a process of several threads cannot enter a user namespace: run pytest as root)"
        many = why if kind == _NEW_USER and len(os.listdir("/proc/self/task")) > 1 else ""
        raise LauncherError(f"rank {rank} cannot enter its network: {place}: {error.strerror}{many}") from error
