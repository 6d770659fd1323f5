"""Observer of the collectives, sends and receives of this process, and follower of a loop's steps.

An operation is noted as the program asked for it, whatever a backend makes of it (gloo's reduce_scatter_tensor is an
all_reduce inside), so that a program has the same fingerprint on every backend.

Other steps of a loop cost two counts and two time stamps each: groups count their collectives. Steps with as many as
the described one are taken to be like it. What the others send is read from torch's flight recorder: once, at the end,
or before the recorder drops the first of them.
"""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist

from pytest_distbench.records.iteration import NOT_WAITED, Collective, Course, Group, StepKind, group_label, operation
from pytest_distbench.records.record import replace
from pytest_distbench.worker import torch_internals
from pytest_distbench.worker.clock import HostClock

MOST_KINDS = 12  # a loop with more kinds of steps sends as much as there is: its kinds say nothing
MOST_READS = 20  # a read may take some 30 ms; after so many, unusual steps are known by their counts alone

_NOT_NUMBERED = ("send", "recv")

Rows = list[Collective] | None  # None: not known


Count = tuple[int, int]  # collectives so far: of the workload; and in the recorder, with the plugin's own


_Steps = tuple[Rows, int, list[int]]


def _step_kind(steps: _Steps) -> StepKind:
    rows, entered, numbers = steps
    numbers = sorted(numbers)
    distances = {b - a for a, b in itertools.pairwise(numbers)}
    every = distances.pop() if len(distances) == 1 else 0
    first, last = numbers[0], numbers[-1]
    return StepKind(collectives=rows, entered=entered, steps=len(numbers), first=first, last=last, every=every)


@dataclass(slots=True, eq=False)
class StepFollower:
    """Follows the steps of one loop.

    ``count`` returns None if the backend does not count; ``read`` returns what was sent in each of some time spans;
    ``described`` the described step's number of collectives, or None before that step.
    """

    count: Callable[[], Count | None]
    read: Callable[[Sequence[tuple[int, int]]], list[Rows]]
    described: Callable[[], int | None]
    capacity: int
    _ordinary: list[int] = field(default_factory=list)
    _others: list[_Steps] = field(default_factory=list)
    _unsorted: list[tuple[int, int, int, Count | None, Count | None]] = field(default_factory=list)
    """Step number, begin and end (ns), and the counts before and after."""
    _sort_at: int | None = None
    _reads: int = 0
    _steps: int = 0
    _before: Count | None = None
    _begin_ns: int = 0
    _is_lost: bool = False
    _is_whole: bool = False

    def begin(self) -> None:
        """Begin the first step, or one that does not begin where the last one ended."""
        self._before, self._begin_ns = self.count(), HostClock.time_ns()

    def end(self, number: int) -> None:
        """End the step with this number, from 1; 0 is what comes before the first."""
        before, begin_ns = self._before, self._begin_ns
        now, end_ns = self._before, self._begin_ns = self.count(), HostClock.time_ns()
        self._unsorted.append((number, begin_ns, end_ns, before, now))
        if now is None or before is None:
            return
        if self._sort_at is None:
            self._sort_at = before[1] + self.capacity * 9 // 10
        if 2 * now[1] - before[1] > self._sort_at:  # the next step may have as many
            self._sort()

    def end_last(self, number: int, ordinary: Sequence[Collective]) -> None:
        """End a script's last step, with all that came after it; the process groups may be gone by now."""
        self._sort()
        [rows] = self.read([(self._begin_ns, HostClock.time_ns())])
        if rows is None:
            return
        self._steps, self._is_whole = number, True
        if _bare(rows) == _bare(ordinary):
            self._ordinary.append(number)
        else:
            self._put(number, sum(row.count for row in rows if row.op not in _NOT_NUMBERED), rows)

    def made(self, ordinary: Sequence[Collective]) -> Course | None:
        """The course so far, or None if unknown.

        ``ordinary`` is what the described step sends; its kind is named if it is not the majority of the steps.
        """
        self._sort()
        if self._is_lost or self.described() is None or not self._steps:
            return None
        others = [_step_kind(kind) for kind in self._others]
        if 0 < len(self._ordinary) <= sum(kind.steps for kind in others if kind.first):
            others.append(_step_kind((list(ordinary), self.described() or 0, self._ordinary)))
        others.sort(key=lambda kind: (kind.first, kind.entered))
        return Course(steps=self._steps, others=others, is_whole=self._is_whole)

    def _sort(self) -> None:
        steps, self._unsorted, self._sort_at = self._unsorted, [], None
        if not steps:
            return
        counted = [
            (number, -1 if before is None or after is None else after[0] - before[0], (begin_ns, end_ns))
            for number, begin_ns, end_ns, before, after in steps
        ]
        self._steps = counted[-1][0]
        self._is_lost |= any(entered < 0 for _, entered, _ in counted)  # nobody counts, or a group is there no more
        described = self.described()
        self._ordinary += [number for number, entered, _ in counted if number and entered == described]
        others = [step for step in counted if not step[0] or step[1] != described]
        if self._is_lost or not others:
            return
        self._reads += 1
        found: list[Rows] = [None] * len(others)
        if self._reads <= MOST_READS:
            found = self.read([stretch for _, _, stretch in others])
        for (number, entered, _), rows in zip(others, found, strict=True):
            self._put(number, entered, None if not rows and entered else rows)

    def _put(self, number: int, entered: int, rows: Rows) -> None:
        if not number:  # nothing else is like the beginning
            if rows != []:
                self._others.append((rows, entered, [number]))
            return
        for at, (known, its_entered, numbers) in enumerate(self._others):
            is_alike = rows is None or (known is not None and _bare(known) == _bare(rows))
            if numbers != [0] and its_entered == entered and is_alike:
                numbers.append(number)
                if known and rows and known[0].how is None:  # an observer, who came later, knows the reductions
                    self._others[at] = rows, entered, numbers
                break
        else:
            self._others.append((rows, entered, [number]))
        self._is_lost |= len(self._others) > MOST_KINDS


def _bare(rows: Sequence[Collective]) -> list[Collective]:
    return [replace(row, how=None) for row in rows]


_INPUTS = ("input_tensors", "input_list", "inputs", "input_tensor", "input", "tensors")
"""Names that torch's operators give to the argument with the sent tensors; a barrier has none."""


@dataclass(slots=True)
class Note:
    """One collective, and when it was entered (``at_ns``, CLOCK_REALTIME). ``is_counted``: no send or recv."""

    at_ns: int
    collective: Collective
    is_counted: bool
    line: str = ""
    is_in_backward: bool = False
    is_waited_for: bool = True

    @property
    def with_wait(self) -> Collective:
        """The collective; ``how`` ends in :data:`NOT_WAITED` if nobody has waited for it so far."""
        if self.is_waited_for:
            return self.collective
        return replace(self.collective, how=", ".join(filter(None, (self.collective.how, NOT_WAITED))))


class Observer:
    """Notes what this process sends while it looks, unless paused.

    ``counted``: number of noted collectives that groups count. ``completes``: see
    :func:`torch_internals.watch_collectives`.
    """

    def __init__(self, *, completes: bool = False) -> None:
        self.notes: list[Note] = []
        self.counted = 0
        self.is_paused = False
        self._completes = completes
        self._end: Callable[[], None] | None = None

    def look(self) -> None:
        if self._end is None:
            self._end = torch_internals.watch_collectives(self.note, completes=self._completes)

    def look_away(self) -> None:
        if self._end is not None:
            self._end()
            self._end = None

    def note(self, name: str, given: Mapping[str, Any], reduction: str) -> Note | None:
        """Note an operation and return its note, or None while paused."""
        if self.is_paused:
            return None
        at_ns = HostClock.time_ns()
        group = dist.ProcessGroup.unbox(given["process_group"])
        sent = next((given[key] for key in _INPUTS if key in given), ())
        tensors = list(_flat(sent))
        peer = given.get("dst", given.get("src"))
        collective = Collective(
            op=operation(name),
            dtype="+".join(dict.fromkeys(str(t.dtype).removeprefix("torch.") for t in tensors)),
            message_bytes=sum(t.numel() * t.element_size() for t in tensors),
            group=group_label(group.group_name, getattr(group, "group_desc", "")),
            count=1,
            how=_how(reduction, given, peer, rank=group.rank(), size=group.size()),
        )
        is_counted = peer is None and name != "recv_any_source_"
        self.counted += is_counted
        is_in_backward = torch_internals.in_backward()
        note = Note(at_ns, collective, is_counted, _line() + " backward" * is_in_backward, is_in_backward)
        self.notes.append(note)
        return note


_FOLDERS = (os.path.dirname(torch.__file__), os.path.dirname(os.path.dirname(__file__)), "<")
"""Files that are not the workload's: torch's, this package's, and code without a file."""


def _line() -> str:
    """The workload's line that sends, such as ``train.py:41 in step``, or "" if no Python code called."""
    frame = sys._getframe(2)
    while frame is not None and frame.f_code.co_filename.startswith(_FOLDERS):
        frame = frame.f_back  # type: ignore[assignment] # None behind the outermost one
    if frame is None:
        return ""
    return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno} in {frame.f_code.co_name}"


def groups_here() -> list[Group]:
    found: list[Group] = []
    if not dist.is_initialized():
        return found
    for name, description, ranks in torch_internals.group_facts():
        label = group_label(name, description)
        steps = {b - a for a, b in itertools.pairwise(ranks)}
        if label != "default":
            found.append((label, len(ranks), steps.pop() if len(steps) == 1 else 0))
    return found


def _flat(sent: Any) -> Any:
    if isinstance(sent, torch.Tensor):
        yield sent
    else:
        for part in sent:
            yield from _flat(part)


def _how(reduction: str, given: Mapping[str, Any], peer: int | None, *, rank: int, size: int) -> str:
    if peer is not None:  # written as a distance, so that the ranks of a ring are alike
        behind = (size - 1) // 2
        distance = (peer - rank + behind) % size - behind
        return f"{'to' if 'dst' in given else 'from'} {distance:+d}"
    if "root_rank" in given:
        return f"{reduction} root {given['root_rank']}".strip()
    return reduction
