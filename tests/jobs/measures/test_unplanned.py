"""A generation that no change explains is told, and what it cost is lost."""

from __future__ import annotations

import pytest
from support.timelines import JOB, Timeline, killed

from pytest_distbench.jobs.measures.measure import measure
from pytest_distbench.jobs.measures.unplanned import unplanned
from pytest_distbench.records.timeline import Changed, Loaded, Stable, WorkerEnded


def died() -> Timeline:
    """The same as a lost node, but that nobody has asked for it; the worker of slot 1 was gone first."""
    timeline = killed()
    timeline.lines = [
        line
        for line in timeline.lines
        if not isinstance(line, Changed) and not (isinstance(line, Stable) and line.index == 0)
    ]
    pids = {
        slot: worker.started.pid for (g, slot), worker in timeline.history.workers.items() if g == 0 and worker.started
    }
    timeline.lines += [
        WorkerEnded(t=20.5, slot=1, pid=pids[1]),
        WorkerEnded(t=20.7, slot=0, pid=pids[0]),
    ]
    return timeline


def test_a_plan_explains_the_generations_between_its_changes_and_their_being_over() -> None:
    assert unplanned(killed().history) == []


def test_a_worker_that_dies_of_itself_is_told_with_what_it_cost() -> None:
    [found] = unplanned(died().history)

    assert (found.generation, found.slot) == (1, 1)
    assert found.stall_s == pytest.approx(5.0)
    assert str(found).startswith("generation 1 began ")
    assert "no change of the plan asked for it: the worker of slot 1 was gone first. It cost 5.0 s" in str(found)


def test_what_it_cost_is_in_the_lost_fraction() -> None:
    _, planned = measure(JOB, killed().history)
    _, of_itself = measure(JOB, died().history)
    lost = [next(m.value for m in found if m.name == "lost_fraction") for found in (planned, of_itself)]

    assert lost[0] == pytest.approx(lost[1])


def test_a_torn_checkpoint_lets_the_job_go_back_one_interval_more() -> None:
    timeline = killed()
    timeline.lines.append(Loaded(t=24.9, slot=0, generation=1, began_t=24.8, step=6, torn=["step9.pt"]))
    _, found = measure(JOB, timeline.history)

    [redone] = [m for m in found if m.name == "steps_redone"]
    assert [bound.value for bound in redone.bounds] == [2 * (JOB.checkpoint_every or 0)]
