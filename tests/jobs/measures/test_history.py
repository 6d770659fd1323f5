"""A timeline, put together: workers of each generation, passes through each step, and epochs."""

from __future__ import annotations

import pytest
from support.timelines import Timeline, killed

from pytest_distbench.jobs.measures.changes import change_results
from pytest_distbench.jobs.measures.history import History, Worker, epoch_results, rate_changes, rates_at
from pytest_distbench.records.elastic import RateChange
from pytest_distbench.records.record import replace
from pytest_distbench.records.timeline import Saved, Stepped


def test_generations_count_where_they_took_steps() -> None:
    kept = killed().history.kept()
    assert kept == {**dict.fromkeys(range(1, 7), 0), **dict.fromkeys(range(7, 13), 1)}

    timeline = Timeline()
    timeline.generation(0, [0], first=1.0, steps=5)
    timeline.generation(1, [0], first=11.0, steps=4, resumed=2)
    timeline.generation(2, [0], first=21.0, steps=2, resumed=2)
    assert timeline.history.kept() == {1: 0, 2: 0, 3: 2, 4: 2}

    timeline = Timeline()
    timeline.generation(0, [0], first=1.0, steps=1)
    timeline.generation(1, [0], first=5.0, steps=0)
    assert timeline.history.generations == [0]

    assert [line.step for line in killed().history.of(Saved)] == [3, 6, 9, 12]

    history = killed().history
    assert (history.step_s(2), history.step_s(1), history.step_s(3)) == (1.0, 0.5, None)


def test_epochs_have_their_time_their_loss_and_their_rates() -> None:
    history = killed().history
    epochs = epoch_results(history, change_results(history))
    assert [epoch.epoch for epoch in epochs] == [0, 1, 2]
    assert sum(epoch.seconds for epoch in epochs) == pytest.approx(27.5 - 11.0)

    history = killed().history
    epochs = epoch_results(history, [])
    assert epochs[0].loss == pytest.approx((1 + 1 / 2 + 1 / 3) / 3)
    assert [epoch.lr for epoch in epochs] == [0.2, 0.2, 0.1]

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


def test_a_rate_is_kept_by_epoch_and_number_of_nodes_as_rules_are_of_both() -> None:
    """Two nodes take six steps and one goes on in epoch 1; each node has 0.1, and a tenth of it behind epoch 0."""
    timeline = Timeline()
    end = timeline.generation(0, [0, 1], first=2.0, steps=4)
    timeline.generation(1, [0], first=end + 2, steps=4, resumed=4)
    seen = timeline.seen
    lines = [
        replace(x, lr=x.lr * (0.1 if seen[x.step - 1][0] else 1)) if isinstance(x, Stepped) and x.lr else x
        for x in timeline.history.lines
    ]
    rates = [(at, round(rate, 9)) for at, rate in rates_at(History(lines))]

    assert [found for found in rates if "epoch" in found[0]] == [
        ({"epoch": 0, "nodes": 2}, 0.2),
        ({"epoch": 1, "nodes": 2}, 0.02),
        ({"epoch": 1, "nodes": 1}, 0.01),
    ]
    assert ({"nodes": 1}, 0.01) in rates


def test_the_time_of_a_step_is_looked_for_once_however_often_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is asked for once for each step: the time of a long run grew with the square of its steps."""
    history = killed().history
    asked = []
    monkeypatch.setattr(Worker, "step_seconds", property(lambda worker: asked.append(worker) or [1.0]))

    assert {history.step_s(2) for _ in range(10)} == {1.0}
    assert len(asked) == 2


def test_an_epoch_has_its_world_sizes_its_changes_and_what_they_cost() -> None:
    history = killed().history
    epochs = epoch_results(history, change_results(history))

    assert [epoch.nodes for epoch in epochs] == [[2], [2], [1]]
    assert [epoch.changes for epoch in epochs] == [[], [], [0]]
    assert [epoch.stall_s for epoch in epochs] == [0.0, 0.0, 5.0]
    assert [epoch.steps_redone for epoch in epochs] == [0, 0, 4]
