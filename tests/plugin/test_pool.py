"""The fixture ``elastic_pool``: what it refuses, before anything is started."""

from __future__ import annotations

import dataclasses

import pytest
from support.pools import launch_of
from support.projects import Project, run

from pytest_distbench.launch.side import Side
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.plan import LaunchPlan
from pytest_distbench.records.pool import SERVING, Sharing
from pytest_distbench.records.record import replace
from pytest_distbench.records.work import Pool, Task
from pytest_distbench.run.kinds import LAUNCH_KINDS

TEST = """
    from pytest_distbench.elastic import job, serving

    def body(rank):
        pass

    def load():
        pass

    A = job("A", body, nodes=(1, 2))
    GIVEN = {"slots": 2, "policy": "elastic"}

    def test_it(elastic_pool):
        elastic_pool({call})
"""
SERVES = "[A], **GIVEN, serving=serving(load, demand={demand})"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            "[A], slots=10**9, policy='gang', oversubscribed=True",
            "*elastic_pool: slots=1000000000; wanted a whole number of at least 1 and at most 10000 (test_it.py:13*",
        ),
        ("[A], slots=2, policy='fair'", "*elastic_pool: policy='fair'; wanted one of gang, elastic*"),
        ("[], **GIVEN", "*jobs=[[]]; wanted a list of job(...)*"),
        ("body, **GIVEN", "*wanted a list of job(...), from pytest_distbench.elastic*"),
        ("[A, A], **GIVEN", "*two jobs are called 'A': give each a name of its own*"),
        ("job('serving', body, nodes=1), **GIVEN", "*a job is called 'serving', which is the serving's own name*"),
        ("job('a=b', body, nodes=1), **GIVEN", "*the name of a job='a=b'; wanted printable text without*"),
        ("job('B', body, nodes=3), **GIVEN", "*job 'B' could never start: it needs 3 slots under policy='elastic'*"),
        (
            "job('B', body, nodes=(1, 3)), slots=2, policy='gang'",
            "*job 'B' could never start: it needs 3 slots under policy='gang', and slots=2*",
        ),
        (
            "job('B', body, nodes=(2, 1)), **GIVEN",
            "*job 'B': nodes=(2, 1); wanted the fewest and the most, and the *",
        ),
        ("job('B', body, nodes=1, seed='1'), **GIVEN", "*elastic_pool: job 'B': seed='1'; wanted a whole number of*"),
        ("job('B', body, nodes=1, submit_s=3), **GIVEN", "*job 'B': submit_s=3; wanted 0: the clock begins with*"),
        (
            "[A, job('B', body, nodes=1, submit_s=3), job('C', body, nodes=1, submit_s=2)], **GIVEN",
            "*job 'C': submit_s=2 is before that of job 'B'*",
        ),
        ("[A, job('B', body, nodes=1, submit_s=-1)], **GIVEN", "*submit_s=-1; wanted a finite number of at least 0*"),
        (
            "job('B', body, nodes=1, ends_after=5), **GIVEN",
            "*job 'B': ends_after=5: steps behind the last demand of a serving, and this pool has none: leave it out*",
        ),
        ("[A], **GIVEN, compute='none'", "*compute='none'; wanted one of real, synthetic*"),
        ("[A], **GIVEN, engine='slow'", "*engine='slow'; wanted one of stock*"),
        ("[A], **GIVEN, serving=load", "*wanted serving(...), from pytest_distbench.elastic*"),
        (SERVES.replace("{demand}", "[(5, 1), (3, 2)]"), "*the demand of 3 s comes after that of 5 s: time does not*"),
        (
            SERVES.replace("{demand}", "[(5, -1)]"),
            "*serving: slots of the demand=-1; wanted a whole number of at least 0*",
        ),
        (SERVES.replace("{demand}", "[5]"), "*demand has 5; wanted a pair*"),
        (SERVES.replace("{demand}", "{5: 1}"), "*demand={5: 1}; wanted pairs*"),
        (SERVES.replace("{demand}", "[(5, 0)]"), "*wants no slot*"),
        (
            SERVES.replace("{demand}", "[(5, 2)]"),
            "*its demand is for 2 slots, and a job keeps at least 1 of slots=2*",
        ),
        (
            "[A], slots=2, policy='gang', serving=serving(load, demand=[(5, 1)])",
            "*serving takes slots from jobs that can give them: wanted policy='elastic', not 'gang'*",
        ),
        (
            SERVES.replace("{demand}", "[('soon', 1)]"),
            "*serving: seconds of the demand='soon'; wanted a finite number*",
        ),
        (SERVES.replace("{demand}", "[(5, 0.5)]"), "*serving: slots of the demand=0.5; wanted a whole number*"),
        ("[A], **GIVEN, serving=serving('no.py::load', demand=[(5, 1)])", "*no.py*"),
    ],
)
def test_what_cannot_be_is_refused_with_the_tests_line(project: Project, call: str, message: str) -> None:
    result = run(project(TEST.replace("{call}", call)))

    result.stdout.fnmatch_lines([message.replace(";", "?")])
    assert result.ret == 1


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> list[LaunchPlan]:
    """Of pools that were to be launched; none is, and each has the record of one that never ran."""
    found: list[LaunchPlan] = []

    def launch(plan: LaunchPlan, side: Side) -> LaunchRecord:
        found.append(plan)
        sharing = plan.expect(Pool).sharing
        record = launch_of(replace(sharing, cores=None))
        assert record.pool is not None
        return replace(record, pool=replace(record.pool, pool=sharing), logs=plan.directory)

    monkeypatch.setitem(LAUNCH_KINDS, Pool, dataclasses.replace(LAUNCH_KINDS[Pool], run=launch))
    return found


def pool_of(plans: list[LaunchPlan]) -> Sharing:
    return plans[0].expect(Pool).sharing


def tasks_of(plans: list[LaunchPlan]) -> dict[str, Task]:
    return plans[0].expect(Pool).tasks


def test_more_slots_than_ranks_are_not_run_unless_the_test_says_so(project: Project, plans: list[LaunchPlan]) -> None:
    call = "[job('A', body, nodes=1), job('B', body, nodes=2)], slots=4096, policy='gang'"
    run(project(TEST.replace("{call}", call))).stdout.fnmatch_lines(["*1 skipped*"])
    assert plans == []

    run(project(TEST.replace("{call}", f"{call}, oversubscribed=True")))
    assert pool_of(plans).slots == 4096
    assert pool_of(plans).cores is not None


def test_a_plan_has_what_each_job_runs(project: Project, plans: list[LaunchPlan]) -> None:
    call = "[A, job('B', body, nodes=1, params={'n': 3}, seed=5)], **GIVEN, compute='synthetic'"
    run(project(TEST.replace("{call}", call)))

    assert {name: (work.params, work.seeds) for name, work in tasks_of(plans).items()} == {
        "A": ({}, [0]),
        "B": ({"n": 3}, [5]),
    }
    assert (
        str(pool_of(plans))
        == "2 slots, elastic; A on 1 to 2 nodes from 0 s; B on 1 nodes from 0 s; engine stock; synthetic compute"
    )
    assert [job.job.checkpoint_every for job in pool_of(plans).jobs] == [20, 20]


def test_a_job_under_gang_has_all_or_nothing(project: Project, plans: list[LaunchPlan]) -> None:
    run(
        project(
            TEST.replace("{call}", "[job('A', body, nodes=1), job('B', body, nodes=(1, 2))], slots=2, policy='gang'")
        )
    )

    assert [(job.job.least, job.job.most) for job in pool_of(plans).jobs] == [(1, 1), (2, 2)]


def test_a_serving_is_part_of_the_pool(project: Project, plans: list[LaunchPlan]) -> None:
    call = SERVES.replace("[A]", "job('train', body, nodes=(1, 2))").replace("{demand}", "[(2, 1), (6, 0)]")
    run(project(TEST.replace("{call}", call)))

    assert tasks_of(plans)[SERVING].body.function == "load"
    assert str(pool_of(plans).serving) == "serving on 1 from 2 s, 0 from 6 s"
