"""Course: the steps of a loop by kinds, told apart by how many collectives they have, without a look at each.

A group counts its collectives itself, so that a step costs two numbers and two times. What a step sends that comes with
another number than those before is read once, afterwards, out of torch's flight recorder.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

from pytest_distbench.records.fingerprint import Collective, Course, Kind
from pytest_distbench.records.record import replace

MOST_KINDS = 12
"""What has more kinds of steps is no matter of kinds, such as an exchange that sends as much as there is."""

_NOT_NUMBERED = ("send", "recv")

Rows = list[Collective] | None


@dataclass(slots=True)
class _Kind:
    rows: Rows
    entered: int
    first: int
    last: int
    steps: int = 1
    every: int = 0

    def add(self, number: int) -> None:
        distance = number - self.last
        self.every = distance if self.steps == 1 or distance == self.every else 0
        self.last = number
        self.steps += 1

    def record(self) -> Kind:
        return Kind(
            collectives=self.rows,
            entered=self.entered,
            steps=self.steps,
            first=self.first,
            last=self.last,
            every=self.every,
        )


class Follower:
    """Follows the steps of one loop.

    Args:
        entered: how many collectives there were so far; None where nobody counts.
        read: what was sent between two times; None: not known.
        described: how many the described step has; None: it is still to come.
    """

    def __init__(
        self,
        entered: Callable[[], int | None],
        read: Callable[[int, int], Rows],
        described: Callable[[], int | None],
    ) -> None:
        self._entered = entered
        self._read = read
        self._described = described
        self._kinds: dict[Hashable, _Kind] = {}
        self._steps = 0
        self._before: int | None = None
        self._begin_ns = 0
        self._is_lost = False
        self._knows_end = False

    def begin(self) -> None:
        """A step begins."""
        self._before, self._begin_ns = self._entered(), time.time_ns()

    def end(self, number: int) -> None:
        """The step with this number, from 1, is over."""
        now, begin_ns, end_ns = self._entered(), self._begin_ns, time.time_ns()
        if now is None or self._before is None or now < self._before:  # fewer: a group is there no more
            self._is_lost = True
            return
        self._steps = number
        number_of = now - self._before
        kind = self._kinds.get(number_of)
        if kind is not None:
            kind.add(number)
        elif len(self._kinds) == MOST_KINDS:
            self._is_lost = True
        else:
            rows = None if number_of == self._described() else self._known(number_of, begin_ns, end_ns)
            self._kinds[number_of] = _Kind(rows, number_of, number, number)

    def end_start(self) -> None:
        """What a script does before its first step is over: a kind of its own."""
        now, end_ns = self._entered(), time.time_ns()
        number_of = (now or 0) - (self._before or 0)
        rows = self._known(number_of, self._begin_ns, end_ns)
        if rows != []:
            self._kinds["start"] = _Kind(rows, number_of, 0, 0)

    def end_last(self, number: int, ordinary: Sequence[Collective]) -> None:
        """The last step of a script is over, with all that came after it; the process groups may be gone by now.

        Args:
            number: of the step.
            ordinary: what the described step sends.
        """
        rows = self._read(self._begin_ns, time.time_ns())
        if rows is None:
            return
        self._steps, self._knows_end = number, True
        known = {key: kind.rows for key, kind in self._kinds.items() if kind.first}
        described = self._described()
        if described is not None:
            known[described] = list(ordinary)
        same = next((k for k, other in known.items() if other is not None and _bare(other) == _bare(rows)), "end")
        if same in self._kinds:
            self._kinds[same].add(number)
        else:
            self._kinds[same] = _Kind(rows, sum(r.count for r in rows if r.op not in _NOT_NUMBERED), number, number)

    def made(self, ordinary: Sequence[Collective]) -> Course | None:
        """The course so far; None where it is not known. The described kind is named where most steps are others.

        Args:
            ordinary: what the described step sends.
        """
        described = self._described()
        if self._is_lost or described is None or not self._steps:
            return None
        others = [kind.record() for key, kind in self._kinds.items() if key != described]
        if 2 * sum(kind.steps for kind in others) > self._steps and described in self._kinds:
            others.append(replace(self._kinds[described].record(), collectives=list(ordinary)))
        return Course(
            steps=self._steps,
            others=sorted(others, key=lambda kind: (kind.first, kind.entered)),
            is_whole=self._knows_end,
        )

    def _known(self, number_of: int, begin_ns: int, end_ns: int) -> Rows:
        rows = self._read(begin_ns, end_ns)
        return None if not rows and number_of else rows


def _bare(rows: Sequence[Collective]) -> list[Collective]:
    """Without what only an observer sees."""
    return [replace(row, how=None) for row in rows]
