"""The calls of a sweep: all that an iteration does, made ready before the clock runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from pytest_distbench.worker.torch_internals import coalescing
from pytest_distbench.workloads.collectives import Buffers, Form, Operation
from pytest_distbench.workloads.protocol import Together, groups_of

if TYPE_CHECKING:
    from pytest_distbench.worker.context import RankContext


@dataclass(frozen=True, slots=True)
class Call:
    """What one iteration does; on a rank that looks on there are no buffers and no form."""

    buffers: Sequence[Buffers]
    form: Form | None
    run: Callable[[], object]

    def copy(self) -> None:
        """Copy what is sent to where it is reduced: outside the clock, where torch has an operation in place only."""
        for sent, received, _ in self.buffers:
            received.copy_(sent)


def join(rank: RankContext, name: str | int) -> Form | None:
    """Make the groups that call at the same time. A collective call.

    It gives how this rank calls in its group; None where it has none.
    """
    form = None
    for ranks in groups_of(name, rank.world_size):
        group: Any = None if len(ranks) == rank.world_size else dist.new_group(list(ranks))
        if rank.rank in ranks:
            form = Form(ranks=ranks, rank=ranks.index(rank.rank), group=group)
    return form


class CallMaker:
    """Makes the calls of one operation.

    Args:
        measured: the operation.
        form: how this rank calls; None: it looks on.
        parts: tensors of one message.
        together: how they are sent.
        copies: a call works on a copy of what is sent.
        shifts_root: each call has the next rank as its root.
    """

    def __init__(
        self,
        measured: Operation,
        form: Form | None,
        *,
        parts: int = 1,
        together: Together = "turns",
        copies: bool = False,
        shifts_root: bool = False,
    ) -> None:
        self._measured = measured
        self._parts = parts
        self._together = together
        self.copies = copies
        forms = [form]
        if form is not None and shifts_root:
            forms = [replace(form, root=root) for root in range(form.size)]
        self._forms = [f and replace(f, is_async=together == "async" and parts > 1) for f in forms]

    @property
    def period(self) -> int:
        """So many calls follow each other before one is like the first."""
        return len(self._forms)

    def make(self, slot: Callable[[int], Buffers], k: int, *, at: int | None = None) -> Call:
        """The call of iteration ``k``, on buffers of its own, or on those of iteration ``at``."""
        form = self._forms[k % len(self._forms)]
        if form is None:
            return Call((), None, _look_on)
        first = (k if at is None else at) * self._parts
        buffers = [slot(first + part) for part in range(self._parts)]
        call = self._measured.call
        if self._parts == 1:
            return Call(buffers, form, partial(call, buffers[0], form))
        return Call(buffers, form, partial(_SENDERS[self._together], call, buffers, form))


def _look_on() -> None:
    """Another group calls."""


_CallOnce = Callable[[Buffers, Form], object]


def _in_turns(call: _CallOnce, buffers: Sequence[Buffers], form: Form) -> None:
    for one in buffers:
        call(one, form)


def _coalesced(call: _CallOnce, buffers: Sequence[Buffers], form: Form) -> None:
    with coalescing(form.group):
        for one in buffers:
            call(one, form)


def _at_once(call: _CallOnce, buffers: Sequence[Buffers], form: Form) -> None:
    works: list[Any] = [call(one, form) for one in buffers]
    for work in works:
        for one in work if isinstance(work, list) else [work]:
            one.wait()


_SENDERS: dict[Together, Callable[[_CallOnce, Sequence[Buffers], Form], None]] = {
    "turns": _in_turns,
    "coalesced": _coalesced,
    "async": _at_once,
}
