"""Replay: the collectives of a fingerprint, one after the other, with nothing computed between them.

It times the communication of a training without the training: sequence, operations, dtypes, sizes and groups are those
of the fingerprint; what overlapped with computing there is exposed here. pytest's process checks what is to be
replayed, so torch is imported when a rank replays it.
"""

from __future__ import annotations

import itertools
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from pytest_distbench.errors import DistbenchError, RecordingError, show
from pytest_distbench.records.iteration import PICKLE, Collective, Fingerprint, Group, named_ranks, of_rank

if TYPE_CHECKING:
    import torch
    import torch.distributed as dist

    from pytest_distbench.plugin.arguments import Arguments
    from pytest_distbench.worker.context import RankContext

    _Call = Callable[[], object]
    _Group = dist.ProcessGroup | None
    """None stands for all ranks."""

PARTNERS = ("send", "recv")  # operations of two ranks, which are issued together as far as they follow one another

REPLAYED = {
    **{name: name for name in ("all_gather", "all_reduce", "broadcast", "reduce", "gather", "scatter", "barrier")},
    **{name: name for name in ("reduce_scatter", *PARTNERS)},
    "all_reduce_coalesced": "all_reduce",
    "all_gather_coalesced": "all_gather",
    "all_gather_into_tensor": "all_gather_single",
    "all_gather_into_tensor_coalesced": "all_gather_single",
    "reduce_scatter_tensor": "reduce_scatter_single",
    "reduce_scatter_tensor_coalesced": "reduce_scatter_single",
    "all_to_all": "all_to_all_single",
    "all_to_all_single": "all_to_all_single",
    "monitored_barrier": "barrier",
}
"""Operation of a fingerprint -> operation that replays it. What was coalesced goes as one tensor of all its bytes."""

_CUT = ("reduce_scatter", "reduce_scatter_single", "scatter", "all_to_all_single")
"""Operations whose input has a part for each rank."""


def replay_params(given: Arguments, source: object, of: str, *, world_size: int, folder: Path) -> dict[str, Any]:
    """Make the parameters of :func:`replay`; refuse a fingerprint that these ranks cannot replay.

    The source is a run of the test, a fingerprint, or the path of a baseline file, which may be relative to ``folder``.
    """
    name, chosen = _choose(given, source, of, folder)
    if chosen.missing:
        given.refuse(f"there is no fingerprint {name!r}: {chosen.missing}")
    if not any(chosen.collectives.values()):
        given.refuse(f"the fingerprint {name!r} has no collective, so there is nothing to replay")
    rows = [row for rows in chosen.collectives.values() for row in rows]
    used = {row.group for row in rows}
    groups = list(dict.fromkeys(g for groups in chosen.groups.values() for g in groups if g[0] in used))
    known = {name: (size, stride) for name, size, stride in groups}
    for group_name in dict.fromkeys(row.group for row in rows if row.group != "default"):
        if group_name not in known:
            given.refuse(f"it does not contain the ranks of the group {group_name!r}: record it again")
        size, stride = known[group_name]
        if (size > 1 and not stride) or world_size % (size * max(1, stride)):
            given.refuse(
                f"the group {group_name!r} of {size} ranks, {stride} apart, does not fit into {world_size} ranks"
            )
    if len(known) < len(groups):
        given.refuse("ranks belong to groups of one name and several sizes, which cannot be replayed")
    named = named_ranks(chosen.collectives)
    if len(chosen.collectives) > 1 and named != list(range(world_size)):
        given.refuse(
            f"its ranks differ, and it describes {len(named)} of them, so replaying it takes as many ranks; found "
            f"{world_size}"
        )
    sizes = {"default": world_size, **{name: size for name, size, _ in groups}}
    if len(chosen.collectives) == 1 and _passes(rows, "send", sizes) != _passes(rows, "recv", sizes):
        given.refuse(  # every rank does what this one did: what it sends must come
            "sends and receives of one rank do not match, so those of the other ranks are needed: record the "
            "fingerprint on a backend that transfers data"
        )
    if unknown := sorted({row.op for row in rows} - REPLAYED.keys()):
        given.refuse(f"{', '.join(unknown)} cannot be replayed; known are {', '.join(sorted(REPLAYED))}")
    return {
        "collectives": msgspec.to_builtins(chosen.collectives),
        "groups": [list(group) for group in sorted(groups, key=lambda group: group[0])],
    }


def _choose(given: Arguments, source: object, of: str, folder: Path) -> tuple[str, Fingerprint]:
    from pytest_distbench.plugin.outcomes import Run
    from pytest_distbench.store.baselines import read_file

    if isinstance(source, Fingerprint):
        found: Mapping[str, Fingerprint] = {"given": source}
    elif isinstance(source, Run):
        found = source.launches[0].fingerprints
    elif isinstance(source, str | os.PathLike):
        path = Path(folder, source)
        if not os.path.lexists(path):
            given.refuse(
                f"there is no file {show(str(path))}; wanted the path of a baseline file, absolute or relative to the "
                "test's file"
            )
        try:
            found = read_file(path).entry.fingerprints
        except DistbenchError as error:
            given.refuse(str(error))
    else:
        given.refuse(f"{show(source)}; wanted a run of this test, a Fingerprint, or the path of a baseline file")
    if of:
        if of not in found:
            given.refuse(f"of={of!r}; there are {', '.join(found) or 'none'}")
        return of, found[of]
    loops = {name: fingerprint for name, fingerprint in found.items() if not name.startswith("training_start")}
    if len(loops) != 1:
        given.refuse(f"say which fingerprint with of=; there are {', '.join(found) or 'none'}")
    return next(iter(loops.items()))


def _passes(rows: list[Collective], op: str, sizes: Mapping[str, int]) -> Counter[tuple[str, int, int]]:
    """Number of messages by group, distance in the group in the direction of the data (cyclic), and bytes.

    With two ranks the next is also the one before, at distance 1.
    """
    found: Counter[tuple[str, int, int]] = Counter()
    for row in rows:
        if row.op == op:
            distance = (row.partner or 0) * (1 if op == "send" else -1)
            found[row.group, distance % sizes[row.group], row.message_bytes] += row.count
    return found


def replay(rank: RankContext) -> None:
    """Time the whole sequence as ``replay``, and each operation of it alone as ``replay[op=...]``."""
    import torch.distributed as dist

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
    own: dict[str, _Group] = {"default": None}
    for name, size, stride in groups:  # every group is made by all ranks
        for first in range(0, rank.world_size, size * max(1, stride)):
            for offset in range(max(1, stride)):
                members = [first + offset + i * stride for i in range(size)]
                made = dist.new_group(members)
                if rank.rank in members:
                    assert isinstance(made, dist.ProcessGroup)
                    own[name] = made
    calls: list[tuple[str, _Call]] = []
    for are_partners, stretch in itertools.groupby(rows, key=lambda row: row.op in PARTNERS):
        if are_partners:
            partners = [(row, own[row.group]) for row in stretch for _ in range(row.count)]
            calls.append(("send and recv", _exchange(partners, rank.device)))
        else:
            for row in stretch:
                calls += [(row.op, _call(row, own[row.group], rank.device))] * row.count
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


def _tensor(row: Collective, device: torch.device, *, share: int = 1) -> torch.Tensor:
    """A zeroed buffer for a collective of a fingerprint, rounded up to ``share`` equal parts; one byte for a pickle."""
    import torch

    is_pickle = row.dtype == PICKLE
    dtype = torch.uint8 if is_pickle else getattr(torch, row.dtype.partition("+")[0] or "uint8")
    items = 1 if is_pickle else -(-row.message_bytes // dtype.itemsize)
    return torch.zeros(-(-items // share) * share, dtype=dtype, device=device)


def _call(row: Collective, group: _Group, device: torch.device) -> _Call:
    import torch
    import torch.distributed as dist

    how, size = REPLAYED[row.op], dist.get_world_size(group)
    x = _tensor(row, device, share=size if how in _CUT else 1)
    root = row.root if group is None else dist.get_global_rank(group, row.root)
    is_root = dist.get_rank() == root
    op = dist.ReduceOp.SUM  # takes as long as what the backend has not
    if row.reduction not in ("", "premul_sum") and not (row.reduction == "avg" and dist.get_backend(group) == "gloo"):
        op = getattr(dist.ReduceOp, row.reduction.upper())
    match how:
        case "all_reduce":
            return lambda: dist.all_reduce(x, op=op, group=group)
        case "all_gather":
            parts = [torch.empty_like(x) for _ in range(size)]
            return lambda: dist.all_gather(parts, x, group=group)
        case "all_gather_single":
            whole = x.new_empty(size * len(x))
            gather = getattr(dist, how, None) or dist.all_gather_into_tensor
            return lambda: gather(whole, x, group=group)
        case "reduce_scatter":
            parts = list(x.chunk(size))
            part = torch.empty_like(parts[0])
            return lambda: dist.reduce_scatter(part, parts, op=op, group=group)
        case "reduce_scatter_single":
            part = x.new_empty(len(x) // size)
            scatter = getattr(dist, how, None) or dist.reduce_scatter_tensor
            return lambda: scatter(part, x, op=op, group=group)
        case "broadcast":
            return lambda: dist.broadcast(x, src=root, group=group)
        case "reduce":
            return lambda: dist.reduce(x, dst=root, op=op, group=group)
        case "gather":
            found = [torch.empty_like(x) for _ in range(size)] if is_root else None
            return lambda: dist.gather(x, found, dst=root, group=group)
        case "scatter":
            parts = list(x.chunk(size))
            part = torch.empty_like(parts[0])
            return lambda: dist.scatter(part, parts if is_root else None, src=root, group=group)
        case "all_to_all_single":
            whole = torch.empty_like(x)
            return lambda: dist.all_to_all_single(whole, x, group=group)
        case _:
            return lambda: dist.barrier(group=group)


def _exchange(partners: Sequence[tuple[Collective, _Group]], device: torch.device) -> _Call:
    import torch.distributed as dist

    posts = []
    for row, group in partners:
        if row.partner is None:
            raise RecordingError(f"a {row.op} without its partner cannot be replayed: record the fingerprint again")
        peer = (dist.get_rank(group) + row.partner) % dist.get_world_size(group)
        peer = peer if group is None else dist.get_global_rank(group, peer)
        post = dist.isend if row.op == "send" else dist.irecv
        posts.append((post, _tensor(row, device), peer, group))

    def exchange() -> None:
        works = dist.batch_isend_irecv([dist.P2POp(post, x, peer, group) for post, x, peer, group in posts])
        for work in works:
            work.wait()

    return exchange
