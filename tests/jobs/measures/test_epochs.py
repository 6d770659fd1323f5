"""Epochs follow each other without a gap, and have what happened in them."""

from __future__ import annotations

import pytest
from support.timelines import killed

from pytest_distbench.jobs.measures.changes import change_results
from pytest_distbench.jobs.measures.epochs import epoch_results


def test_epochs_hold_all_the_time_from_the_first_step_to_the_last() -> None:
    history = killed().history
    epochs = epoch_results(history, change_results(history))

    assert [epoch.epoch for epoch in epochs] == [0, 1, 2]
    assert sum(epoch.seconds for epoch in epochs) == pytest.approx(27.5 - 11.0)


def test_an_epoch_has_its_world_sizes_its_changes_and_what_they_cost() -> None:
    history = killed().history
    epochs = epoch_results(history, change_results(history))

    assert [epoch.nodes for epoch in epochs] == [[2], [2], [1]]
    assert [epoch.changes for epoch in epochs] == [[], [], [0]]
    assert [epoch.stall_s for epoch in epochs] == [0.0, 0.0, 5.0]
    assert [epoch.steps_redone for epoch in epochs] == [0, 0, 4]


def test_an_epoch_has_the_mean_loss_of_its_samples_and_its_last_learning_rate() -> None:
    history = killed().history
    epochs = epoch_results(history, [])

    assert epochs[0].loss == pytest.approx((1 + 1 / 2 + 1 / 3) / 3)
    assert [epoch.lr for epoch in epochs] == [0.2, 0.2, 0.1]
