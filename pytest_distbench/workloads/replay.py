"""Replay: the collectives of a fingerprint, one after the other, with nothing computed between them.

It times what a training sends, without the training: sequence, operations, dtypes, sizes and groups are those of the
fingerprint; what overlapped with computing there stands alone here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
import torch
import torch.distributed as dist

from pytest_distbench.errors import RecordingError
from pytest_distbench.records.iteration import PICKLE, Collective, Group, of_rank

if TYPE_CHECKING:
    from pytest_distbench.worker.context import RankContext

Call = Callable[[], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a collective is issued; no group is that of all ranks."""

    group: dist.ProcessGroup | None
    size: int
    rank: int
    device: torch.device

    def tensor(self, row: Collective, *, share: int = 1) -> torch.Tensor:
        """A buffer of a row's bytes, rounded up to equal shares for so many ranks; of a pickle one byte."""
        is_pickle = row.dtype == PICKLE
        dtype = torch.uint8 if is_pickle else getattr(torch, row.dtype.partition("+")[0] or "uint8")
        items = 1 if is_pickle else -(-row.message_bytes // dtype.itemsize)
        return torch.zeros(-(-items // share) * share, dtype=dtype, device=self.device)

    def root(self, row: Collective) -> int:
        """The rank of the world that a row's root is."""
        inside = int(row.way.rpartition("root ")[2] or 0)
        return inside if self.group is None else dist.get_global_rank(self.group, inside)

    def reduction(self, row: Collective) -> Any:
        """A row's, or a sum where the backend has none such; that takes as long."""
        name = row.way.partition(" ")[0].upper()
        if name in ("", "ROOT", "PREMUL_SUM") or (name == "AVG" and dist.get_backend(self.group) == "gloo"):
            return dist.ReduceOp.SUM
        return getattr(dist.ReduceOp, name)


def _all_reduce(row: Collective, at: Place) -> Call:
    x, op = at.tensor(row), at.reduction(row)
    return lambda: dist.all_reduce(x, op=op, group=at.group)


def _all_gather(row: Collective, at: Place) -> Call:
    x = at.tensor(row)
    found = [torch.empty_like(x) for _ in range(at.size)]
    return lambda: dist.all_gather(found, x, group=at.group)


def _all_gather_into_tensor(row: Collective, at: Place) -> Call:
    x = at.tensor(row)
    found = x.new_empty(at.size * len(x))
    gather = dist.all_gather_single if hasattr(dist, "all_gather_single") else dist.all_gather_into_tensor
    return lambda: gather(found, x, group=at.group)


def _reduce_scatter(row: Collective, at: Place) -> Call:
    x, op = at.tensor(row, share=at.size), at.reduction(row)
    parts = list(x.chunk(at.size))
    found = torch.empty_like(parts[0])
    return lambda: dist.reduce_scatter(found, parts, op=op, group=at.group)


def _reduce_scatter_tensor(row: Collective, at: Place) -> Call:
    x, op = at.tensor(row, share=at.size), at.reduction(row)
    found = x.new_empty(len(x) // at.size)
    scatter = dist.reduce_scatter_single if hasattr(dist, "reduce_scatter_single") else dist.reduce_scatter_tensor
    return lambda: scatter(found, x, op=op, group=at.group)


def _broadcast(row: Collective, at: Place) -> Call:
    x, root = at.tensor(row), at.root(row)
    return lambda: dist.broadcast(x, src=root, group=at.group)


def _reduce(row: Collective, at: Place) -> Call:
    x, root, op = at.tensor(row), at.root(row), at.reduction(row)
    return lambda: dist.reduce(x, dst=root, op=op, group=at.group)


def _gather(row: Collective, at: Place) -> Call:
    x, root = at.tensor(row), at.root(row)
    found = [torch.empty_like(x) for _ in range(at.size)] if dist.get_rank() == root else None
    return lambda: dist.gather(x, found, dst=root, group=at.group)


def _scatter(row: Collective, at: Place) -> Call:
    x, root = at.tensor(row, share=at.size), at.root(row)
    parts = list(x.chunk(at.size))
    found = torch.empty_like(parts[0])
    return lambda: dist.scatter(found, parts if dist.get_rank() == root else None, src=root, group=at.group)


def _all_to_all(row: Collective, at: Place) -> Call:
    x = at.tensor(row, share=at.size)
    found = torch.empty_like(x)
    return lambda: dist.all_to_all_single(found, x, group=at.group)


def _barrier(row: Collective, at: Place) -> Call:
    del row
    return lambda: dist.barrier(group=at.group)


_CALLS: Mapping[str, Callable[[Collective, Place], Call]] = {
    "all_reduce": _all_reduce,
    "all_reduce_coalesced": _all_reduce,
    "all_gather": _all_gather,
    "all_gather_coalesced": _all_gather,
    "all_gather_into_tensor": _all_gather_into_tensor,
    "all_gather_into_tensor_coalesced": _all_gather_into_tensor,
    "reduce_scatter": _reduce_scatter,
    "reduce_scatter_tensor": _reduce_scatter_tensor,
    "reduce_scatter_tensor_coalesced": _reduce_scatter_tensor,
    "broadcast": _broadcast,
    "reduce": _reduce,
    "gather": _gather,
    "scatter": _scatter,
    "all_to_all": _all_to_all,
    "all_to_all_single": _all_to_all,
    "barrier": _barrier,
    "monitored_barrier": _barrier,
}
"""How each operation of a fingerprint is issued again. What was coalesced goes as one tensor of all its bytes."""

PARTNERS = ("send", "recv")
"""Operations of two ranks, which are issued together as far as they follow one another."""

KNOWN = frozenset({*_CALLS, *PARTNERS})
"""All that can be replayed."""


def replay(rank: RankContext) -> None:
    """Time the whole sequence as ``replay``, and each operation of it alone as ``replay[op=...]``."""
    params = rank.params
    by_ranks = msgspec.convert(params["collectives"], dict[str, list[Collective]])
    groups = msgspec.convert(params["groups"], list[Group])
    rows = of_rank(by_ranks, rank.rank)
    if rows is None:  # that of one rank of a larger group stands for all
        [rows] = by_ranks.values()
    for i, row in enumerate(rows):
        if row.op == "scatter":  # only its root has put bytes in: the others learn from there how much they get
            same = [of[i] for of in by_ranks.values() if i < len(of) and of[i].op == row.op]
            rows[i] = max(same, key=lambda other: other.message_bytes)
    calls = _calls(rows, _places(rank, groups))
    loops = {"warmup": params["warmup"], "iterations": params["iterations"]}
    for _ in rank.timed("replay", **loops):
        for _, call in calls:
            call()
    kinds = dict.fromkeys(c.op for rows in by_ranks.values() for c in rows)
    for op in dict.fromkeys("send and recv" if kind in PARTNERS else kind for kind in kinds):
        alone = [call for name, call in calls if name == op]
        for _ in rank.timed("replay", at={"op": op}, **loops):
            for call in alone:
                call()


def _places(rank: RankContext, groups: Sequence[Group]) -> dict[str, Place]:
    """By the names of groups. A collective call: every group is made by all ranks."""
    found = {"default": Place(group=None, size=rank.world_size, rank=rank.rank, device=rank.device)}
    for wanted in groups:
        span = wanted.size * max(1, wanted.stride)
        for first in range(0, rank.world_size, span):
            for offset in range(max(1, wanted.stride)):
                members = [first + offset + i * wanted.stride for i in range(wanted.size)]
                made = dist.new_group(members)
                if rank.rank in members:
                    assert isinstance(made, dist.ProcessGroup)
                    found[wanted.name] = Place(
                        group=made, size=wanted.size, rank=members.index(rank.rank), device=rank.device
                    )
    return found


def _calls(rows: Sequence[Collective], places: Mapping[str, Place]) -> list[tuple[str, Call]]:
    """What is issued, in order, by operation; sends and receives that follow one another are one call."""
    calls: list[tuple[str, Call]] = []
    partners: list[tuple[Collective, Place]] = []
    for row in rows:
        place = places[row.group]
        if row.op in PARTNERS:
            partners += [(row, place)] * row.count
            continue
        if partners:
            calls.append(("send and recv", _exchange(partners)))
            partners = []
        calls += [(row.op, _CALLS[row.op](row, place))] * row.count
    if partners:
        calls.append(("send and recv", _exchange(partners)))
    return calls


def _exchange(partners: Sequence[tuple[Collective, Place]]) -> Call:
    posts = []
    for row, place in partners:
        direction, _, distance = row.way.partition(" ")
        if not distance:
            raise RecordingError(f"a {row.op} without its partner cannot be replayed: record the fingerprint again")
        peer = (place.rank + int(distance)) % place.size
        peer = peer if place.group is None else dist.get_global_rank(place.group, peer)
        post = dist.isend if direction == "to" else dist.irecv
        posts.append((post, place.tensor(row), peer, place.group))

    def exchange() -> None:
        works = dist.batch_isend_irecv([dist.P2POp(post, x, peer, group) for post, x, peer, group in posts])
        for work in works:
            work.wait()

    return exchange
