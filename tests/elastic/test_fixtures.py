"""The fixtures ``elastic`` and ``elastic_pool``: trainings on nodes that come and go."""

from __future__ import annotations

import dataclasses
import itertools
import os
from collections.abc import Callable
from typing import Any

import pytest
from support.plans import ended
from support.pools import launch_of
from support.projects import Project, run, stored
from support.timelines import killed

from pytest_distbench.elastic.engines import ENGINES
from pytest_distbench.elastic.launch import make_record
from pytest_distbench.elastic.records import SERVING, Job, Pool, Sharing
from pytest_distbench.launch.supervise import Side
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.plan import LaunchPlan, Task
from pytest_distbench.records.record import replace
from pytest_distbench.records.wire import append
from pytest_distbench.run.kinds import LAUNCH_KINDS

TEST = """
    import numpy as np; from pytest_distbench.read import stdout
    from pytest_distbench.elastic import cycle, join, kill, leave, stop
    def body(rank):
        pass

    def test_it(elastic):
        elastic({call})
"""


@pytest.fixture
def kind(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """An engine named ``mine``: takes fractions, and nodes only join."""

    def add(**fields: Any) -> None:
        usual = {"changes": frozenset({"join"}), "timers": {"last_call_s": 0.5}}
        row = dataclasses.replace(ENGINES["stock"], **{**usual, **fields})
        monkeypatch.setitem(ENGINES, "mine", row)

    return add


def test_oversubscribed_nodes_run_and_their_timings_are_not_judged(
    simulated: pytest.Pytester,
) -> None:
    """The number of nodes is one that no host has cores for."""
    test = simulated.path / "test_it.py"
    test.write_text(test.read_text().replace("nodes=(1, 2)", "nodes=(1, 4096), oversubscribed=True"))
    result = run(simulated, "-s")

    result.stdout.fnmatch_lines(["*elastic: 1 to 4096 nodes, *; oversubscribed: * cores", "*1 passed*"])
    assert run(simulated, "-v").stdout.str().count("samples_skipped")
    result.stdout.no_fnmatch_line("*goodput*")
    result.stdout.no_fnmatch_line("*no speed-up*")


MADE_UP = """
    from pytest_distbench.elastic import kill

    def body(rank):
        pass

    def test_it(elastic, distbench):
        run = elastic(body, nodes=(1, 2), plan=kill(at_s=9.5), checkpoint_every=10, timers={"last_call_s": 3})
        distbench.judge("redone", lambda job: job["steps_redone[change=kill 2 to 1]"], of=run)
"""


@pytest.fixture
def simulated(project: Project, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A job that lost a node: what its agents and workers would have noted, a little different each time."""
    count = itertools.count()

    def launch(plan: LaunchPlan, side: Side) -> LaunchRecord:
        stalled_s = float(os.environ.get("STALLED_S", "0"))
        for line in killed(later_s=stalled_s + 0.01 * (next(count) % 3)).lines:
            append(plan.files.timeline, line)
        return make_record(plan, ended())

    monkeypatch.setitem(LAUNCH_KINDS, Job, dataclasses.replace(LAUNCH_KINDS[Job], run=launch))
    return project(MADE_UP)


def test_an_engine_that_stands_in_for_another_is_named_and_its_numbers_are_its_own(
    simulated: pytest.Pytester, kind: Callable[..., None]
) -> None:
    """Its timers are whole seconds, and the baseline is the one it has under its own name."""
    kind(problem=lambda: "torch is too new", stand_in="stock")
    run(simulated, "--distbench-update")
    test = simulated.path / "test_it.py"
    test.write_text(test.read_text().replace('{"last_call_s": 3}', '{"last_call_s": 2.1}, engine="mine"'))
    result = run(simulated, "-s")

    result.stdout.fnmatch_lines(
        ["*; engine stock (in place of mine: torch is too new), last_call_s=3, keep_alive_s=1*"]
    )
    result.stdout.fnmatch_lines(["*engine stock in place of mine: torch is too new (*"])
    result.stdout.no_fnmatch_line("N  test_*")


def test_a_baseline_belongs_to_its_engine_its_timers_and_its_plan(simulated: pytest.Pytester) -> None:
    run(simulated, "--distbench-update")
    [path] = [path for path in stored(simulated) if "redone" not in path.name]
    assert path.name == "ws2.gloo.elastic-stock.json"
    test = simulated.path / "test_it.py"
    test.write_text(test.read_text().replace('"last_call_s": 3', '"last_call_s": 30'))

    run(simulated).stdout.fnmatch_lines(["x test_it?ws2? *elastic.timers.last_call_s was 3 and is 30*"])


POOL_TEST = """
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


SERVES = "[A], **GIVEN, serving=serving(load, demand={call})"


TEXTS = {
    "job": TEST.replace("{call}", "body, {call}"),
    "mine": TEST.replace("{call}", "body, nodes=(1, 2), engine='mine', {call}"),
    "script": TEST,
    "pool": POOL_TEST,
    "serving": POOL_TEST.replace("{call}", SERVES),
}
REFUSED = {
    "job": [
        ("nodes=0", "elastic: nodes=0; wanted a whole number of at least 1*test_it.py:7"),
        ("nodes=(2, 1)", "elastic: nodes=(2, 1); wanted the fewest and the most, where the second is not below"),
        ("nodes=(1, 2, 3)", "elastic: nodes=(1, 2, 3); wanted a number, or the fewest and the most"),
        ("nodes=(0, 1)", "elastic: nodes=(0, 1): the fewest=0; wanted a whole number of at least 1"),
        ("nodes=2, plan='cycle'", "plan='cycle'; wanted cycle(...), draw(...), or one or a list of join(...)"),
        ("nodes=(1, 2), plan=leave(at_s=1, nodes=2)", "plan: leave(at_s=1, nodes=2): of 2 nodes 0 would be left"),
        (
            "nodes=(1, 2), plan=leave(at_s=np.float32(1), nodes=np.int64(2))",
            "plan: leave(at_s=1, nodes=2): of 2 nodes 0 would be left",
        ),
        ("nodes=2, plan=join(at_s=1)", "plan: join(at_s=1): 2 nodes and 1 more are 3, and there are 2 slots"),
        ("nodes=2, plan=[stop(at_s=3, for_s=1), stop(at_s=1, for_s=1)]", "list changes in their order"),
        ("nodes=2, engine='slow'", "engine='slow'; wanted one of stock"),
        ("nodes=2, engine=[]", "engine=[[]]; wanted one of stock"),
        ("nodes=2, timers={'heartbeat': 3}", ": engine 'stock' has no 'heartbeat'; it has "),
        (
            "nodes=(1, 2), plan=cycle(3), ends_after=5",
            "ends_after=5: cycle(period_s=3, on=1, off=1) goes on until the training ends; give times=",
        ),
        ("nodes=(1, 2), plan=kill(at_step=30), hold=True", "wanted at_step=, a multiple of 20 (checkpoint_every=)"),
    ],
    "mine": [
        ("plan=kill(at_s=1)", "plan: kill(at_s=1): the engine mine does not support it; wanted join"),
        ("plan=cycle(3)", "the engine mine does not support it; wanted join"),
        ("timers={'last_call_s': 0}", "timers['last_call_s']=0; wanted a finite number above 0"),
        ("timers={'settle_s': 9}", "timers={'settle_s': 9}: engine 'mine' has no 'settle_s'; it has last_call_s"),
    ],
    "script": [
        ("len, nodes=2", "body <built-in function len> is a "),
        ("'train.py', nodes=2", "elastic: steps=None; wanted stdout(r'step (?d+)') of pytest_distbench.read, which"),
        ("'train.py', nodes=2, hold=True", "hold=True is for functions: a script writes"),
        ("'train.py', nodes=2, steps='step'", "elastic: steps='step'; wanted stdout("),
        ("'train.py', nodes=2, steps=stdout('step')", "steps: *'step'*group"),
        ("'train.py', nodes=2, steps=stdout('(.)', rank='all')", "steps: rank='all': the workers of a generation"),
        (
            "'train.py', nodes=2, steps=stdout('(.)', rank=2)",
            "steps: rank=2, but with the fewest nodes there are only 2",
        ),
        ("body, nodes=2, steps=stdout('(.)')", "steps= is for scripts: a function reports its steps"),
        ("body, nodes=2, read={'loss': stdout('(.)')}", "read= is for scripts: a function reports its steps"),
        ("['sleep', '1'], nodes=2", "a command starts its processes itself; an elastic job needs a function"),
    ],
    "pool": [
        (
            "[A], slots=10**9, policy='gang', oversubscribed=True",
            "elastic_pool: slots=1000000000; wanted a whole number of at least 1 and at most 10000 (test_it.py:13",
        ),
        ("[A], slots=2, policy='fair'", "elastic_pool: policy='fair'; wanted one of gang, elastic"),
        ("[], **GIVEN", "jobs=[[]]; wanted a list of job(...)"),
        ("body, **GIVEN", "wanted a list of job(...), from pytest_distbench.elastic"),
        ("[A, A], **GIVEN", "two jobs are called 'A': give each its own name"),
        ("job('serving', body, nodes=1), **GIVEN", "a job is called 'serving', the name of the serving"),
        ("job('a=b', body, nodes=1), **GIVEN", "the name of a job='a=b'; wanted printable text without"),
        ("job('B', body, nodes=3), **GIVEN", "job 'B' could never start: it needs 3 slots under policy='elastic'"),
        (
            "job('B', body, nodes=(1, 3)), slots=2, policy='gang'",
            "job 'B' could never start: it needs 3 slots under policy='gang', and slots=2",
        ),
        ("job('B', body, nodes=(2, 1)), **GIVEN", "job 'B': nodes=(2, 1); wanted the fewest and the most, where the "),
        ("job('B', body, nodes=1, seed='1'), **GIVEN", "elastic_pool: job 'B': seed='1'; wanted a whole number of"),
        (
            "[A, job('B', body, nodes=1, submit_s=3), job('C', body, nodes=1, submit_s=2)], **GIVEN",
            "job 'C': submit_s=2 is before that of job 'B'",
        ),
        ("[A, job('B', body, nodes=1, submit_s=-1)], **GIVEN", "submit_s=-1; wanted a finite number of at least 0"),
        (
            "job('B', body, nodes=1, ends_after=5), **GIVEN",
            "job 'B': ends_after=5 counts steps after the last demand of a serving, and this pool has none",
        ),
        ("[A], **GIVEN, compute='none'", "compute='none'; wanted one of real, synthetic"),
        ("[A], **GIVEN, serving=load", "wanted serving(...), from pytest_distbench.elastic"),
        (
            "[A], slots=2, policy='gang', serving=serving(load, demand=[(5, 1)])",
            "serving takes slots from jobs, which only policy='elastic' can return; found 'gang'",
        ),
        ("[A], **GIVEN, serving=serving('no.py::load', demand=[(5, 1)])", "no.py"),
    ],
    "serving": [
        ("[(5, 1), (3, 2)]", "the demand of 3 s comes after that of 5 s: list the demand by time"),
        ("[(5, 0)]", "needs no slot"),
        ("[(5, 2)]", "its demand is for 2 slots, and a job keeps at least 1 of slots=2"),
        ("[('soon', 1)]", "serving: seconds of the demand='soon'; wanted a finite number"),
    ],
}


@pytest.mark.parametrize(("of", "call", "message"), [(of, *row) for of, rows in REFUSED.items() for row in rows])
def test_what_cannot_be_is_refused_with_the_tests_line(
    project: Project, kind: Callable[..., None], of: str, call: str, message: str
) -> None:
    kind()
    made = project(TEXTS[of].replace("{call}", call))
    made.makepyfile(train="")
    result = run(made)

    result.stdout.fnmatch_lines(["*" + message.replace(";", "?").replace("['", "[[]'") + "*"])
    assert result.ret == 1


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> list[LaunchPlan]:
    """Plans of pools that would be launched; none is, and each has the record of a launch that never ran."""
    found: list[LaunchPlan] = []

    def launch(plan: LaunchPlan, side: Side) -> LaunchRecord:
        found.append(plan)
        sharing = plan.expect(Pool).sharing
        return replace(launch_of(replace(sharing, cores=None), recorded_as=sharing), logs=plan.directory)

    monkeypatch.setitem(LAUNCH_KINDS, Pool, dataclasses.replace(LAUNCH_KINDS[Pool], run=launch))
    return found


def pool_of(plans: list[LaunchPlan]) -> Sharing:
    return plans[0].expect(Pool).sharing


def tasks_of(plans: list[LaunchPlan]) -> dict[str, Task]:
    return plans[0].expect(Pool).tasks


def test_a_serving_is_part_of_the_pool(project: Project, plans: list[LaunchPlan]) -> None:
    call = SERVES.replace("[A]", "job('train', body, nodes=(1, 2))").replace("{call}", "[(2, 1), (6, 0)]")
    run(project(POOL_TEST.replace("{call}", call)))

    assert tasks_of(plans)[SERVING].body.function == "load"
    assert "serving on 1 from 2 s, 0 from 6 s" in str(pool_of(plans))


def test_an_engine_that_cannot_be_used_here_is_an_error(project: Project, kind: Callable[..., None]) -> None:
    kind(problem=lambda: "mine is not installed")
    result = run(project(TEST.replace("{call}", "body, nodes=2, engine='mine'")))

    result.stdout.fnmatch_lines(["*engine='mine' cannot be used here: mine is not installed*"])


@pytest.mark.parametrize(
    ("call", "options", "nodes"),
    [("nodes=(1, 3)", [], 3), ("nodes=(1, 4)", ["--gpu"], 4), ("nodes=(1, 4), oversubscribed=True", ["--gpu"], 4)],
)
def test_more_nodes_than_ranks_or_gpus_are_not_run(
    project: Project, gpus: Callable[[int], None], call: str, options: list[str], nodes: int
) -> None:
    if options:
        gpus(2)
    result = run(project(TEST.replace("{call}", f"body, {call}")), *options, "-rs")

    result.stdout.fnmatch_lines([f"*not run: needs {nodes} nodes, 2 ranks given*"])
    result.assert_outcomes(skipped=1)


def test_numbers_of_elastic_jobs_are_stored_and_judged_like_all_others(
    simulated: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    updated = run(simulated, "--distbench-update")
    again = run(simulated)
    monkeypatch.setenv("STALLED_S", "3")
    slower = run(simulated)

    assert (updated.ret, again.ret, slower.ret) == (0, 0, 1)
    again.stdout.no_fnmatch_line("N  test_*")
    slower.stdout.fnmatch_lines(["!*stall?change=kill 2 to 1?* 8.0* s * 5.0* s *+59.* %*"])


def test_more_slots_than_ranks_are_not_run_unless_the_test_says_so(project: Project, plans: list[LaunchPlan]) -> None:
    call = "[job('A', body, nodes=1), job('B', body, nodes=2)], slots=4096, policy='gang'"
    run(project(POOL_TEST.replace("{call}", call))).stdout.fnmatch_lines(["*1 skipped*"])
    assert plans == []

    run(project(POOL_TEST.replace("{call}", f"{call}, oversubscribed=True")))
    assert pool_of(plans).slots == 4096
    assert pool_of(plans).cores is not None


def test_a_plan_has_what_each_job_runs(project: Project, plans: list[LaunchPlan]) -> None:
    call = "[A, job('B', body, nodes=1, params={'n': 3}, seed=5)], **GIVEN, compute='synthetic'"
    run(project(POOL_TEST.replace("{call}", call)))
    found = {name: (work.params, work.seeds) for name, work in tasks_of(plans).items()}

    assert found == {"A": ({}, [0]), "B": ({"n": 3}, [5])}
    assert (
        str(pool_of(plans))
        == "2 slots, elastic; A on 1 to 2 nodes from 0 s; B on 1 nodes from 0 s; engine stock; synthetic compute"
    )
    assert [job.checkpoint_every for job in pool_of(plans).jobs] == [20, 20]


def test_a_job_under_gang_has_all_or_nothing(project: Project, plans: list[LaunchPlan]) -> None:
    call = "[job('A', body, nodes=1), job('B', body, nodes=(1, 2))], slots=2, policy='gang'"
    run(project(POOL_TEST.replace("{call}", call)))

    assert [(job.least, job.most) for job in pool_of(plans).jobs] == [(1, 1), (2, 2)]
