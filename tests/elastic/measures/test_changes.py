"""What changes cost, on timelines that are made up; and generations that nobody asked for."""

from __future__ import annotations

import pytest
from support.timelines import JOB, Timeline, killed

from pytest_distbench.elastic.measures import measure
from pytest_distbench.elastic.measures.history import History, change_results, unplanned
from pytest_distbench.elastic.records import event, unaccounted_s

PARTS = {
    "detect": 23.5 - 20.5,
    "rendezvous": 0.4,
    "process_start": 0.1,
    "import": 0.3,
    "group_init": 24.6 - 24.3,
    "build": 0.05,
    "checkpoint_load": 0.15,
    "first_step": 0.2,
}
KILLED = {
    "t": 9.5,
    "before": 2,
    "after": 1,
    "stall_s": 25.0 - 20.0,  # from the survivor's last step to its next
    "recovery_s": 25.0 - 20.5,
    "overlapped": False,
    "parts": pytest.approx(PARTS),
    "steps_redone": 4,
    "redone_s": 4.0,  # at the price of the larger world
    "rounds": 1,
    "restarts_used": 1,
    "before_it": pytest.approx({"step": 10, "epoch": 3, "loss": 0.1, "accuracy": None, "lr": 0.2}),
    "after_it": pytest.approx({"step": 7, "epoch": 2, "loss": 1 / 7, "accuracy": None, "lr": 0.1}),
}


@pytest.mark.parametrize("fact", KILLED)
def test_a_lost_node_has_its_costs_and_parts_that_sum_up_to_its_recovery(fact: str) -> None:
    [change] = change_results(killed().history)

    assert getattr(change, fact) == KILLED[fact]
    assert unaccounted_s(change) == pytest.approx(0.0)


def ran(*slots: int, steps: int, stable: float, number: int = 0) -> Timeline:
    """Nodes that have taken steps since 10 s."""
    timeline = Timeline()
    timeline.begin(0.0, *slots)
    timeline.generation(number, slots, first=10.0, steps=steps)
    timeline.stable(stable, -1, number, len(slots))
    return timeline


def test_a_leave_stops_the_node_first_and_is_noticed_then_and_its_slot_is_free_with_its_agent() -> None:
    timeline = ran(0, 1, steps=5, stable=12.1)
    timeline.change(14.5, 0, "leave", [1], [0])
    timeline.lines += [event("worker_ended", t=16.5, slot=1, pid=1), event("worker_ended", t=17.0, slot=0, pid=0)]
    timeline.agent_ended(16.75, 1)
    timeline.generation(1, [0], first=20.0, steps=3, met=18.9, resumed=3)
    timeline.stable(22.0, 0, 1, 1)
    [change] = change_results(timeline.history)

    assert change.slot_free_s == 2.25
    assert (change.parts["stop"], change.parts["detect"]) == pytest.approx((2.0, 18.5 - 16.5))
    assert unaccounted_s(change) == pytest.approx(0.0)


def test_a_join_stalls_and_stops_the_survivor_from_its_last_step_on_however_long_the_newcomer_took_to_come() -> None:
    timeline = ran(0, steps=11, stable=12.5)
    timeline.change(14.5, 0, "join", [1], [0, 1])
    timeline.lines.append(event("worker_ended", t=20.25, slot=0, pid=0))
    timeline.generation(1, [0, 1], first=23.0, steps=3, resumed=10)
    timeline.stable(25.1, 0, 1, 2)
    [change] = change_results(timeline.history)

    assert (change.stall_s, change.recovery_s, change.joiner_ready_s, change.steps_redone) == (3.0, 8.5, 8.5, 1)
    assert (change.parts["detect"], change.parts["stop"]) == pytest.approx((20.0 - 14.5, 21.5 - 20.0))
    assert unaccounted_s(change) == pytest.approx(0.0)


def test_a_node_that_stood_still_cost_the_longest_wait_for_a_step() -> None:
    timeline, later = ran(0, 1, steps=3, stable=12.1), Timeline()
    timeline.change(12.5, 0, "stop", [1], [0, 1])
    later.seen[3] = (1, 0)
    later.generation(0, [0, 1], first=17.0, steps=3, resumed=3)
    timeline.lines += [line for line in later.lines if line.what in ("stepped", "batch") and line.t > 12.1]
    timeline.stable(19.5, 0, 0, 2)
    [change] = change_results(timeline.history)

    assert (change.stall_s, change.recovery_s, change.rounds, change.steps_redone) == (5.0, 4.5, 0, 0)
    assert change.parts == {}


def test_changes_without_a_stable_moment_between_them_are_overlapped() -> None:
    timeline = ran(0, 1, steps=5, stable=12.5)
    timeline.change(14.5, 0, "kill", [1], [0])
    timeline.change(15.0, 1, "join", [1], [0, 1], overlaps=True)
    timeline.generation(2, [0, 1], first=30.0, steps=5)
    timeline.stable(33.0, 1, 2, 2)
    timeline.change(33.5, 2, "leave", [1], [0])
    changes = change_results(timeline.history)

    assert [(change.overlapped, change.after) for change in changes] == [(True, 2), (True, 2), (False, None)]
    assert changes[0].rounds == 2


def test_a_change_without_a_step_has_no_result() -> None:
    timeline = Timeline()
    timeline.change(1.0, 0, "join", [1], [0, 1])
    assert change_results(timeline.history) == []
    assert timeline.history.first_step_t is None

    assert unplanned(killed().history) == []


def died() -> Timeline:
    """The same as a lost node, but that nobody has asked for it; the worker of slot 1 was gone first."""
    timeline = killed()
    timeline.lines = [
        line for line in timeline.lines if line.what != "changed" and not (line.what == "stable" and line.index == 0)
    ]
    pids = {
        slot: worker.started.pid for (g, slot), worker in timeline.history.workers.items() if g == 0 and worker.started
    }
    timeline.lines += [
        event("worker_ended", t=20.5, slot=1, pid=pids[1]),
        event("worker_ended", t=20.7, slot=0, pid=pids[0]),
    ]
    return timeline


def test_an_unplanned_death_is_reported_with_its_cost_and_counts_as_lost() -> None:
    [(stall_s, told)] = unplanned(died().history)
    lost = [m.value for t in (killed(), died()) for m in measure(JOB, t.history)[1] if m.name == "lost_fraction"]

    assert stall_s == pytest.approx(5.0)
    assert told.startswith("generation 1 began ")
    assert "without a change in the plan: the worker of slot 1 ended first. It cost 5.0 s" in told
    assert lost[0] == pytest.approx(lost[1])


def test_a_change_without_survivors_has_no_stall() -> None:
    timeline = Timeline()
    timeline.begin(0.0, 0)
    timeline.generation(0, [0], first=10.0, steps=5)
    timeline.change(14.5, 0, "kill", [0], [1])
    timeline.generation(1, [1], first=20.0, steps=5)
    timeline.stable(23.0, 0, 1, 1)
    [change] = change_results(timeline.history)

    assert (change.stall_s, change.recovery_s, change.parts) == (None, None, {})


def test_a_slot_is_free_when_its_agent_has_ended_whoever_takes_it_later_and_ends_there() -> None:
    timeline = Timeline()
    timeline.begin(0.0, 0, 1)
    timeline.generation(0, [0, 1], first=10.0, steps=5)
    timeline.change(14.5, 0, "leave", [1], [0])
    timeline.agent_ended(16.75, 1)
    timeline.generation(1, [0], first=20.0, steps=5, met=18.9, resumed=3)
    timeline.stable(22.0, 0, 1, 1)
    timeline.change(24.0, 1, "join", [1], [0, 1])
    timeline.generation(2, [0, 1], first=30.0, steps=5, resumed=6)
    timeline.stable(32.0, 1, 2, 2)
    timeline.agent_ended(40.0, 1)
    leave, join = change_results(timeline.history)

    assert (leave.slot_free_s, join.slot_free_s) == (2.25, None)


def test_a_script_that_says_nothing_of_checkpoints_went_on_where_its_first_line_is() -> None:
    lines = [line for line in killed().history.lines if line.what not in ("loaded", "batch")]
    [change] = change_results(History(lines))

    assert change.steps_redone == 4
    assert "build" not in change.parts
    assert change.parts["first_step"] == pytest.approx(0.4)
    assert unaccounted_s(change) == pytest.approx(0.0)


def test_a_crash_stalls_those_who_did_not_crash_for_all_its_generations_together() -> None:
    timeline = ran(0, 1, steps=5, stable=12.5, number=1)
    timeline.change(14.5, 0, "crash", [1], [0, 1])
    timeline.generation(2, [0], first=16.0, steps=3, resumed=5)
    timeline.generation(3, [0, 1], first=20.0, steps=3, resumed=8)
    timeline.stable(22.1, 0, 3, 2)
    [change] = change_results(timeline.history)

    assert (change.stall_s, change.recovery_s, change.rounds) == ((16.0 - 14.0) + (20.0 - 18.0), 5.5, 2)


def test_a_torn_checkpoint_lets_the_job_go_back_one_interval_more() -> None:
    timeline = killed()
    timeline.lines.append(event("loaded", t=24.9, slot=0, generation=1, began_t=24.8, step=6, torn=["step9.pt"]))
    _, found = measure(JOB, timeline.history)

    [redone] = [m for m in found if m.name == "steps_redone"]
    assert [bound.value for bound in redone.bounds] == [2 * (JOB.checkpoint_every or 0)]
