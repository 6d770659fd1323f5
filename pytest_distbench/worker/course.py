"""Course: the steps of a loop by kinds, without a look at each.

A group counts its collectives itself, so that a step costs two numbers and two times. Steps with as many as the
described one are taken to be like it. What the others send is read afterwards out of torch's flight recorder: once, at
the end, or before the recorder forgets the first of them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from pytest_distbench.records.fingerprint import Collective, Course, Kind
from pytest_distbench.records.record import replace
from pytest_distbench.worker.clock.host import HostClock

MOST_KINDS = 12
"""What has more kinds of steps is no matter of kinds, such as an exchange that sends as much as there is."""

MOST_READS = 20
"""A read may take some 30 ms; after so many a step that is not like the others is known by its number alone."""

_NOT_NUMBERED = ("send", "recv")

Rows = list[Collective] | None
"""None: not known."""


Count = tuple[int, int]
"""How many collectives there were so far: of the workload; and in the recorder, the plugin's own among them."""


class _Step(NamedTuple):
    number: int
    begin_ns: int
    end_ns: int
    before: Count | None
    after: Count | None

    @property
    def entered(self) -> int:
        return self.after[0] - self.before[0] if self.after is not None and self.before is not None else -1


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

    It goes on from a count, None where nobody counts, and from what was sent in each of several stretches of time. The
    described step is still to come where nobody says how many collectives it has.
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
        self._unsorted: list[_Step] = []
        self._sort_at: int | None = None
        self._reads = 0
        self._steps = 0
        self._before: Count | None = None
        self._begin_ns = 0
        self._is_lost = self._is_whole = False

    def begin(self) -> None:
        """A step begins: the first, or one that does not begin where the one before it ended."""
        self._before, self._begin_ns = self._count(), HostClock.time_ns()

    def end(self, number: int) -> None:
        """The step with this number is over; the first is 1, and 0 is what comes before it."""
        before, begin_ns = self._before, self._begin_ns
        now, end_ns = self._before, self._begin_ns = self._count(), HostClock.time_ns()
        self._unsorted.append(_Step(number, begin_ns, end_ns, before, now))
        if now is None or before is None:
            return
        if self._sort_at is None:
            self._sort_at = before[1] + self._forgets_after
        if 2 * now[1] - before[1] > self._sort_at:  # the next step may have as many
            self._sort()

    def end_last(self, number: int, ordinary: Sequence[Collective]) -> None:
        """The last step of a script is over, with all that came after it; the process groups may be gone by now."""
        self._sort()
        [rows] = self._read([(self._begin_ns, HostClock.time_ns())])
        if rows is None:
            return
        self._steps, self._is_whole = number, True
        if _bare(rows) == _bare(ordinary):
            self._ordinary.numbers.append(number)
        else:
            self._put(number, sum(row.count for row in rows if row.op not in _NOT_NUMBERED), rows)

    def made(self, ordinary: Sequence[Collective]) -> Course | None:
        """The course so far; None where it is not known.

        ``ordinary`` is what the described step sends; its kind is named where it is not most of the steps.
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
        """Put the steps so far to their kinds."""
        steps, self._unsorted, self._sort_at = self._unsorted, [], None
        if not steps:
            return
        self._steps = steps[-1].number
        self._is_lost |= any(step.entered < 0 for step in steps)  # nobody counts, or a group is there no more
        described = self._described()
        self._ordinary.numbers += [s.number for s in steps if s.number and s.entered == described]
        others = [s for s in steps if not s.number or s.entered != described]
        if self._is_lost or not others:
            return
        self._reads += 1
        found: list[Rows] = [None] * len(others)
        if self._reads <= MOST_READS:
            found = self._read([(step.begin_ns, step.end_ns) for step in others])
        for step, rows in zip(others, found, strict=True):
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
