"""SideGroup: how ranks wait for one another and exchange numbers without disturbing what is measured."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import timedelta

import torch
import torch.distributed as dist

from pytest_distbench.errors import RecordingError
from pytest_distbench.worker.fingerprint import Watch
from pytest_distbench.worker.limits import collective_s
from pytest_distbench.worker.torch_internals import backends_of


class SideGroup:
    """A gloo group of all ranks, apart from the measured collectives; the default group itself where that is gloo.

    Every method is a collective call; so is making the group, at the first of them. With the backend ``fake`` there are
    no others to wait for, nor are there for one process that has made no group.

    The backend is that of the default group; empty: whatever a script or a body has made it. The watch is told which
    collectives are not the workload's.

    ``was_refused``: the backend has refused a call of the workload's. gloo's barrier waits for all work before it, and
    may find such a call among it a while later and raise its error once more, in one rank alone.
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
        """Wait for all ranks, without touching the device."""
        if self._is_alone():
            return
        group = self._make()
        with self._watch.apart():
            if group is None and not self.was_refused:
                dist.barrier()
            else:  # torch's barrier takes a byte of the device that the default group is bound to
                dist.all_reduce(torch.zeros(1, device="cpu"), group=group)

    def align(self, device: torch.device) -> None:
        """Enqueue what no rank's device leaves before all have reached it; on NCCL alone, for others block the host.

        Ranks leave a barrier some ten microseconds apart, and a clock that starts then would count that.
        """
        if self._is_alone() or self._backends() != {"nccl"}:
            return
        if self._flag is None:
            self._flag = torch.zeros(1, device=device)
        with self._watch.apart():
            dist.all_reduce(self._flag)

    def broadcast(self, value: float) -> float:
        """Rank 0's value in every rank."""
        if self._is_alone():
            return value
        box = torch.tensor([value], dtype=torch.float64, device="cpu")
        with self._watch.apart():
            dist.broadcast(box, src=0, group=self._make())
        return float(box.item())

    def sum(self, value: float) -> float:
        """The sum of every rank's value, in every rank; of integers below 2**53 exact."""
        if self._is_alone():
            return value
        box = torch.tensor([value], dtype=torch.float64, device="cpu")
        with self._watch.apart():
            dist.all_reduce(box, group=self._make())
        return float(box.item())

    def maxima(self, values: Sequence[float]) -> list[float]:
        """The largest over ranks of each value; all give equally many."""
        if self._is_alone():
            return list(values)
        box = torch.tensor(values, dtype=torch.float64, device="cpu")
        with self._watch.apart():
            dist.all_reduce(box, op=dist.ReduceOp.MAX, group=self._make())
        return [float(v) for v in box.tolist()]

    def gather(self, data: bytes) -> list[bytes]:
        """Every rank's bytes, in every rank."""
        if self._is_alone():
            return [data]
        longest = int(self.maxima([float(len(data))])[0])
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
        """What the default group is made of."""
        if self._backend:
            return {self._backend}
        assert dist.group.WORLD is not None  # else it is alone
        return backends_of(dist.group.WORLD)

    def _make(self) -> dist.ProcessGroup | None:
        if self._group is None and self._backends() != {"gloo"}:
            group = dist.new_group(backend="gloo", timeout=self._timeout)
            assert isinstance(group, dist.ProcessGroup)
            self._group = group
        return self._group
