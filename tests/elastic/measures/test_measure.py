"""The metrics of a run, from a timeline whose numbers can be seen."""

from __future__ import annotations

import itertools

import pytest
from support.timelines import JOB, Timeline, but, killed

from pytest_distbench.elastic.measures import measure, useful_s
from pytest_distbench.elastic.measures.continuity import ORDER, REORDERED
from pytest_distbench.elastic.measures.history import History
from pytest_distbench.elastic.measures.ledger import LOADS
from pytest_distbench.elastic.progress import StepLines
from pytest_distbench.elastic.records import Change, event
from pytest_distbench.read import stdout
from pytest_distbench.records.metric import Sample
from pytest_distbench.records.record import replace
from pytest_distbench.records.wire import Event


def measured(timeline: Timeline, *, every: int | None = 10) -> dict[str, Sample]:
    _, found = measure(replace(JOB, checkpoint_every=every), timeline.history)
    return {m.key: m for m in found}


def test_on_fewer_cores_than_nodes_timings_are_shown_and_counts_are_judged() -> None:
    _, found = measure(replace(JOB, cores=1), killed().history)
    judged = {m.name for m in found if m.better != "info"}
    kept = ("optimizer_state_lost", "checkpoint_interval")

    of_samples = ("samples_skipped", "samples_repeated", "batches_shared", "batches_cut", ORDER, REORDERED)
    assert judged == {*of_samples, *LOADS, *kept}


KILLED = {
    "training_time": 16.5,
    "start_time": 3.0,
    "lost_fraction": 5.0 / 16.5,
    "samples_skipped": 0,
    "samples_repeated": 0,
    "samples_per_second[nodes=2]": 4.0,
    "samples_per_second[nodes=1]": 4.0,
    "lr[nodes=2]": 0.2,
    "lr[nodes=1]": 0.1,
    "loss[epoch=0]": (1 + 1 / 2 + 1 / 3) / 3,
    # Six steps of two nodes in 1 s and six of one in 0.5 s; two nodes were given for 9.6 s, one for 6.9 s more
    "goodput": (6 * 2 * 1.0 + 6 * 0.5) / (2 * 9.6 + 6.9),
    "stall[change=kill 2 to 1]": 5.0,
    "stall_max[change=kill 2 to 1]": 5.0,
    "recovery[change=kill 2 to 1]": 4.5,
    "recovery/detect[change=kill 2 to 1]": 3.0,
    "restarts_used[change=kill 2 to 1]": 1,
    "rounds[change=kill 2 to 1]": 1,
}


@pytest.mark.parametrize("key", KILLED)
def test_a_run_has_its_times_its_samples_what_was_lost_and_the_costs_of_its_changes(key: str) -> None:
    found = measured(killed())

    assert found[key].value == pytest.approx(KILLED[key])
    assert found["recovery[change=kill 2 to 1]"].better == "lower"


def test_an_unknown_checkpoint_interval_bounds_nothing() -> None:
    found = measured(killed(), every=None)
    assert found["steps_redone[change=kill 2 to 1]"].bounds == []
    assert "checkpoint_interval" not in found

    interval = measured(killed(), every=2)["checkpoint_interval"]
    assert interval.value == 4  # behind that of step 6, to step 10
    assert [bound.holds(interval.value) for bound in interval.bounds] == [False]
    assert measured(killed(), every=5)["checkpoint_interval"].value == 3

    timeline = killed()
    timeline.change(20.7, 1, "kill", [1], [0], overlaps=True)
    assert not [key for key in measured(timeline) if key.startswith(("stall", "recovery"))]

    timeline = Timeline()
    timeline.begin(0.0, 0)
    assert measure(JOB, timeline.history) == ([], [])

    history = History(reported_every_hundredth(steps=150, world_size=1)[0])
    assert history.step_s(1) == pytest.approx(0.01)
    assert useful_s(history) == pytest.approx(0.01 * (1 + 5 * 150 + 100))

    kept = measured(killed(), every=4)["steps_redone[change=kill 2 to 1]"]
    broken = measured(killed(), every=3)["steps_redone[change=kill 2 to 1]"]
    assert [bound.holds(kept.value) for bound in kept.bounds] == [True]
    assert [bound.holds(broken.value) for bound in broken.bounds] == [False]


def test_a_script_that_prints_every_second_step_lacks_samples_and_checkpoints_alone() -> None:
    """Its goodput is as of the whole training, but for the steps between its last line before the loss and the loss."""
    lines = [
        but(line, samples=None) if line.what == "stepped" else line
        for line in killed().history.lines
        if line.what not in ("batch", "loaded", "saved") and not (line.what == "stepped" and line.step % 2 == 0)
    ]
    _, measurements = measure(replace(JOB, checkpoint_every=None, steps=stdout("(.)")), History(lines))
    found = {m.key: m for m in measurements}

    assert (found["steps_per_second[nodes=2]"].value, found["steps_per_second[nodes=1]"].value) == (1.0, 2.0)
    assert found["steps_redone[change=kill 2 to 1]"].value == 9 - 6
    assert found["steps_redone[change=kill 2 to 1]"].bounds == []
    assert found["goodput"].value == pytest.approx((5 * 2 * 1.0 + 5 * 0.5) / (2 * 9.6 + 6.4))
    unknown = {"samples_skipped", "samples_repeated", "optimizer_state_lost", "checkpoint_interval"}
    assert not unknown & found.keys()


def reported_every_hundredth(
    *, steps: int, world_size: int, before: StepLines | None = None
) -> tuple[list[Event], StepLines]:
    """Six epochs of steps of 10 ms, of a script that prints iterations 0, 100, ... of each."""
    told = StepLines(r"epoch (?P<epoch>\d+) step (?P<value>\d+)", before)
    begin, generation, earlier = (0.0, 0, 0) if before is None else (20.0, 1, 6)
    lines: list[Event] = [
        event("joined", t=begin, slot=slot, pid=slot, generation=generation, rank=slot, world_size=world_size)
        for slot in range(world_size)
    ]
    for epoch, number in itertools.product(range(6), range(0, steps, 100)):
        step = told.take(f"epoch {earlier + epoch} step {number}")
        assert step
        lines += [
            event("stepped",
                t=begin + 0.01 * (epoch * steps + number + 1), slot=slot, generation=generation,
                world_size=world_size, **step,
            )
            for slot in range(world_size)
        ]  # fmt: skip
    return lines, told


def test_the_losses_of_a_fixed_runs_epochs_are_a_curve_that_is_known_by_the_weights_it_begins_with() -> None:
    timeline = Timeline()
    timeline.generation(0, [0, 1], first=11.0, steps=6)
    of = {"t": 12.0, "slot": 0, "generation": 0, "rank": 0, "at": "begin", "step": 0, "epoch": 0, "position": 0}
    begun = event("held", **of, parameters={"model": "0a1b2c3d4e"})
    timeline.lines.append(begun)
    curve = measured(timeline)["losses"]
    found = (curve.better, curve.beside, curve.identity)

    assert found == ("curve", ["epoch 0", "epoch 1"], {"begins with": "model 0a1b2c3d"})
    assert curve.values == pytest.approx([(1 + 1 / 2 + 1 / 3) / 3, (1 / 4 + 1 / 5 + 1 / 6) / 3])


@pytest.mark.parametrize(
    ("changes", "epochs"),
    [
        ([Change(kind="kill", at_step=9)], ["epoch 0", "epoch 1"]),  # the newest checkpoint is of step 6 at least
        ([Change(kind="kill", at_step=6)], ["epoch 0"]),  # that of step 6 may not be written yet
        ([Change(kind="kill", at_step=3)], None),
        ([Change(kind="kill", at_s=9.5)], None),  # at another step in every run
    ],
)
def test_of_a_run_with_changes_the_epochs_count_that_none_of_them_can_have_touched(
    changes: list[Change], epochs: list[str] | None
) -> None:
    job = replace(JOB, checkpoint_every=3, plan=changes)
    _, found = measure(job, killed().history)
    curve = {m.name: m for m in found}.get("losses_before_change")

    assert (None if curve is None else curve.beside) == epochs


def test_where_nodes_hold_at_each_change_the_losses_behind_it_are_part_of_the_curve() -> None:
    held = replace(JOB, checkpoint_every=3, plan=[Change(kind="kill", at_step=6)], hold=True)
    lines = killed().history.lines
    curve = {m.name: m for m in measure(held, History(lines))[1]}["losses"]
    again = killed()
    again.generation(2, [0], first=40.0, steps=3, resumed=12)

    assert curve.beside == ["epoch 0", "epoch 1", "epoch 2"]
    assert "losses" not in {m.name for m in measure(held, again.history)[1]}  # a worker died of itself


def test_optimizers_that_forgot_and_places_that_became_free_are_numbers() -> None:
    timeline = killed()
    timeline.lines += [
        event("remembered", t=11.0, slot=0, generation=0, before=0, after=4),
        event("remembered", t=25.0, slot=0, generation=1, before=0, after=4),
    ]
    lost = measured(timeline)["optimizer_state_lost"]

    assert (lost.value, [bound.holds(lost.value) for bound in lost.bounds]) == (1, [False])
    assert "slot_free[change=kill 2 to 1]" not in measured(timeline)


def test_an_epoch_with_one_line_is_no_step_if_other_epochs_have_more_lines() -> None:
    one, told = reported_every_hundredth(steps=150, world_size=1)
    two, _ = reported_every_hundredth(steps=75, world_size=2, before=told)
    history = History([*one, *two])

    assert history.step_s(2) is None
    assert useful_s(history) == pytest.approx(0.01 * (1 + 5 * 150 + 100) + 2 * 5 * 0.75)
    assert History(two).step_s(2) == pytest.approx(0.75)
