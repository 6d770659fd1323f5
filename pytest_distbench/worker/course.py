"""Course: the steps of a loop by kinds, without a look at each.

A group counts its collectives itself, so that a step costs two numbers and two times. Steps with as many as the
described one are taken to be like it. What the others send is read afterwards out of torch's flight recorder: once, at
the end, or before the recorder forgets the first of them.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from pytest_distbench.records.fingerprint import Collective, Course, Kind
from pytest_distbench.records.record import replace

MOST_KINDS = 12
"""What has more kinds of steps is no matter of kinds, such as an exchange that sends as much as there is."""

MOST_READS = 20
"""A read may take some 30 ms; after so many a step that is not like the others is known by its number alone."""

_NOT_NUMBERED = ("send", "recv")

Rows = list[Collective] | None
"""None: not known."""


class Count(NamedTuple):
    """How many collectives there were so far.

    Attributes:
        entered: of the workload.
        written: in the recorder, the plugin's own among them.
    """

    entered: int
    written: int


@dataclass(frozen=True, slots=True)
class _Step:
    number: int
    entered: int
    begin_ns: int
    end_ns: int
    written_before: int


@dataclass(slots=True)
class _Kind:
    rows: Rows
    entered: int
    numbers: list[int] = field(default_factory=list)

    def record(self) -> Kind:
        numbers = sorted(self.numbers)
        distances = {b - a for a, b in itertools.pairwise(numbers)}
        return Kind(
            collectives=self.rows,
            entered=self.entered,
            steps=len(numbers),
            first=numbers[0],
            last=numbers[-1],
            every=distances.pop() if len(distances) == 1 else 0,
        )


class Follower:
    """Follows the steps of one loop.

    Args:
        count: what there was so far; None where nobody counts.
        read: what was sent in each of several stretches of time.
        described: how many collectives the described step has; None: it is still to come.
        capacity: of the recorder.
    """

    def __init__(
        self,
        count: Callable[[], Count | None],
        read: Callable[[Sequence[tuple[int, int]]], list[Rows]],
        described: Callable[[], int | None],
        capacity: int,
    ) -> None:
        self._count = count
        self._read = read
        self._described = described
        self._forgets_after = capacity * 9 // 10
        self._ordinary = _Kind(None, 0)
        self._others: list[_Kind] = []
        self._unread: list[_Step] = []
        self._reads = 0
        self._steps = 0
        self._before: Count | None = None
        self._begin_ns = 0
        self._is_lost = self._is_whole = False

    def begin(self) -> None:
        """A step begins."""
        self._before, self._begin_ns = self._count(), time.time_ns()

    def end(self, number: int) -> None:
        """The step with this number is over; the first is 1, and 0 is what comes before it."""
        now, before = self._count(), self._before
        if now is None or before is None or now.entered < before.entered:  # fewer: a group is there no more
            self._is_lost = True
            return
        self._steps = number
        entered = now.entered - before.entered
        if number and entered == self._described():
            self._ordinary.numbers.append(number)
        else:
            self._unread.append(_Step(number, entered, self._begin_ns, time.time_ns(), before.written))
        next_written = now.written + now.written - before.written
        if self._unread and next_written - self._unread[0].written_before > self._forgets_after:
            self._sort()

    def end_last(self, number: int, ordinary: Sequence[Collective]) -> None:
        """The last step of a script is over, with all that came after it; the process groups may be gone by now.

        Args:
            number: of the step.
            ordinary: what the described step sends.
        """
        self._sort()
        [rows] = self._read([(self._begin_ns, time.time_ns())])
        if rows is None:
            return
        self._steps, self._is_whole = number, True
        if _bare(rows) == _bare(ordinary):
            self._ordinary.numbers.append(number)
        else:
            self._put(number, sum(row.count for row in rows if row.op not in _NOT_NUMBERED), rows)

    def made(self, ordinary: Sequence[Collective]) -> Course | None:
        """The course so far; None where it is not known. The described kind is named where it is not most of the steps.

        Args:
            ordinary: what the described step sends.
        """
        self._sort()
        if self._is_lost or self._described() is None or not self._steps:
            return None
        others = [kind.record() for kind in self._others]
        if 0 < len(self._ordinary.numbers) <= sum(kind.steps for kind in others if kind.first):
            described = replace(self._ordinary.record(), collectives=list(ordinary), entered=self._described() or 0)
            others.append(described)
        others.sort(key=lambda kind: (kind.first, kind.entered))
        return Course(steps=self._steps, others=others, is_whole=self._is_whole)

    def _sort(self) -> None:
        """Put the steps that wait for it to their kinds."""
        steps, self._unread = self._unread, []
        described = self._described()
        self._ordinary.numbers += [s.number for s in steps if s.number and s.entered == described]
        steps = [s for s in steps if not s.number or s.entered != described]
        if not steps:
            return
        self._reads += 1
        found: list[Rows] = [None] * len(steps)
        if self._reads <= MOST_READS:
            found = self._read([(step.begin_ns, step.end_ns) for step in steps])
        for step, rows in zip(steps, found, strict=True):
            self._put(step.number, step.entered, None if not rows and step.entered else rows)

    def _put(self, number: int, entered: int, rows: Rows) -> None:
        if not number:  # nothing else is like the beginning
            if rows != []:
                self._others.append(_Kind(rows, entered, [number]))
            return
        alike = [kind for kind in self._others if kind.numbers != [0] and kind.entered == entered]
        same = next((k for k in alike if rows is None or (k.rows is not None and _bare(k.rows) == _bare(rows))), None)
        if same is None:
            same = _Kind(rows, entered)
            self._others.append(same)
        same.numbers.append(number)
        self._is_lost |= len(self._others) > MOST_KINDS


def _bare(rows: Sequence[Collective]) -> list[Collective]:
    """Without what only an observer sees."""
    return [replace(row, how=None) for row in rows]
