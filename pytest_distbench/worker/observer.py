"""Observer: every collective, send and recv of this process while it looks, as the program asked for it.

What a backend makes of a collective does not matter here: gloo's reduce_scatter_tensor is one, though gloo does it with
an all_reduce. So one program has one fingerprint on every backend.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from pytest_distbench.records.fingerprint import NOT_WAITED, Collective, Group
from pytest_distbench.records.flight import group_label
from pytest_distbench.records.record import replace
from pytest_distbench.worker import torch_internals
from pytest_distbench.worker.clock.host import HostClock

_OPERATIONS = {
    "allreduce_": "all_reduce",
    "allreduce_coalesced_": "all_reduce_coalesced",
    "allgather_": "all_gather",
    "_allgather_base_": "all_gather_into_tensor",
    "allgather_coalesced_": "all_gather_coalesced",
    "allgather_into_tensor_coalesced_": "all_gather_into_tensor_coalesced",
    "reduce_scatter_": "reduce_scatter",
    "_reduce_scatter_base_": "reduce_scatter_tensor",
    "reduce_scatter_tensor_coalesced_": "reduce_scatter_tensor_coalesced",
    "alltoall_": "all_to_all",
    "alltoall_base_": "all_to_all_single",
    "recv_any_source_": "recv",
}
"""Operators whose name without its last underscore is not what torch.distributed calls it."""

_INPUTS = ("input_tensors", "input_list", "inputs", "input_tensor", "input", "tensors")
"""What operators call what is sent. A barrier has none of these."""


@dataclass(slots=True)
class Note:
    """One collective, and when it was entered, CLOCK_REALTIME. A send or recv is not counted: no group numbers it."""

    at_ns: int
    collective: Collective
    is_counted: bool
    is_waited_for: bool = True

    @property
    def told(self) -> Collective:
        """It, and whether anybody has waited for it so far."""
        if self.is_waited_for:
            return self.collective
        return replace(self.collective, how=", ".join(filter(None, (self.collective.how, NOT_WAITED))))


class Observer:
    """Notes what this process sends while it looks. While it is paused, that is not the workload's.

    ``counted`` is how many of all that it noted a group numbers; what ``completes`` means is said at
    :func:`torch_internals.watch_collectives`.
    """

    def __init__(self, *, completes: bool = False) -> None:
        self.notes: list[Note] = []
        self.counted = 0
        self.is_paused = False
        self._completes = completes
        self._end: Callable[[], None] | None = None

    def look(self) -> None:
        """Begin, or go on."""
        if self._end is None:
            self._end = torch_internals.watch_collectives(self._note, completes=self._completes)

    def look_away(self) -> None:
        """Stop: from now on a collective costs nothing again."""
        if self._end is not None:
            self._end()
            self._end = None

    def _note(self, name: str, given: Mapping[str, Any], reduction: str) -> Note | None:
        if self.is_paused:
            return None
        at_ns = HostClock.time_ns()
        group = torch_internals.process_group(given["process_group"])
        sent = next((given[key] for key in _INPUTS if key in given), ())
        tensors = list(_flat(sent))
        peer = given.get("dst", given.get("src"))
        collective = Collective(
            op=_OPERATIONS.get(name, name.rstrip("_")),
            dtype="+".join(dict.fromkeys(str(t.dtype).removeprefix("torch.") for t in tensors)),
            message_bytes=sum(t.numel() * t.element_size() for t in tensors),
            group=group_label(group.group_name, getattr(group, "group_desc", "")),
            count=1,
            how=_how(reduction, given, peer, rank=group.rank(), size=group.size()),
        )
        is_counted = peer is None and name != "recv_any_source_"
        self.counted += is_counted
        note = Note(at_ns, collective, is_counted)
        self.notes.append(note)
        return note


def groups_here() -> list[Group]:
    """The process groups this rank belongs to, but for that of all ranks."""
    found: list[Group] = []
    if not dist.is_initialized():
        return found
    for name, description, ranks in torch_internals.group_facts():
        label = group_label(name, description)
        steps = {b - a for a, b in itertools.pairwise(ranks)}
        if label != "default":
            found.append(Group(label, len(ranks), steps.pop() if len(steps) == 1 else 0))
    return found


def _flat(sent: Any) -> Any:
    if isinstance(sent, torch.Tensor):
        yield sent
    else:
        for part in sent:
            yield from _flat(part)


def _how(reduction: str, given: Mapping[str, Any], peer: int | None, *, rank: int, size: int) -> str:
    """Reduction, root or partner. A partner is told as a distance, so that the ranks of a ring are alike."""
    if peer is not None:
        behind = (size - 1) // 2
        distance = (peer - rank + behind) % size - behind
        return f"{'to' if 'dst' in given else 'from'} {distance:+d}"
    if "root_rank" in given:
        return f"{reduction} root {given['root_rank']}".strip()
    return reduction
