"""The metrics of a run, from a timeline whose numbers can be seen."""

from __future__ import annotations

import pytest
from support.timelines import JOB, Timeline, killed

from pytest_distbench.launch.elastic.measure import measure
from pytest_distbench.read import stdout
from pytest_distbench.records.metric import Measurement
from pytest_distbench.records.record import replace
from pytest_distbench.records.timeline import Batch, Loaded, Remembered, Saved, Stepped


def measured(timeline: Timeline, *, every: int | None = 10) -> dict[str, Measurement]:
    _, found = measure(replace(JOB, checkpoint_every=every), timeline.history.lines)
    return {m.key: m for m in found}


def test_on_fewer_cores_than_nodes_clocks_are_shown_and_counts_judged() -> None:
    _, found = measure(replace(JOB, cores=1), killed().history.lines)
    judged = {m.name for m in found if m.better != "info"}

    assert judged == {"samples_skipped", "samples_repeated", "optimizer_state_lost", "checkpoint_interval"}


def test_a_run_has_its_times_its_samples_and_what_was_lost() -> None:
    found = {key: m.value for key, m in measured(killed()).items()}

    assert found["training_time"] == 16.5
    assert found["start_time"] == 3.0
    assert found["lost_fraction"] == pytest.approx(5.0 / 16.5)
    assert (found["samples_skipped"], found["samples_repeated"]) == (0, 0)
    assert found["samples_per_second[nodes=2]"] == 4.0
    assert found["samples_per_second[nodes=1]"] == 4.0
    assert (found["lr[nodes=2]"], found["lr[nodes=1]"]) == (0.2, 0.1)
    assert found["loss[epoch=0]"] == pytest.approx((1 + 1 / 2 + 1 / 3) / 3)


def test_goodput_is_the_share_of_the_nodes_seconds_that_went_into_steps_that_counted() -> None:
    """Six steps of two nodes in 1 s and six of one in 0.5 s; two nodes were given for 9.6 s, one for 6.9 s more."""
    assert measured(killed())["goodput"].value == pytest.approx((6 * 2 * 1.0 + 6 * 0.5) / (2 * 9.6 + 6.9))


def test_a_kind_of_change_has_median_and_maximum_of_its_costs() -> None:
    found = measured(killed())
    at = "[change=kill 2 to 1]"

    assert (found[f"stall{at}"].value, found[f"stall_max{at}"].value) == (5.0, 5.0)
    assert (found[f"recovery{at}"].value, found[f"recovery{at}"].better) == (4.5, "lower")
    assert found[f"recovery/detect{at}"].value == pytest.approx(3.0)
    assert (found[f"restarts_used{at}"].value, found[f"rounds{at}"].value) == (1, 1)


def test_more_steps_are_redone_than_between_two_checkpoints_is_beyond_a_bound() -> None:
    kept = measured(killed(), every=4)["steps_redone[change=kill 2 to 1]"]
    broken = measured(killed(), every=3)["steps_redone[change=kill 2 to 1]"]

    assert [bound.holds(kept.value) for bound in kept.bounds] == [True]
    assert [bound.holds(broken.value) for bound in broken.bounds] == [False]


def test_without_checkpoints_steps_have_no_bound_and_there_is_no_interval() -> None:
    found = measured(killed(), every=None)

    assert found["steps_redone[change=kill 2 to 1]"].bounds == []
    assert found["steps_discarded[change=kill 2 to 1]"].value == 0
    assert "checkpoint_interval" not in found


def test_the_interval_of_checkpoints_is_what_was_seen_not_what_was_claimed() -> None:
    interval = measured(killed(), every=2)["checkpoint_interval"]

    assert interval.value == 4  # behind that of step 6, to step 10
    assert [bound.holds(interval.value) for bound in interval.bounds] == [False]
    assert measured(killed(), every=5)["checkpoint_interval"].value == 3


def test_of_a_script_that_tells_of_every_second_step_the_same_is_known_but_samples_and_checkpoints() -> None:
    """Its goodput is as of the whole training, but for the steps between its last line before the loss and the loss."""
    lines = [
        replace(line, samples=None) if isinstance(line, Stepped) else line
        for line in killed().history.lines
        if not isinstance(line, Batch | Loaded | Saved) and not (isinstance(line, Stepped) and line.step % 2 == 0)
    ]
    _, measurements = measure(replace(JOB, checkpoint_every=None, steps=stdout("(.)")), lines)
    found = {m.key: m for m in measurements}

    assert (found["steps_per_second[nodes=2]"].value, found["steps_per_second[nodes=1]"].value) == (1.0, 2.0)
    assert found["steps_redone[change=kill 2 to 1]"].value == 9 - 6
    assert found["steps_redone[change=kill 2 to 1]"].bounds == []
    assert found["goodput"].value == pytest.approx((5 * 2 * 1.0 + 5 * 0.5) / (2 * 9.6 + 6.4))
    unknown = {"samples_skipped", "samples_repeated", "optimizer_state_lost", "checkpoint_interval"}
    assert not unknown & found.keys()


def test_optimizers_that_forgot_and_places_that_became_free_are_numbers() -> None:
    timeline = killed()
    timeline.lines += [
        Remembered(t=11.0, slot=0, generation=0, before=0, after=4),
        Remembered(t=25.0, slot=0, generation=1, before=0, after=4),
    ]
    lost = measured(timeline)["optimizer_state_lost"]

    assert (lost.value, [bound.holds(lost.value) for bound in lost.bounds]) == (1, [False])
    assert "slot_free[change=kill 2 to 1]" not in measured(timeline)


def test_overlapped_changes_are_no_sample_of_their_kind() -> None:
    timeline = killed()
    timeline.change(20.7, 1, "kill", [1], [0], overlaps=True)

    assert not [key for key in measured(timeline) if key.startswith(("stall", "recovery"))]


def test_a_job_that_took_no_step_has_nothing() -> None:
    timeline = Timeline()
    timeline.begin(0.0, 0)

    assert measure(JOB, timeline.history.lines) == (None, [])
