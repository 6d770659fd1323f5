"""Watch: the collectives of one iteration or training step of this rank, and how other steps differ from it.

An :class:`Observer` looks at the described iteration, one that is not timed or one of many, as it costs time in each
collective. Outside of loops, where a body may take times itself, torch's flight recorder is read afterwards. Groups
count the collectives of timed iterations anyway; a :class:`StepFollower` notes which iterations had others. On the
backend ``fake`` the observer looks at everything. What the plugin itself sends (barriers, counts) is left out.
"""

from __future__ import annotations

import contextlib
import math
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec
import torch
import torch.distributed as dist
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook

from pytest_distbench.records.iteration import (
    NOT_RECORDED,
    PICKLE,
    Collective,
    Fingerprint,
    FlightEntry,
    read_flight_recorder,
)
from pytest_distbench.records.record import replace
from pytest_distbench.releases import RECORDER_SIZE_VARIABLE
from pytest_distbench.worker import torch_internals
from pytest_distbench.worker.clock import HostClock
from pytest_distbench.worker.observer import Count, Observer, StepFollower, groups_here
from pytest_distbench.worker.tensors import local_part

_DEFAULT_CAPACITY = 2000
_MOST_STAMPS = 300
_TIME_STEP_NS = 5_000_000

_Part = TypeVar("_Part")
_Message = tuple[str, int, str]
_Recorded = tuple[str, str, int, str]


@dataclass(slots=True)
class _Window:
    key: str
    begin_ns: int
    first_note: int
    entered_before: int | None
    optimizers: dict[int, Optimizer] = field(default_factory=dict)
    held: dict[tuple[int, int], torch.Tensor] = field(default_factory=dict)
    optimizer_steps: int = 0
    sent: list[Collective] = field(default_factory=list)
    graph_nodes: int | None = field(default_factory=torch_internals.graph_nodes)

    def hold(self, optimizer: Optimizer) -> None:
        """Note the parameters of an optimizer now: a framework may give it one parameter group at a time."""
        self.optimizers.setdefault(id(optimizer), optimizer)
        self.held |= {(id(optimizer), id(p)): p for group in optimizer.param_groups for p in group["params"]}


class Watch:
    """Fingerprints of one rank by key, and the times and lines at which it entered their collectives.

    If off, every method does nothing. ``sees_all``: the backend moves no data, and the observer looks all the time.
    """

    def __init__(self, *, is_on: bool, sees_all: bool = False, rank: int = 0, observer: Observer | None = None) -> None:
        self.is_on = is_on
        self.found: dict[str, Fingerprint] = {}
        self.times: dict[str, list[float]] = {}
        self.lines: dict[str, list[str]] = {}
        self._who = str(rank)
        self._sees_all = sees_all
        self._observer = observer or Observer(completes=sees_all)
        self._open: _Window | None = None
        self._hook = contextlib.ExitStack()
        self._per_iteration: dict[str, int | None] = {}
        self._entered_apart = self._entered_in_parts = 0
        self._looked_on = 0, 0
        self._apart: list[tuple[int, int]] = []
        self._names: dict[_Recorded, list[str]] = {}
        size = os.environ.get(RECORDER_SIZE_VARIABLE, "")
        self._capacity = int(size) if size.isdecimal() else _DEFAULT_CAPACITY
        self._realtime_offset_ns = _realtime_offset_ns()
        self._marked_note = 0
        self._mark_ns = HostClock.time_ns()

    def look(self) -> None:
        """Begin to observe all collectives on a backend without data; called when a process group may exist soon."""
        if self.is_on and self._sees_all:
            self._observer.look()

    def look_away(self) -> None:
        self._observer.look_away()

    def mark(self) -> None:
        """Set the beginning of what :meth:`since_mark` describes; at first it is the rank's start."""
        if self.is_on:
            self._mark_ns, self._marked_note = HostClock.time_ns(), len(self._observer.notes)
            self._apart.clear()

    def since_mark(self, key: str) -> None:
        """Describe everything since the last mark under ``key``. Takes some ten milliseconds."""
        if not self.is_on:
            return
        if self._sees_all:
            notes = self._observer.notes[self._marked_note :]
            self.found[key] = self._made(_rows(n.with_wait for n in notes), groups=self._of_me(groups_here()))
            return
        end_ns = HostClock.time_ns()
        rings = _rings()
        # A script that is one process, and makes no group, sends nothing: that is its fingerprint.
        if not self._capacity or not (rings or not dist.is_initialized()):
            self.found[key] = Fingerprint(missing=_why_not_recorded(self._capacity))
        elif why := self._why_not_remembered(rings, self._mark_ns):
            self.found[key] = Fingerprint(missing=why)
        else:
            self.found[key] = self._made(_rows(self._inside(rings, self._mark_ns, end_ns)))

    @property
    def open_key(self) -> str:
        return self._open.key if self._open is not None else ""

    @property
    def sent(self) -> int:
        """Collectives, sends and receives so far in the iteration being described, or 0."""
        return len(self._observer.notes) - self._open.first_note if self._open is not None else 0

    def begin(self, key: str) -> None:
        """Begin the iteration described under ``key``, replacing an earlier one."""
        if not self.is_on:
            return
        self._hook.close()
        self.end_looking_on()
        window = self._open = _Window(key, HostClock.time_ns(), len(self._observer.notes), self.entered())

        def count(optimizer: Optimizer, *_: object) -> None:
            window.hold(optimizer)
            window.optimizer_steps += 1

        self._hook.callback(register_optimizer_step_post_hook(torch_internals.uncompiled(count)).remove)
        self._observer.look()

    def end(self) -> None:
        if self._open is None:
            return
        window, self._open = self._open, None
        if not self._sees_all:
            self._observer.look_away()
        self._hook.close()
        for optimizer in window.optimizers.values():
            window.hold(optimizer)
        notes = sorted(self._observer.notes[window.first_note :], key=lambda note: note.at_ns)
        if not self._sees_all:
            del self._observer.notes[window.first_note :]
            self._learn_names([note.collective for note in notes], window.begin_ns, HostClock.time_ns())
        number = _difference(self.entered(), window.entered_before)
        is_gone = number is not None and number < 0  # a group, with its count
        self._per_iteration[window.key] = sum(note.is_counted for note in notes) if is_gone else number
        sent = [note.with_wait for note in notes]
        window.sent = _rows(sent)
        self.lines[window.key] = [note.line for note in notes]
        self.times[window.key] = [(note.at_ns - self._realtime_offset_ns) / 1e9 for note in notes[:_MOST_STAMPS]]
        may_go_back = window.graph_nodes not in (None, torch_internals.graph_nodes())  # autograd has recorded in it
        self.found[window.key] = self._made(
            window.sent,
            groups=self._of_me(groups_here()),
            facts={name: {self._who: count(window)} for name, count in FACTS.items()},
            pickled_bytes=max((one.message_bytes for one, is_pickle in _marked(sent) if is_pickle), default=0),
            in_backward={self._who: sum(n.is_in_backward for n in notes)} if notes and may_go_back else {},
            totals={name: value for name, count in TOTALS.items() if (value := count(window))},
            is_full=True,
        )

    def look_on(self, key: str) -> None:
        """Observe the steps after a described iteration that sends nothing, up to the flight recorder's capacity.

        Called before each step. It also ends when another iteration is described.
        """
        if key not in self.found or self._sees_all or self.sends(key):
            return
        if not self._looked_on[1]:
            self._looked_on = HostClock.time_ns(), sys.maxsize
            self._observer.look()
        elif len(self._observer.notes) >= self._capacity:
            self.end_looking_on()

    def end_looking_on(self) -> None:
        if self._looked_on[1] == sys.maxsize:
            self._observer.look_away()
            self._looked_on = self._looked_on[0], HostClock.time_ns()

    def sends(self, key: str) -> list[Collective]:
        return self.found[key].collectives[self._who]

    def _made(self, rows: list[Collective], **parts: Any) -> Fingerprint:
        return Fingerprint(collectives={self._who: rows}, **parts)

    def _of_me(self, part: _Part | None) -> dict[str, _Part]:
        return {self._who: part} if part else {}

    def entered(self) -> int | None:
        """Collectives of the workload so far, without send and recv, or None if the backend does not count."""
        if not self.is_on:
            return None
        if self._sees_all:
            return self._observer.counted - self._entered_in_parts
        if not dist.is_initialized():
            return 0
        entered = torch_internals.entered_in_all_groups()
        return None if entered is None else entered - self._entered_apart - self._entered_in_parts

    def unrecorded(self) -> int:
        """Collectives of the workload so far if none of them is in a fingerprint, without send and recv, else 0."""
        return 0 if self.found else max(0, self.entered() or 0)

    def follow(self, key: str) -> StepFollower:
        def count() -> Count | None:
            if self._sees_all or not self.is_on:
                return (self._observer.counted, 0) if self.is_on else None
            written = torch_internals.entered_in_all_groups() if dist.is_initialized() else 0
            return None if written is None else (written - self._entered_apart, written)

        return StepFollower(count, self._rows_of, lambda: self._per_iteration.get(key), self._capacity)

    def compare(self, key: str, *, since: int | None, iterations: int, course: StepFollower | None = None) -> None:
        """Note how many collectives iterations had beyond the described one; ``since``: :meth:`entered` before them."""
        number, each = _difference(self.entered(), since), self._per_iteration.get(key)
        if number is not None and each is not None and iterations and (more := number - iterations * each):
            self.found[key] = replace(self.found[key], beyond={self._who: (more, iterations)})
        if course is not None:
            self.note_course(key, course)

    def note_course(self, key: str, course: StepFollower) -> None:
        if key in self.found:
            self.found[key] = replace(self.found[key], course=self._of_me(course.made(self.sends(key))))

    @contextlib.contextmanager
    def apart(self, *, is_workloads: bool = False) -> Iterator[None]:
        """Leave collectives issued inside out of the fingerprint; ``is_workloads``: they are not the plugin's own."""
        if not self.is_on:
            yield
            return
        begin, before, was_paused = HostClock.time_ns(), self.entered(), self._observer.is_paused
        self._observer.is_paused = True
        try:
            yield
        finally:
            self._observer.is_paused = was_paused
            number = _difference(self.entered(), before)
            if is_workloads:
                self._entered_in_parts += number or 0
            elif number != 0:  # a reducer is asked at each forward pass, and sends something once
                self._entered_apart += number or 0
                self._apart.append((begin, HostClock.time_ns()))

    def _rows_of(self, stretches: Sequence[tuple[int, int]]) -> list[list[Collective] | None]:
        notes, (began_ns, ended_ns) = self._observer.notes, self._looked_on
        if self._sees_all:
            began_ns, ended_ns = 0, sys.maxsize
        elif ended_ns:
            self._learn_names([note.collective for note in notes], began_ns, min(ended_ns, HostClock.time_ns()))
        rings = [] if self._sees_all else _rings()

        def read(begin_ns: int, end_ns: int) -> list[Collective] | None:
            if began_ns <= begin_ns and end_ns <= ended_ns:
                return _rows(note.with_wait for note in notes if begin_ns <= note.at_ns <= end_ns)
            is_known = self._capacity and not self._why_not_remembered(rings, begin_ns)
            return _rows(self._inside(rings, begin_ns, end_ns)) if is_known else None

        return [read(*stretch) for stretch in stretches]

    def _why_not_remembered(self, rings: Sequence[Sequence[FlightEntry]], begin_ns: int) -> str:
        if abs(_realtime_offset_ns() - self._realtime_offset_ns) > _TIME_STEP_NS:
            return "the system clock was set meanwhile"
        if any(ring[0].record_id > 0 and ring[0].time_created_ns >= begin_ns for ring in rings):
            return f"more than the {self._capacity} collectives torch remembers ({RECORDER_SIZE_VARIABLE})"
        return ""

    def _learn_names(self, asked: Sequence[Collective], begin_ns: int, end_ns: int) -> None:
        """Map recorded names to requested ones: gloo records a reduce_scatter_tensor as an all_reduce."""
        rings = _rings() if asked else []
        recorded = self._entered_inside(rings, begin_ns, end_ns)
        asked_alike, recorded_alike = _by_message(asked), _by_message(map(_collective, recorded))
        for message, names in asked_alike.items():
            ops = recorded_alike.get(message, [])
            if len(ops) == len(names):
                for op in set(ops):
                    self._names[op, *message] = [name for own, name in zip(ops, names, strict=True) if own == op]

    def _inside(self, rings: Sequence[Sequence[FlightEntry]], begin_ns: int, end_ns: int) -> Iterator[Collective]:
        seen: Counter[_Recorded] = Counter()
        for one in map(_collective, self._entered_inside(rings, begin_ns, end_ns)):
            recorded = (one.op, *_message(one))
            names = self._names.get(recorded, [one.op])
            yield replace(one, op=names[seen[recorded] % len(names)])
            seen[recorded] += 1

    def _entered_inside(self, rings: Sequence[Sequence[FlightEntry]], begin_ns: int, end_ns: int) -> list[FlightEntry]:
        apart = [(a, b) for a, b in self._apart if a <= end_ns and b >= begin_ns]
        inside = [e for ring in rings for e in ring if begin_ns <= e.time_created_ns <= end_ns]
        own = [e for e in inside if not any(a <= e.time_created_ns <= b for a, b in apart)]
        return sorted(own, key=lambda entry: entry.time_created_ns)


def _kept(window: _Window) -> list[torch.Tensor]:
    states = [state for o in window.optimizers.values() for state in o.state.values() if isinstance(state, Mapping)]
    return [value for state in states for value in state.values() if isinstance(value, torch.Tensor)]


FACTS: dict[str, Callable[[_Window], int]] = {
    "parameter_bytes": lambda window: _bytes_of(window.held.values()),
    "optimizer_bytes": lambda window: _bytes_of(_kept(window)),
}
"""Counts per rank of a described step, by name; for sharded state, of the own shard. Names of bytes end in ``_bytes``.

``judging.fingerprint_rule.FACTS`` has the texts.
"""

TOTALS: dict[str, Callable[[_Window], int]] = {
    "parameters": lambda window: sum(local_part(p).numel() for p in window.held.values()),
    "optimizer_steps": lambda window: window.optimizer_steps,
}
"""Counts of a described step, summed over all ranks."""


_OF_OBJECTS = {"broadcast", "all_gather", "all_gather_into_tensor", "gather", "scatter", "send", "recv"}


def _marked(collectives: Iterable[Collective]) -> Iterator[tuple[Collective, bool]]:
    """Each collective, and whether it is a pickle: bytes after an int64, their size, as broadcast_object_list sends."""
    sized_in = ""  # the group in which a size was sent just now
    for one in collectives:
        yield one, one.op in _OF_OBJECTS and one.dtype == "uint8" and one.group == sized_in
        sized_in = one.group if one.op in _OF_OBJECTS and one.dtype == "int64" else ""


def _rows(collectives: Iterable[Collective]) -> list[Collective]:
    rows: list[Collective] = []
    for one, is_pickle in _marked(collectives):
        found = replace(one, dtype=PICKLE, message_bytes=0) if is_pickle else one
        if rows and replace(rows[-1], count=1) == found:
            rows[-1] = replace(rows[-1], count=rows[-1].count + 1)
        else:
            rows.append(found)
    return rows


def _message(one: Collective) -> _Message:
    return (one.dtype, one.message_bytes, one.group)


def _by_message(collectives: Iterable[Collective]) -> dict[_Message, list[str]]:
    found: dict[_Message, list[str]] = {}
    for one in collectives:
        found.setdefault(_message(one), []).append(one.op)
    return found


def _bytes_of(tensors: Iterable[torch.Tensor]) -> int:
    return sum(own.numel() * own.element_size() for own in map(local_part, tensors))


def _difference(now: int | None, before: int | None) -> int | None:
    return None if now is None or before is None else now - before


def _collective(entry: FlightEntry) -> Collective:
    return Collective(
        op=entry.op,
        dtype="+".join(dict.fromkeys(entry.dtypes)),
        message_bytes=sum(
            getattr(getattr(torch, dtype, None), "itemsize", 1) * math.prod(shape)
            for dtype, shape in zip(entry.dtypes, entry.input_sizes, strict=False)
        ),
        group=entry.group,
        count=1,
    )


def _rings() -> list[list[FlightEntry]]:
    found = []
    for content in torch_internals.recordings(whole=True).values():
        with contextlib.suppress(msgspec.DecodeError):
            found.append(read_flight_recorder(content))
    return [entries for entries in found if entries]


def _why_not_recorded(capacity: int) -> str:
    world = dist.group.WORLD
    backends = ", ".join(sorted(torch_internals.backends_of(world))) if world else "no process group"
    where = f"{NOT_RECORDED} torch {torch.__version__} on {backends}"
    return where if capacity else f"{where} with {RECORDER_SIZE_VARIABLE}=0"


def _realtime_offset_ns() -> int:
    """CLOCK_REALTIME minus CLOCK_MONOTONIC, from the attempt that took least time."""
    tries = []
    for _ in range(5):
        before, now, after = HostClock.monotonic_ns(), HostClock.time_ns(), HostClock.monotonic_ns()
        tries.append((after - before, now - after))
    return min(tries)[1]
