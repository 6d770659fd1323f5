"""Which pass through a step counted, and how long steps take."""

from __future__ import annotations

import pytest
from support.timelines import Timeline, killed

from pytest_distbench.jobs.measures.history import Worker
from pytest_distbench.records.timeline import Saved


def test_a_step_counts_where_no_later_generation_went_back_before_it() -> None:
    kept = killed().history.kept()

    assert kept == {**dict.fromkeys(range(1, 7), 0), **dict.fromkeys(range(7, 13), 1)}


def test_two_generations_that_go_back_to_one_checkpoint_leave_the_last() -> None:
    timeline = Timeline()
    timeline.generation(0, [0], first=1.0, steps=5)
    timeline.generation(1, [0], first=11.0, steps=4, resumed=2)
    timeline.generation(2, [0], first=21.0, steps=2, resumed=2)

    assert timeline.history.kept() == {1: 0, 2: 0, 3: 2, 4: 2}


def test_the_time_of_a_step_is_the_median_from_step_to_step_at_that_world_size() -> None:
    history = killed().history

    assert (history.step_s(2), history.step_s(1), history.step_s(3)) == (1.0, 0.5, None)


def test_the_time_of_a_step_is_looked_for_once_however_often_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is asked for once for each step: the time of a long run grew with the square of its steps."""
    history = killed().history
    asked = []
    monkeypatch.setattr(Worker, "step_seconds", property(lambda worker: asked.append(worker) or [1.0]))

    assert {history.step_s(2) for _ in range(10)} == {1.0}
    assert len(asked) == 2


def test_generations_without_a_step_are_no_generations() -> None:
    timeline = Timeline()
    timeline.generation(0, [0], first=1.0, steps=1)
    timeline.generation(1, [0], first=5.0, steps=0)

    assert timeline.history.generations == [0]


def test_lines_are_found_by_their_kind() -> None:
    assert [line.step for line in killed().history.of(Saved)] == [3, 6, 9, 12]
