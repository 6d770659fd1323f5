"""From the files that a pool left to its record."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.plans import BODY, ended, make_plan
from support.pools import POOL, shared
from support.timelines import ERROR, LOST

from pytest_distbench.jobs.launch_pool import make_record
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.plan import LaunchPlan
from pytest_distbench.records.timeline import Finished, Raised, append, read_timeline
from pytest_distbench.records.work import Pool, Task

WORK = Pool(sharing=POOL, tasks={job.name: Task(body=BODY) for job in POOL.jobs})


@pytest.fixture
def plan(tmp_path: Path) -> LaunchPlan:
    """Of a pool that has run."""
    made = make_plan(tmp_path, work=WORK)
    lines, jobs = shared()
    for line in lines:
        append(made.files.pool_timeline, line)
    for index, name in enumerate(jobs):
        made.files.job(index).directory.mkdir()
        for told in jobs[name]:
            append(made.files.job(index).timeline, told)
    return made


def record(plan: LaunchPlan, **end: Any) -> LaunchRecord:
    return make_record(plan, ended(**{"wall_s": 25.0, **end}))


def test_a_pool_that_passed_has_its_tables_and_its_metrics(plan: LaunchPlan) -> None:
    made = record(plan)

    assert (made.outcome, made.reason) == ("passed", "")
    assert made.pool is not None
    assert {m.key: m.value for m in made.measurements}["makespan"] == 22.0


@pytest.mark.parametrize(
    ("ended", "reason"),
    [
        ({"timed_out": True}, "the pool had not ended after 25.0 s, and was ended"),
        ({"code": 1}, "job B: it hangs"),
        ({"code": 3}, "job B: it hangs"),
    ],
)
def test_one_that_failed_says_why_and_has_no_metric(plan: LaunchPlan, ended: dict[str, object], reason: str) -> None:
    plan.files.trouble.write_text("job B: it hangs")
    made = record(plan, **ended)

    assert (made.outcome, made.reason, made.measurements) == ("failed", reason, [])
    assert made.pool is not None


def test_a_controller_that_died_is_told_with_its_log(plan: LaunchPlan) -> None:
    plan.files.log(0).write_text("Traceback: no store")

    assert record(plan, code=1).reason == (
        "the controller of the pool ended with exit code 1; its log:\nTraceback: no store"
    )


def test_a_job_that_raised_is_named_and_one_that_finished_is_not(plan: LaunchPlan) -> None:
    """What it raised itself, not what followed from a change before it."""
    timeline = plan.files.job(1).timeline
    whole = [line for line in read_timeline(timeline) if not isinstance(line, Finished)]
    timeline.unlink()
    lost = Raised(t=15.0, slot=0, pid=1, generation=0, error=LOST)
    for line in [*whole, lost, Raised(t=16.0, slot=1, pid=1, generation=0, error=ERROR)]:
        append(timeline, line)
    append(plan.files.job(0).timeline, Finished(t=14.0, slot=0, generation=0))
    [b] = record(plan, code=1).fates

    assert (b.rank, b.how, b.error, b.is_victim) == (1, "raised ValueError", ERROR, False)


def test_without_a_step_there_is_nothing_to_measure(tmp_path: Path) -> None:
    assert "no body took a step" in record(make_plan(tmp_path, work=WORK)).reason
