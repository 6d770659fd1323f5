"""How a rank joins its process group, leaves it, and survives a body that destroys groups itself."""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import socket
import time
from collections import deque
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, Store  # type: ignore[attr-defined] # exported at run time only
from torch.distributed.rendezvous import rendezvous

from pytest_distbench.records.network import host_address
from pytest_distbench.worker import limits
from pytest_distbench.worker.clock.host import HostClock
from pytest_distbench.worker.torch_internals import (
    backends_of,
    group_members,
    join_fake_group,
    process_groups,
    replace_in_distributed,
    store_on,
)

_LOOPBACK = "127.0.0.1"
_LISTENS_S = 5.0
_LOOK_S = 0.002
_MOST_KEPT = 16
"""Destroyed groups that are kept: each has threads and sockets, and a body may make hundreds. Those that go are old."""


def join_group(backend: str, *, rank: int, world_size: int, timeout_s: float, device: torch.device) -> None:
    """Join the default group through the store that the environment names; ``fake`` has none."""
    if backend == "fake":
        join_fake_group(rank=rank, world_size=world_size)
        return
    store = _meet(rank, timeout_s=limits.store_s(timeout_s))
    dist.init_process_group(
        backend,
        store=PrefixStore("distbench", store),  # torch 2.5 logs it, and cannot print the other where names have no DNS
        rank=rank,
        world_size=world_size,
        timeout=timedelta(seconds=limits.collective_s(backend, timeout_s, os.environ)),
        device_id=device if device.type == "cuda" and backend != "gloo" else None,  # gloo has no use for one
    )


def _meet(rank: int, *, timeout_s: float) -> Store:
    """The store that the environment names: its agent's, or one that rank 0 makes where all are told to meet.

    torch's own would listen on every interface then. A group that the body makes in its place joins this one.
    """
    own = os.environ["MASTER_ADDR"]
    is_own = own == _LOOPBACK or own == host_address(0)
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != str(True) and is_own:
        address = own, int(os.environ["MASTER_PORT"])
        if rank == 0:
            return store_on(socket.create_server(address), timeout_s=timeout_s, multi_tenant=True)
        wait_for_listener(address, at_most_s=min(timeout_s, _LISTENS_S))
    store, *_ = next(rendezvous("env://", timeout=timedelta(seconds=timeout_s)))
    return store


def wait_for_listener(address: tuple[str, int], *, at_most_s: float) -> None:
    """Wait until somebody listens there: torch's store, where it comes too early, sleeps 0.4 to 0.7 s and tries again.

    After ``at_most_s`` torch's store waits on.
    """
    deadline = HostClock.monotonic() + at_most_s
    while HostClock.monotonic() < deadline:
        with contextlib.suppress(ConnectionRefusedError):
            socket.create_connection(address).close()
            return
        time.sleep(_LOOK_S)


def leave_group() -> None:
    """Leave the groups the safe way for their backends.

    A gloo group ends with its process: destroying it waits 10 ms a rank for an event-loop tick and can deadlock
    with a live reducer (torch 2.13). NCCL communicators are destroyed as their documentation asks.
    """
    if set().union(*map(backends_of, process_groups())) - {"gloo", "fake"}:
        gc.collect()
        dist.destroy_process_group()


def keep_destroyed_groups() -> Callable[[], int]:
    """From now on a gloo group that is destroyed stays in memory, whoever destroys it.

    Returns what tells the ranks of the largest group this process was in, up to then; 0: it was in none.

    Where DistributedDataParallel holds the last reference, its reducer's end joins gloo's thread while it holds the
    interpreter's lock, and that thread may need the lock to let go of its last work: the rank hangs at its exit (torch
    2.13; 12 of 30 launches of an ordinary script in a process that was forked).
    """
    kept: deque[Any] = deque(maxlen=_MOST_KEPT)
    sizes = [0]
    destroy = dist.destroy_process_group

    def largest_group() -> int:
        sizes.extend(map(len, group_members().values()))
        return max(sizes)

    @functools.wraps(destroy)
    def keeping(group: Any = None) -> None:
        largest_group()
        kept.extend(g for g in process_groups() if g not in kept and "gloo" in backends_of(g))
        destroy(group)

    replace_in_distributed(destroy, keeping)
    return largest_group
