"""Courses: differences in the other steps are reported, as far as they do not depend on the number of steps."""

from __future__ import annotations

import pytest
from support.fingerprints import of, reduce

from pytest_distbench.judging.fingerprint_rule import (
    COURSE_DIFFERS,
    DIFFERS,
    agree,
    common_course,
    course_changes,
    differences,
)
from pytest_distbench.records.iteration import Collective, Course, StepKind
from pytest_distbench.records.record import replace

SMALL, LARGE = reduce(4), reduce(4096)
GATHER = Collective("all_gather", "float32", 4, "default", 1)


def every(number: int, *rows: Collective, steps: int, first: int | None = None) -> StepKind:
    first = first or number
    times = (steps - first) // number + 1
    last, at = first + (times - 1) * number, number if times > 1 else 0
    return replace(once(first, *rows), steps=times, last=last, every=at)


def once(at: int, *rows: Collective) -> StepKind:
    return StepKind(collectives=list(rows), entered=sum(row.count for row in rows), steps=1, first=at, last=at)


def loop(*others: StepKind, steps: int = 30, whole: bool = False) -> Course:
    return Course(steps=steps, others=list(others), is_whole=whole)


OUTER = every(10, reduce(4096, 8), steps=30)
TENTH = "every 10th step (3 of 30)"
GONE, SENT = "8 all_reduce of 4 KiB float32 were removed", "32 KiB sent per rank became 0 B"


@pytest.mark.parametrize(
    ("stored", "current", "told"),
    [
        (loop(OUTER), loop(OUTER), []),
        (loop(OUTER), loop(), [f"{TENTH}: {GONE}", f"{TENTH}: {SENT}"]),
        (
            loop(OUTER),
            loop(every(10, reduce(4096, 2), steps=30)),
            [f"{TENTH}: 6 all_reduce of 4 KiB float32 were removed", f"{TENTH}: 32 KiB sent per rank became 8 KiB"],
        ),
        (
            loop(every(5, LARGE, steps=30)),
            loop(every(3, LARGE, steps=30)),
            ["every 5th step (6 of 30) sent 1 all_reduce of 4 KiB float32; now every 3rd step (10 of 30)"],
        ),
        (
            loop(),
            loop(once(7, GATHER)),
            ["step 7 of 30: 1 all_gather of 4 B float32 was added", "step 7 of 30: 0 B sent per rank became 4 B"],
        ),
        (
            loop(StepKind(entered=3, steps=2, first=4, last=9, every=5)),
            loop(StepKind(entered=1, steps=2, first=4, last=9, every=5)),
            ["every 5th step from the 4th on (2 of 30): 3 collectives became 1"],
        ),
        # the number of steps may be chosen while a loop runs
        (loop(OUTER), loop(every(10, reduce(4096, 8), steps=44), steps=44), []),
        (loop(OUTER), loop(steps=9), []),
        (loop(OUTER), loop(once(10, reduce(4096, 8)), steps=13), []),
        (loop(OUTER), loop(steps=13), [f"step 10 of 13: {GONE}", f"step 10 of 13: {SENT}"]),
        # of steps at uneven distances it is not known how many of the first ones are such
        (loop(StepKind(collectives=[LARGE], entered=1, steps=4, first=2, last=30)), loop(once(2, LARGE), steps=20), []),
        # a script's is its own
        (
            loop(every(1, LARGE, steps=10), steps=10, whole=True),
            loop(every(1, LARGE, steps=20), steps=20, whole=True),
            [
                "10 steps of the whole run became 20",
                "all_reduce float32 of the whole run: 10, 40 KiB became 20, 80 KiB",
            ],
        ),
        (
            loop(once(0, SMALL), OUTER, whole=True),
            loop(once(0), OUTER, whole=True),
            [
                "before the first step: 1 all_reduce of 4 B float32 was removed",
                "before the first step: 4 B sent per rank became 0 B",
                "all_reduce float32 of the whole run: 25, 96 KiB became 24, 96 KiB",
            ],
        ),
    ],
)
def test_a_difference_of_courses_is_described_in_sentences(stored: Course, current: Course, told: list[str]) -> None:
    assert course_changes(stored, current, ordinary=([], [])) == told


def test_what_is_said_of_every_step_is_not_said_again_and_the_rank_that_differs_is_named() -> None:
    before, after = ([reduce(4096, 2)], [reduce(8192)])
    old, new = loop(every(5, *before, GATHER, steps=30)), loop(every(5, *after, GATHER, steps=30))
    told = differences(of(*before, course={"all": old}), of(*after, course={"all": new}))
    told = [line for line in told if line.startswith("every")]
    assert [line for line in told if "sent per rank" not in line] == []

    current = of(is_full=True, course={"0": loop(OUTER), "1": loop()})
    told = differences(of(is_full=True, course={"all": loop(OUTER)}), current)
    assert told[0] == "rank 1: every 10th step (3 of 30): 8 all_reduce of 4 KiB float32 were removed"

    assert differences(of(is_full=True), of(is_full=True, course={"all": loop(OUTER)})) == []
    old = of(is_full=True, beyond={"all": (6, 30)})
    assert differences(old, of(is_full=True, beyond={"all": (6, 30)}, course={"all": loop()})) == []
    assert differences(old, of(is_full=True, course={"all": loop()})) != []


def test_launches_agree_as_far_as_all_went_and_where_they_evaluate_by_steps() -> None:
    # A script's last step has all in it that comes at its end
    ends = [
        loop(every(10, LARGE, steps=steps - 1), once(steps, GATHER), steps=steps, whole=True) for steps in (36, 25, 30)
    ]
    assert common_course(ends) == loop(every(10, LARGE, steps=24), steps=24)
    assert common_course([loop(OUTER), loop(OUTER)]) == loop(OUTER)
    of_two = [of(course={"0": end, "1": end}) for end in ends]
    assert agree(of_two) == of(course=dict.fromkeys("01", loop(every(10, LARGE, steps=24), steps=24)))
    assert agree([*of_two, of(course={"0": ends[0]})]).course_missing == COURSE_DIFFERS

    seen = {"is_full": True, "beyond": {"all": (2, 30)}}
    launches = [of(SMALL, **seen, course={"all": loop(once(at, SMALL, GATHER))}) for at in (14, 15, 14)]
    assert common_course([f.course["all"] for f in launches]) is None
    assert agree(launches) == of(SMALL, is_full=True, course_missing=COURSE_DIFFERS)
    assert agree([of(SMALL), of(LARGE)]).missing == DIFFERS


def test_a_course_that_differs_between_launches_is_compared_with_none() -> None:
    unsure = of(is_full=True, course_missing=COURSE_DIFFERS)
    certain = of(is_full=True, beyond={"all": (3, 30)}, course={"all": loop(once(4, SMALL))})

    assert differences(unsure, certain) == []
    assert differences(certain, unsure) == []
