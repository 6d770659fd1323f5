"""How a rank joins its process group, leaves it, and survives a body that destroys groups itself.

A side group lets ranks wait and exchange numbers without disturbing what is measured.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import socket
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, Store  # type: ignore[attr-defined] # exported at run time only
from torch.distributed.rendezvous import rendezvous

from pytest_distbench.errors import RecordingError
from pytest_distbench.records.wire import collective_s, store_s
from pytest_distbench.worker import torch_internals
from pytest_distbench.worker.clock import HostClock
from pytest_distbench.worker.fingerprint import Watch


class SideGroup:
    """A gloo group of all ranks, apart from the measured collectives; the default group itself if that is gloo.

    Every method is a collective call, and the first makes the group. Under ``fake``, or as one process without a group,
    there is no rank to wait for. ``backend``: the default group's, or "" if a script or body chooses it.

    ``was_refused``: the backend refused a call of the workload's. gloo's barrier may find that call among the work
    before it, and raise its error once more, in one rank alone.
    """

    def __init__(self, backend: str, world_size: int, timeout_s: float, watch: Watch) -> None:
        self._backend = backend
        self._world_size = world_size
        self._timeout = timedelta(seconds=collective_s("gloo", timeout_s, {}))
        self._watch = watch
        self._group: dist.ProcessGroup | None = None
        self._flag: torch.Tensor | None = None
        self.was_refused = False

    def barrier(self) -> None:
        if self._is_alone():
            return
        group = self._make()
        with self._watch.apart():
            if group is None and not self.was_refused:
                dist.barrier()
            else:  # torch's barrier takes a byte of the device that the default group is bound to
                dist.all_reduce(torch.zeros(1, device="cpu"), group=group)

    def align(self, device: torch.device) -> None:
        """Enqueue an operation that no device leaves before all have reached it; NCCL only, as others block the host.

        Ranks leave a barrier some ten microseconds apart, which a timing that starts then would include.
        """
        if self._is_alone() or self._backends() != {"nccl"}:
            return
        if self._flag is None:
            self._flag = torch.zeros(1, device=device)
        with self._watch.apart():
            dist.all_reduce(self._flag)

    def broadcast(self, value: float) -> float:
        if self._is_alone():
            return value
        box = torch.tensor([value], dtype=torch.float64, device="cpu")
        with self._watch.apart():
            dist.broadcast(box, src=0, group=self._make())
        return float(box.item())

    def reduce(self, values: Sequence[float], op: dist.ReduceOp.RedOpType) -> list[float]:
        if self._is_alone():
            return list(values)
        box = torch.tensor(values, dtype=torch.float64, device="cpu")
        with self._watch.apart():
            dist.all_reduce(box, op=op, group=self._make())
        return [float(v) for v in box.tolist()]

    def gather(self, data: bytes) -> list[bytes]:
        if self._is_alone():
            return [data]
        longest = int(self.reduce([float(len(data))], dist.ReduceOp.MAX)[0])
        head = torch.tensor([len(data)], dtype=torch.int64, device="cpu").view(torch.uint8)
        body = torch.frombuffer(bytearray(data.ljust(longest, b"\0")), dtype=torch.uint8)
        mine = torch.cat([head, body])
        group = self._make()
        found = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))]
        with self._watch.apart():
            dist.all_gather(found, mine, group=group)
        texts = [tensor.numpy().tobytes() for tensor in found]
        width = head.numel()
        return [text[width : width + int.from_bytes(text[:width], sys.byteorder)] for text in texts]

    def _is_alone(self) -> bool:
        if self._backend:
            return self._backend == "fake"
        if dist.is_initialized():
            return dist.get_world_size() == 1
        if self._world_size > 1:
            raise RecordingError(
                f"{self._world_size} ranks have to wait for one another here, and there is no process group: "
                "wanted after init_process_group and before destroy_process_group"
            )
        return True

    def _backends(self) -> set[str]:
        if self._backend:
            return {self._backend}
        assert dist.group.WORLD is not None  # else it is alone
        return torch_internals.backends_of(dist.group.WORLD)

    def _make(self) -> dist.ProcessGroup | None:
        if self._group is None and self._backends() != {"gloo"}:
            group = dist.new_group(backend="gloo", timeout=self._timeout)
            assert isinstance(group, dist.ProcessGroup)
            self._group = group
        return self._group


_LOOPBACK = "127.0.0.1"
_LISTENS_S = 5.0
_LOOK_S = 0.002
_MOST_KEPT = 16
"""Most destroyed groups that are kept in memory, the newest: each has threads, and a body may make hundreds."""


@contextlib.contextmanager
def standing_group(world_size: int) -> Iterator[None]:
    """Replace this process's group, of one rank, by one of many ranks that moves no data."""
    dist.destroy_process_group()
    try:
        torch_internals.join_fake_group(rank=0, world_size=world_size)
        yield
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
        store = dist.HashStore()  # type: ignore[attr-defined] # it is there
        dist.init_process_group("gloo", store=store, rank=0, world_size=1)


def group_of_one() -> dist.ProcessGroup:
    """A group of this rank alone, for :func:`alone_in`. It moves no data; other ranks need not call."""
    return torch_internals.fake_group_of_one()


_ALONE = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}


@contextlib.contextmanager
def alone_in(group: dist.ProcessGroup) -> Iterator[None]:
    """Make a group the world inside, for code that asks torch for the default group, or reads the environment."""
    own = {name: os.environ[name] for name in _ALONE if name in os.environ}
    with torch_internals.default_group(group):
        os.environ.update({name: _ALONE[name] for name in own})
        try:
            yield
        finally:
            os.environ.update(own)


def join_group(
    backend: str, *, rank: int, world_size: int, timeout_s: float, device: torch.device, in_namespaces: bool = False
) -> None:
    """Join the default group through the store that the environment names; ``fake`` has none."""
    if backend == "fake":
        torch_internals.join_fake_group(rank=rank, world_size=world_size)
        return
    store = _meet(rank, timeout_s=store_s(timeout_s), in_namespaces=in_namespaces)
    dist.init_process_group(
        backend,
        store=PrefixStore("distbench", store),
        rank=rank,
        world_size=world_size,
        timeout=timedelta(seconds=collective_s(backend, timeout_s, os.environ)),
        device_id=device if device.type == "cuda" and backend != "gloo" else None,  # gloo has no use for one
    )


def _meet(rank: int, *, timeout_s: float, in_namespaces: bool) -> Store:
    """The store that the environment names: its starter's, or one that rank 0 makes.

    torch's own store would listen on every interface. A group that the body makes in its place joins this one.
    """
    own = os.environ["MASTER_ADDR"]
    is_own = own == _LOOPBACK or in_namespaces
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != str(True) and is_own:
        address = own, int(os.environ["MASTER_PORT"])
        if rank == 0:
            return torch_internals.store_on(socket.create_server(address), timeout_s=timeout_s, multi_tenant=True)
        wait_for_listener(address, at_most_s=min(timeout_s, _LISTENS_S))
    store, *_ = next(rendezvous("env://", timeout=timedelta(seconds=timeout_s)))
    return store


def wait_for_listener(address: tuple[str, int], *, at_most_s: float) -> None:
    """Wait until a store listens at an address: torch's client sleeps 0.4 to 0.7 s if it comes too early."""
    deadline = HostClock.monotonic() + at_most_s
    while HostClock.monotonic() < deadline:
        with contextlib.suppress(ConnectionRefusedError):
            socket.create_connection(address).close()
            return
        time.sleep(_LOOK_S)


def leave_group() -> None:
    """Leave the groups in the safe way for their backends.

    A gloo group ends with its process: destroying it waits 10 ms per rank and can deadlock with a live reducer (torch
    2.13). NCCL communicators are destroyed as their documentation asks.
    """
    if set().union(*map(torch_internals.backends_of, torch_internals.process_groups())) - {"gloo", "fake"}:
        gc.collect()
        dist.destroy_process_group()


def keep_destroyed_groups() -> Callable[[], int]:
    """Keep destroyed gloo groups in memory; returns a function that returns the size of the largest group so far.

    If DistributedDataParallel holds the last use of a group, its reducer's end joins gloo's thread under the
    interpreter's lock, which that thread may need: the rank hangs at its exit (torch 2.13; 12 of 30 launches of an
    ordinary script).
    """
    kept: deque[Any] = deque(maxlen=_MOST_KEPT)
    sizes = [0]
    destroy = dist.destroy_process_group

    def largest_group() -> int:
        sizes.extend(map(len, torch_internals.group_members().values()))
        return max(sizes)

    @functools.wraps(destroy)
    def keeping(group: Any = None) -> None:
        largest_group()
        kept.extend(
            g for g in torch_internals.process_groups() if g not in kept and "gloo" in torch_internals.backends_of(g)
        )
        destroy(group)

    for module, name in torch_internals.places_of_destroy():
        setattr(module, name, keeping)
    return largest_group


def backends() -> dict[str, bool]:
    is_built = {
        name: dist.is_available() and getattr(dist, f"is_{name}_available", lambda: False)()
        for name in ("gloo", "nccl", "mpi", "ucc", "xccl")
    }
    return {**is_built, "fake": True}
