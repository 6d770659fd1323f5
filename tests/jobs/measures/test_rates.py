"""The trace of the learning rate is kept where it changes."""

from __future__ import annotations

from support.timelines import Timeline, killed

from pytest_distbench.jobs.measures.history import History
from pytest_distbench.jobs.measures.rates import rate_changes
from pytest_distbench.records.elastic import RateChange
from pytest_distbench.records.record import replace
from pytest_distbench.records.timeline import Stepped


def test_a_rate_is_told_once_until_it_changes_as_the_passes_that_counted_left_it() -> None:
    assert rate_changes(killed().history) == [
        RateChange(step=1, epoch=0, nodes=2, lr=0.2),
        RateChange(step=7, epoch=2, nodes=1, lr=0.1),
    ]


def test_a_schedule_shows_step_by_step_and_a_body_without_a_rate_has_no_trace() -> None:
    timeline = Timeline()
    timeline.generation(0, [0], first=2.0, steps=3)
    falling = [replace(x, lr=1 / x.step) if isinstance(x, Stepped) else x for x in timeline.history.lines]
    untold = [replace(x, lr=None) if isinstance(x, Stepped) else x for x in timeline.history.lines]

    assert [rate.step for rate in rate_changes(History(falling))] == [1, 2, 3]
    assert rate_changes(History(untold)) == []
