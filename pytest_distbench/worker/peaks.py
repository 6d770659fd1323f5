"""Recorder of memory: which lines of the repository made the tensors that are alive when those of a rank are largest.

On a CPU it watches operators in the main thread, and each new storage until it is freed. On a GPU torch's allocator
records its history. No launch under it is judged.
"""

from __future__ import annotations

import contextlib
import os
import sys
import weakref
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import torch

from pytest_distbench.records.metric import PEAK_MEMORY, UNDER_WAY, metric_key
from pytest_distbench.records.places import BACKWARD, Place, Spot
from pytest_distbench.worker.places import Callers, Stack, Stacks, is_own
from pytest_distbench.worker.torch_internals import TorchDispatchMode, allocator_history, record_allocations

_SECOND = metric_key(PEAK_MEMORY, {"from_update": UNDER_WAY})

_MadeBy = tuple[Stack, str]  # lines of the repository, and the operator
_Held = dict[_MadeBy, tuple[int, int]]  # tensors and bytes


class TensorPeak(TorchDispatchMode):
    """Recorder on a CPU. A storage that Python resizes, without an operator, keeps its first size."""

    def __init__(self, root: str) -> None:
        super().__init__()
        self._stacks = Stacks(root)
        self._callers = Callers(self._stacks)
        self._alive: dict[int, tuple[_MadeBy, int, object]] = {}  # by id: what made it, bytes, weak reference
        self._freed: deque[int] = deque()  # a reference dies at any moment, in any thread
        self._held: _Held = defaultdict(lambda: (0, 0))
        self._total = 0
        self._most: list[tuple[int, _Held]] = [(0, {})]  # one more from the second peak on
        self._is_forked = False
        os.register_at_fork(after_in_child=lambda: setattr(self, "_is_forked", True))  # it records no worker

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        del types
        if self._is_forked:
            return func(*args, **(kwargs or {}))
        stack, in_backward = self._callers.of(sys._getframe(1))
        result = func(*args, **(kwargs or {}))
        self._forget_freed()
        new = [storage for storage in _storages(result) if id(storage) not in self._alive]
        if new:
            name = func.name().partition(".")[0]
            made_by = stack, f"{name} ({BACKWARD})" if in_backward else name
            older = {id(storage) for storage in _storages([*args, *(kwargs or {}).values()])}  # it may be a view
            for storage in new:
                if id(storage) not in older and id(storage) not in self._alive:
                    self._take(storage, made_by)
        return result

    def _take(self, storage: torch.UntypedStorage, made_by: _MadeBy) -> None:
        key, size = id(storage), storage.nbytes()
        self._alive[key] = made_by, size, weakref.ref(storage, lambda _: self._freed.append(key))
        tensors, held = self._held[made_by]
        self._held[made_by] = tensors + 1, held + size
        self._total += size

    def _forget_freed(self) -> None:
        """Forget what was freed since, and note before that whether all of it was the most."""
        if self._freed:
            self._note()
        while self._freed:
            made_by, size, _ = self._alive.pop(self._freed.popleft())
            tensors, held = self._held[made_by]
            self._held[made_by] = tensors - 1, held - size
            self._total -= size

    def _note(self) -> None:
        if self._total > self._most[-1][0]:
            self._most[-1] = self._total, {key: held for key, held in self._held.items() if held[0]}

    def begin_second(self) -> None:
        if len(self._most) == 1:
            self._forget_freed()
            self._note()
            self._most.append((0, {}))

    def peaks(self) -> dict[str, list[Spot]]:
        """Return what was alive, by the metric of the peak."""
        self._forget_freed()
        self._note()
        peaks = max(self._most, key=lambda most: most[0]), *self._most[1:]
        return {
            metric: [
                Spot(stack=[*self._stacks.places(stack)], what=what, calls=tensors, amount=size)
                for (stack, what), (tensors, size) in held.items()
            ]
            for metric, (_, held) in zip((PEAK_MEMORY, _SECOND), peaks, strict=False)
        }


def _storages(value: object) -> Iterator[torch.UntypedStorage]:
    """Storages of the CPU in what an operator takes or returns, those inside of tensors of a subclass too."""
    if isinstance(value, list | tuple):
        for one in value:
            yield from _storages(one)
    elif isinstance(value, torch.Tensor):
        if hasattr(value, "__tensor_flatten__"):
            yield from _storages([getattr(value, name) for name in value.__tensor_flatten__()[0]])
        elif value.device.type == "cpu":
            with contextlib.suppress(RuntimeError):  # a sparse tensor has none
                yield value.untyped_storage()


class AllocatorPeak:
    """Recorder on a GPU: the history of torch's allocator in this process."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._spots: list[Spot] = []

    def __enter__(self) -> Self:
        record_allocations(is_on=True)
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any, /) -> None:
        self._spots = spots_at_peak(allocator_history(), self._root)
        record_allocations(is_on=False)

    def begin_second(self) -> None:
        pass  # the allocator has one peak

    def peaks(self) -> dict[str, list[Spot]]:
        return {PEAK_MEMORY: self._spots}


def spots_at_peak(history: Sequence[Mapping[str, Any]], root: str) -> list[Spot]:
    """Return what a history of an allocator has alive at its peak.

    Args:
        history: ``device_traces`` of one device in torch.cuda.memory's snapshot: with each ``action``, its
            ``addr``, ``size`` in bytes and ``frames``, innermost first.
        root: folder of the repository.
    """
    alive: dict[int, Mapping[str, Any]] = {}
    total = most = 0
    at_most: list[Mapping[str, Any]] = []
    for event in history:
        if event["action"] == "alloc":
            alive[event["addr"]] = event
            total += event["size"]
        elif event["action"] in ("free_requested", "free_completed") and event["addr"] in alive:
            if total > most:
                most, at_most = total, [*alive.values()]
            total -= alive.pop(event["addr"])["size"]
    if total > most:
        at_most = [*alive.values()]
    held: dict[tuple[tuple[Place, ...], str], list[int]] = defaultdict(list)
    for event in at_most:
        frames = event.get("frames", ())
        own = [frame for frame in frames if is_own(frame["filename"], root)]
        stack = [(str(Path(f["filename"]).relative_to(root)), int(f["line"]), str(f["name"])) for f in own]
        what = "Python" if frames and frames[0] in own else str(frames[0]["name"]) if frames else "no line"
        held[tuple(stack), what].append(event["size"])
    return [Spot(stack=[*s], what=what, calls=len(sizes), amount=sum(sizes)) for (s, what), sizes in held.items()]
