"""When a job is stable, when it is over, and when it cannot go on."""

from __future__ import annotations

import pytest
from support.timelines import ERROR, JOB, LOST, Timeline

from pytest_distbench.jobs.control.progress import ATTEMPTS, Progress
from pytest_distbench.jobs.engines.contract import CannotGoOn
from pytest_distbench.records.timeline import Finished, Line, Raised, Started, WorkerEnded


def progress(lines: list[Line], *taken: int) -> Progress:
    made = Progress(JOB.most)
    made.taken = set(taken)
    for line in sorted(lines, key=lambda line: line.t):
        made.heed(line)
    return made


@pytest.fixture
def two() -> Timeline:
    """Slots 0 and 1, four steps."""
    timeline = Timeline()
    timeline.generation(0, [0, 1], first=10.0, steps=4)
    return timeline


def test_it_is_stable_when_all_that_should_be_there_have_stepped(two: Timeline) -> None:
    assert progress(two.lines, 0, 1).stable_generation == 0
    assert progress(two.lines, 0).stable_generation is None
    assert progress([line for line in two.lines if line.t < 11.5], 0, 1).stable_generation is None


def test_steps_before_a_change_do_not_show_that_it_is_stable(two: Timeline) -> None:
    made = Progress(JOB.most)
    made.taken = {0, 1}
    made.forget_steps(11.5)
    for line in two.lines:
        made.heed(line)

    assert made.stable_generation is None
    assert made.step == 4


def test_it_is_over_when_all_of_a_generation_have_finished(two: Timeline) -> None:
    ends: list[Line] = [Finished(t=14.0, slot=slot, generation=0) for slot in (0, 1)]
    one, both = progress(two.lines + ends[:1], 0, 1), progress(two.lines + ends, 0, 1)

    assert (one.is_ending, one.has_finished) == (True, False)
    assert both.has_finished


def test_a_body_that_raises_ends_it_unless_a_peer_was_lost(two: Timeline) -> None:
    progress([*two.lines, Raised(t=14.0, slot=1, pid=1, generation=0, error=LOST)], 0, 1)

    with pytest.raises(CannotGoOn, match="the body raised in slot 1, generation 0: ValueError: no"):
        progress([*two.lines, Raised(t=14.0, slot=1, pid=1, generation=0, error=ERROR)], 0, 1)


def started(count: int, slot: int = 1) -> list[Line]:
    return [Started(t=20.0 + i, slot=slot, pid=500 + i, process_t=19.0 + i, restarts=i) for i in range(count)]


def test_a_worker_that_is_started_again_and_again_and_comes_no_further_ends_the_job(two: Timeline) -> None:
    progress([*two.lines, *started(ATTEMPTS)], 0, 1)
    with pytest.raises(
        CannotGoOn, match=r"comes no further than step 4: the worker of slot 1 was started 6 times since\."
    ):
        progress([*two.lines, *started(ATTEMPTS + 1)], 0, 1)


def test_what_it_raised_before_it_had_a_group_is_told_with_it(two: Timeline) -> None:
    raised = Raised(t=20.5, slot=1, pid=500, generation=None, error=ERROR)
    lost = Raised(t=21.5, slot=1, pid=501, generation=None, error=LOST)
    with pytest.raises(CannotGoOn, match="Before they had a group they raised ValueError: no"):
        progress([*two.lines, raised, lost, *started(ATTEMPTS + 1)], 0, 1)


def test_a_change_or_a_step_further_lets_it_try_anew(two: Timeline) -> None:
    made = progress([*two.lines, *started(ATTEMPTS)], 0, 1)
    made.forget_steps(30.0)
    for line in started(ATTEMPTS):
        made.heed(line)


def test_whose_worker_is_gone_first_is_named(two: Timeline) -> None:
    pids = {worker.joined.slot: worker.joined.pid for worker in two.history.workers.values()}
    gone: list[Line] = [WorkerEnded(t=15.0 + slot, slot=slot, pid=pid) for slot, pid in pids.items()]
    with pytest.raises(
        CannotGoOn, match="slot 1 was started 6 times since; the last time the worker of slot 0 was gone f"
    ):
        progress([*two.lines, *gone, *started(ATTEMPTS + 1)], 0, 1)
