"""The kinds of a loop's steps are told by how many collectives they have, and each is read once."""

from __future__ import annotations

import time
from collections.abc import Sequence

import pytest
from support.fingerprints import reduce

from pytest_distbench.records.fingerprint import Collective, Course, Kind
from pytest_distbench.worker.course import MOST_KINDS, MOST_READS, Count, Follower

SMALL, LARGE = reduce(4), reduce(4096)
CAPACITY = 100


class Loop:
    """Steps that send what they are told to; keeps how often somebody asked what it was."""

    def __init__(self, described: int | None = None, *, remembers: bool = True) -> None:
        self.entered: int | None = 0
        self.reads = 0
        self.sent: list[tuple[int, Collective]] = []
        self.described = described
        self.ordinary = [SMALL] * (described or 0)
        self.remembers = remembers
        self.follower = Follower(self._count, self._read, lambda: self.described, CAPACITY)

    def _count(self) -> Count | None:
        return None if self.entered is None else (self.entered, self.entered)

    def _read(self, stretches: Sequence[tuple[int, int]]) -> list[list[Collective] | None]:
        """What the last ``CAPACITY`` were."""
        self.reads += 1
        known = self.sent[-CAPACITY:] if self.remembers else []
        oldest = known[0][0] if len(self.sent) > CAPACITY else 0
        return [
            None if begin_ns < oldest or not self.remembers else [row for at, row in known if begin_ns <= at <= end_ns]
            for begin_ns, end_ns in stretches
        ]

    def send(self, *rows: Collective) -> None:
        self.follower.begin()
        for row in rows:
            self.sent.append((time.time_ns(), row))
        self.entered = (self.entered or 0) + len(rows)

    def steps(self, *steps: Sequence[Collective]) -> Course | None:
        for number, rows in enumerate(steps, 1):
            self.send(*rows)
            self.follower.end(number)
        return self.follower.made(self.ordinary)


def test_steps_like_the_described_one_are_counted_and_not_read() -> None:
    loop = Loop(described=1)

    assert loop.steps([SMALL], [SMALL], [SMALL]) == Course(steps=3)
    assert loop.reads == 0


def test_a_kind_of_step_that_comes_every_third_is_read_once() -> None:
    loop = Loop(described=0)

    found = loop.steps(*([[], [], [LARGE]] * 3))

    assert found == Course(steps=9, others=[Kind(collectives=[LARGE], entered=1, steps=3, first=3, last=9, every=3)])
    assert loop.reads == 1


def test_where_most_steps_are_others_the_described_kind_is_named_too() -> None:
    """The last warm-up iteration may be one of those that come every third."""
    assert Loop(described=1).steps(*([[], [], [SMALL]] * 2)) == Course(
        steps=6,
        others=[
            Kind(collectives=[], entered=0, steps=4, first=1, last=5),
            Kind(collectives=[SMALL], entered=1, steps=2, first=3, last=6, every=3),
        ],
    )


def test_steps_that_send_as_many_of_another_kind_are_told_apart() -> None:
    found = Loop(described=0).steps(*([[], [], [LARGE], [], [], [SMALL]] * 2))

    assert found == Course(
        steps=12,
        others=[
            Kind(collectives=[LARGE], entered=1, steps=2, first=3, last=9, every=6),
            Kind(collectives=[SMALL], entered=1, steps=2, first=6, last=12, every=6),
        ],
    )


@pytest.mark.parametrize("apart", [2, 25])
def test_a_kind_is_read_before_it_is_forgotten(apart: int) -> None:
    found = Loop(described=10).steps(*([*[[SMALL] * 10] * apart, [LARGE], *[[SMALL] * 10] * apart, [SMALL]] * 4))

    assert found is not None
    assert [kind.collectives for kind in found.others] == [[LARGE], [SMALL]]


def test_a_long_loop_is_not_read_without_end() -> None:
    loop = Loop(described=10)
    found = loop.steps(*([[SMALL] * 10, [SMALL] * 10, [LARGE]] * 400))

    assert found == Course(
        steps=1200, others=[Kind(collectives=[LARGE], entered=1, steps=400, first=3, last=1200, every=3)]
    )
    assert loop.reads == MOST_READS


def test_steps_at_uneven_distances_are_not_regular_again() -> None:
    found = Loop(described=0).steps([SMALL], [SMALL], [], [SMALL], [], [], [], [])

    assert found is not None
    assert [(kind.every, kind.first, kind.last, kind.steps) for kind in found.others] == [(0, 1, 4, 3)]


def test_where_torch_does_not_remember_a_kind_is_known_by_its_number() -> None:
    found = Loop(described=0, remembers=False).steps([], [], [SMALL, SMALL])

    assert found == Course(steps=3, others=[Kind(entered=2, steps=1, first=3, last=3)])


def test_steps_of_ever_other_numbers_are_no_kinds() -> None:
    assert Loop(described=0).steps(*([SMALL] * number for number in range(1, MOST_KINDS + 2))) is None


def test_where_nobody_counts_there_is_no_course() -> None:
    loop = Loop(described=0)
    loop.entered = None
    loop.follower.begin()
    loop.follower.end(1)

    assert loop.follower.made([]) is None


def script(*steps: Sequence[Collective], start: Sequence[Collective], described: int) -> Course | None:
    """The course of a script whose last step has all groups gone at its end."""
    loop = Loop()
    loop.send(*start)
    loop.follower.end(0)
    for number, rows in enumerate(steps[:-1], 1):
        loop.send(*rows)
        loop.described = len(steps[described - 1]) if number >= described else None
        loop.follower.end(number)
    loop.send(*steps[-1])
    loop.entered = 0
    loop.follower.end_last(len(steps), steps[described - 1])
    return loop.follower.made(steps[described - 1])


def test_of_a_script_what_comes_before_its_first_step_and_at_its_end_is_known_too() -> None:
    assert script([], [], [], [LARGE], start=[SMALL, SMALL], described=3) == Course(
        steps=4,
        others=[
            Kind(collectives=[SMALL, SMALL], entered=2, steps=1, first=0, last=0),
            Kind(collectives=[LARGE], entered=1, steps=1, first=4, last=4),
        ],
        is_whole=True,
    )


def test_the_last_step_of_a_script_is_of_the_kind_that_sends_the_same() -> None:
    found = script([], [], [LARGE], [], [], [LARGE], start=[], described=2)

    assert found == Course(
        steps=6,
        others=[Kind(collectives=[LARGE], entered=1, steps=2, first=3, last=6, every=3)],
        is_whole=True,
    )
    assert script([SMALL], [SMALL], [SMALL], [SMALL], start=[], described=3) == Course(steps=4, is_whole=True)


def test_a_script_whose_end_nobody_remembers_is_not_whole() -> None:
    loop = Loop(described=0, remembers=False)
    loop.steps([], [])
    loop.send(SMALL)
    loop.follower.end_last(3, [])

    assert loop.follower.made([]) == Course(steps=2)
