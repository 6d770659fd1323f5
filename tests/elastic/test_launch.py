"""One launch of an elastic job, or of a pool of them: from plan to record."""

from __future__ import annotations

import dataclasses
import os
import re
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.elastic_jobs import job_plan
from support.plans import BODY, ended, make_plan
from support.pools import POOL, shared
from support.projects import Project, run
from support.repositories import git
from support.timelines import ERROR, JOB, LOST, Timeline, killed

from pytest_distbench.elastic import kill
from pytest_distbench.elastic.launch import launch_elastic, make_pool_record, make_record
from pytest_distbench.elastic.records import ElasticJob, Job, Pool, event, pool_of, runs_of
from pytest_distbench.launch.controlled import Controlled
from pytest_distbench.launch.site import processes
from pytest_distbench.launch.starters import Hosting
from pytest_distbench.launch.supervise import Side
from pytest_distbench.read import stdout
from pytest_distbench.records.launch import LaunchRecord, RankReport
from pytest_distbench.records.metric import Observation
from pytest_distbench.records.plan import BodyReference, LaunchPlan, Task, Work
from pytest_distbench.records.record import replace
from pytest_distbench.records.wire import Event, append, read_events
from pytest_distbench.run.kinds import LAUNCH_KINDS

SCRIPT = BodyReference(file="train.py")


@pytest.fixture
def plan(tmp_path: Path) -> LaunchPlan:
    return make_plan(tmp_path)


def record(plan: LaunchPlan, timeline: Timeline, *, job: ElasticJob = JOB, most: int = 2, **end: Any) -> LaunchRecord:
    for line in timeline.lines:
        append(plan.files.timeline, line)
    job = replace(job, most=most)
    plan = replace(plan, world_size=most, work=Job(body=BODY if job.steps is None else SCRIPT, job=job))
    return make_record(plan, ended(**end))


def number(name: str, value: float) -> Observation:
    return Observation(name=name, unit="", better="info", reduce="rank0", values=[value], is_series=False)


def write_report(plan: LaunchPlan, rank: int, observations: list[Observation], *, reason: str = "") -> None:
    how: dict[str, Any] = {"outcome": "failed" if reason else "passed", "phase": "body", "phases": {}, "reason": reason}
    report = RankReport(rank=rank, **how, observations=observations, software={"torch": "2.13.0"})
    plan.files.report(rank).write_bytes(msgspec.json.encode(report))


def test_a_job_that_passed_has_its_numbers_and_those_of_its_last_generation(plan: LaunchPlan) -> None:
    write_report(plan, 0, [number("accuracy", 0.9)])
    made = record(plan, killed())
    values = {m.key: m.value for m in made.measurements}

    assert (made.outcome, made.reason, made.fates, made.software) == ("passed", "", [], {"torch": "2.13.0"})
    assert (values["accuracy"], values["samples_skipped"]) == (0.9, 0)
    [run] = runs_of(made.events)
    assert len(run.changes) == 1


def test_the_record_has_the_controllers_reason_and_what_each_slot_raised(plan: LaunchPlan) -> None:
    plan.files.trouble.write_text("the training was over before kill(at_s=60)")
    timeline = killed()
    timeline.lines = [line for line in timeline.lines if line.what != "finished"]
    timeline.lines.append(event("raised", t=27.0, slot=0, pid=100, generation=1, error=ERROR))
    timeline.lines.append(event("raised", t=27.1, slot=1, pid=101, generation=1, error=LOST))
    made = record(plan, timeline, code=1)
    found = (made.outcome, made.reason, made.measurements)

    assert found == ("failed", "the training was over before kill(at_s=60)", [])
    told = [(fate.rank, fate.how, fate.error, fate.is_victim) for fate in made.fates]
    assert told == [(0, "raised ValueError", ERROR, False), (1, "raised RuntimeError", LOST, True)]


def test_what_changes_brought_about_is_no_reason_where_the_training_came_to_its_end(plan: LaunchPlan) -> None:
    plan.files.trouble.write_text("the training was over before kill(at_s=60)")
    raised = event("raised", t=20.6, slot=0, pid=100, generation=0, error=LOST)

    assert record(plan, also(raised), code=1).fates == []


def also(*lines: Event) -> Timeline:
    timeline = killed()
    timeline.lines += lines
    return timeline


OLDER = event("saved", t=20.2, slot=0, generation=0, step=9, seconds=0.0)
NO_STORE = "Traceback: no store"
NOT_ENDED = (
    "the elastic job had not ended after 20.0 s, and was ended. Its furthest step, 12, came 1 s before its last "
    "action; 0 generations have begun since, and the last step of all was one of slot 0"
)


@pytest.mark.parametrize(
    ("timeline", "end", "reason"),
    [
        (Timeline(), {"code": 1}, f"the controller of the elastic job ended with exit code 1; its log:\n{NO_STORE}"),
        (Timeline(), {}, "*must loop over rank.training(...).batches(...)*"),
        (also(OLDER), {}, "Wrong epoch on resume: generation 1 continued after step 6, and the newest checkpoint*"),
        (killed(), {"code": -9, "timed_out": True}, NOT_ENDED),
    ],
    ids=["died with a log", "a body without a training", "a training that went on at the wrong place", "out of time"],
)
def test_a_job_that_failed_says_why(plan: LaunchPlan, timeline: Timeline, end: dict[str, Any], reason: str) -> None:
    plan.files.log(0).write_text(f"{NO_STORE}\n")
    made = record(plan, timeline, **end)

    assert fnmatchcase(made.reason, reason), made.reason
    assert made.timed_out == ("timed_out" in end)


@pytest.mark.spawn
def test_a_job_whose_guardian_is_stopped_is_ended_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "STOPPED_S", 1.0)
    controller = tmp_path / "controller.sh"
    controller.write_text("#!/bin/sh\nkill -STOP $PPID\n")
    controller.chmod(0o700)
    (tmp_path / "launch").mkdir()
    plan = job_plan(tmp_path / "launch", JOB, timeout_s=60.0, variables=dict(os.environ))
    made = launch_elastic(plan, Side(python=str(controller)))

    assert not made.timed_out
    assert re.match(r"the process \d+, which starts the others .* has been stopped \(SIGSTOP\)", made.reason)


def test_torn_checkpoints_a_recovery_of_minutes_and_too_few_cores_are_remarked(plan: LaunchPlan) -> None:
    timeline = killed(later_s=60.0)
    timeline.lines.append(event("loaded", t=84.9, slot=0, generation=1, began_t=84.8, step=6, torn=["step9.pt"]))
    torn, slow, cores = record(plan, timeline, most=10_000).remarks

    assert torn == "checkpoint step9.pt was incomplete, and the last complete one was used"
    assert slow.startswith("recovery of 64 s after the kill at 9.5 s, of which detect took 63 s: nobody noticed")
    assert cores.startswith("10000 nodes compute on")


def test_what_a_body_did_not_hand_over_is_remarked_once(plan: LaunchPlan) -> None:
    timeline = killed()
    schedule = "the schedule: rank.training(schedule=...)"
    for slot, parts in ((0, [schedule]), (1, ["random streams: ...", schedule])):
        timeline.lines.append(event("left_out", t=11.1, slot=slot, generation=0, parts=parts))

    changed = replace(JOB, plan=[kill(at_s=9.5)])

    assert record(plan, timeline).remarks == []  # nothing is to be compared
    [remark] = record(plan, timeline, job=changed).remarks
    assert remark.endswith(f" and no load of it is checked: {schedule}; random streams: ...")


def test_a_script_is_read_and_what_its_last_generation_recorded_is_kept(plan: LaunchPlan) -> None:
    """Rank 1 was lost with what it had recorded: that is nobody's mistake."""
    job = replace(JOB, checkpoint_every=None, steps=stdout("step (.*)"))
    loss = stdout("loss (.*)", better="same")
    plan.files.log(0).write_text("loss 3\nloss 2\n")
    write_report(plan, 0, [number("score", 0.5)])
    write_report(plan, 1, [], reason="it recorded numbers, and ended before it could write them down")
    plan = replace(plan, read={"loss": loss})
    made = record(plan, killed(), job=job)
    values = {m.name: m.value for m in made.measurements}

    assert (made.reason, values["loss"], values["score"]) == ("", 2.0, 0.5)
    assert "samples_skipped" not in values


WORK = Pool(sharing=POOL, tasks={job.name: Task(body=BODY) for job in POOL.jobs})


@pytest.fixture
def pool_plan(tmp_path: Path) -> LaunchPlan:
    """The plan of a pool that has run."""
    made = make_plan(tmp_path, work=WORK)
    lines, jobs = shared()
    for line in lines:
        append(made.files.pool_timeline, line)
    for index, name in enumerate(jobs):
        made.files.job(index).directory.mkdir()
        for told in jobs[name]:
            append(made.files.job(index).timeline, told)
    return made


def pool_record(pool_plan: LaunchPlan, **end: Any) -> LaunchRecord:
    return make_pool_record(pool_plan, ended(**{"wall_s": 25.0, **end}))


def test_a_pool_that_passed_has_its_tables_and_its_metrics(pool_plan: LaunchPlan) -> None:
    made = pool_record(pool_plan)

    assert (made.outcome, made.reason) == ("passed", "")
    assert pool_of(made.events) is not None
    assert {m.key: m.value for m in made.measurements}["makespan"] == 22.0


@pytest.mark.parametrize(
    ("ended", "reason"),
    [
        ({"timed_out": True}, "the pool had not ended after 25.0 s, and was ended"),
        ({"code": 1}, "job B: it hangs"),
        ({"code": 3}, "job B: it hangs"),
    ],
)
def test_one_that_failed_says_why_and_has_no_metric(
    pool_plan: LaunchPlan, ended: dict[str, object], reason: str
) -> None:
    pool_plan.files.trouble.write_text("job B: it hangs")
    made = pool_record(pool_plan, **ended)

    assert (made.outcome, made.reason, made.measurements) == ("failed", reason, [])
    assert pool_of(made.events) is not None


def test_a_job_that_raised_is_named_and_one_that_finished_is_not(pool_plan: LaunchPlan) -> None:
    """What it raised itself, not what followed from a change before it."""
    timeline = pool_plan.files.job(1).timeline
    whole = [line for line in read_events(timeline) if line.what != "finished"]
    timeline.unlink()
    lost = event("raised", t=15.0, slot=0, pid=1, generation=0, error=LOST)
    for line in [*whole, lost, event("raised", t=16.0, slot=1, pid=1, generation=0, error=ERROR)]:
        append(timeline, line)
    append(pool_plan.files.job(0).timeline, event("finished", t=14.0, slot=0, generation=0))
    [b] = pool_record(pool_plan, code=1).fates

    assert (b.rank, b.how, b.error, b.is_victim) == (1, "raised ValueError", ERROR, False)


def test_what_the_last_generation_of_a_script_recorded_must_be_whole(plan: LaunchPlan) -> None:
    write_report(plan, 0, [], reason="it recorded numbers, and ended before it could write them down")
    made = record(plan, killed(), job=replace(JOB, checkpoint_every=None, steps=stdout("step (.*)")))

    assert made.reason.startswith("rank 0: it recorded numbers, and ended")


def test_without_a_step_there_is_nothing_to_measure(tmp_path: Path) -> None:
    assert "no body made a step" in pool_record(make_plan(tmp_path, work=WORK)).reason


def test_agents_that_outlive_their_workers_are_remarked(plan: LaunchPlan) -> None:
    timeline = killed()
    timeline.lines = [line for line in timeline.lines if not (line.what == "agent_ended" and line.slot == 0)]

    [told] = [remark for remark in record(plan, timeline).remarks if "agents" in remark]
    assert told == "the agents of slots 0 had not ended 30 s after their workers and were ended"


def test_a_pool_controller_that_died_is_reported_with_its_log(pool_plan: LaunchPlan) -> None:
    pool_plan.files.log(0).write_text("Traceback: no store")
    found = pool_record(pool_plan, code=1).reason

    assert found == "the controller of the pool ended with exit code 1; its log:\nTraceback: no store"


@pytest.mark.spawn
def test_what_a_pool_prints_is_shown_with_the_slots_of_its_jobs(tmp_path: Path) -> None:
    shown: list[tuple[int, str]] = []
    work = Pool(sharing=POOL, tasks={job.name: Task(body=BODY) for job in POOL.jobs})
    plan = make_plan(tmp_path, work=work, timeout_s=60.0, variables=dict(os.environ))
    side = Side(on_output=lambda slot, line: shown.append((slot, line)))
    script = f"mkdir -p {tmp_path}/job0 {tmp_path}/job1; echo of A > {tmp_path}/job0/rank0.log"
    Controlled(plan, side, observes=False, is_ours=True).run(
        ["sh", "-c", f"{script}; echo of B > {tmp_path}/job1/rank1.log; printf last >> {tmp_path}/job0/rank0.log"]
    )

    assert sorted(shown) == [(0, "last"), (0, "of A"), (1, "of B")]


TASKS = {job.name: Task(body=BODY, params={"n": 1}, seeds=[index]) for index, job in enumerate(POOL.jobs)}
ONE, SHARED = Job(body=BODY, job=JOB), Pool(sharing=POOL, tasks=TASKS)


@pytest.mark.parametrize("work", [ONE, SHARED], ids=lambda work: work.kind)
def test_a_plan_is_read_back_as_it_was_written(tmp_path: Path, work: Work) -> None:
    plan = make_plan(tmp_path, work=work)
    plan.files.plan.write_bytes(msgspec.json.encode(plan))

    assert LaunchPlan.read_from(plan.files.plan) == plan


def test_the_plan_of_a_job_of_a_pool_runs_its_task_in_a_folder_of_its_own(tmp_path: Path) -> None:
    plan = make_plan(tmp_path, work=SHARED)
    part = SHARED.part(plan, 1)

    assert part.work == Job(body=BODY, params={"n": 1}, seeds=[1], job=POOL.jobs[1])
    assert (part.files, part.world_size) == (plan.files.job(1), POOL.jobs[1].most)
    assert replace(part, work=plan.work, directory=plan.directory, world_size=2) == plan
    found = SHARED.logs(plan.files, 2)
    assert found == [(slot, plan.files.job(index).log(slot)) for index in (0, 1) for slot in (0, 1)]


def test_rows_of_their_kinds_say_what_runs_where_and_for_how_long() -> None:
    job, pool = LAUNCH_KINDS[Job], LAUNCH_KINDS[Pool]
    elsewhere = Hosting(hosts="many", is_spaced=False, sets_threads=False)

    assert job.launcher(Job(body=BODY, job=replace(JOB, engine="fast")), "mine") == "elastic-fast"
    assert pool.launcher(SHARED, "mine") == "elastic-stock"
    found = [(row.hosted_by(elsewhere).hosts, row.hosting) for row in (job, pool)]
    assert found == [("one", Hosting(sets_threads=True))] * 2
    assert [(row.open_s, row.most_open, row.most_stored) for row in (job, pool)] == [(300.0, 5, 3)] * 2
    assert (bool(job.why_alone), bool(pool.why_alone)) == (False, True)
    assert pool.why_alone.startswith("a pool of jobs takes the whole machine, so interleaved A/B is not possible")
    assert all("elastic jobs" in row.why_no_delay for row in (job, pool))


ELASTIC = """
from pytest_distbench.elastic import kill

def body(rank):
    pass

def test_it(elastic):
    elastic(body, nodes=(1, 2), plan=kill(at_s=9.5), checkpoint_every=10)
"""


@pytest.mark.parametrize(
    ("stalled_s", "text"),
    [(0.0, "*stall?change=kill 2 to 1?* 5* s* 5* s*"), (3.0, "*stall?change=kill 2 to 1?* 8* s* 5* s*+*")],
)
def test_an_elastic_job_runs_on_both_sides_one_after_the_other(
    project: Project, monkeypatch: pytest.MonkeyPatch, stalled_s: float, text: str
) -> None:
    made = project(ELASTIC)
    (made.path / ".gitignore").write_text("tmp/\n__pycache__/\n")
    (made.path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(made.path / "tmp"))
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "first"]):
        git(made.path, *words)
    sides = []

    def launch(plan: LaunchPlan, side: Side) -> LaunchRecord:
        sides.append(bool(plan.tree))
        assert ("/tree-" in plan.expect(Job).body.file) is bool(plan.tree)
        for line in killed(later_s=(0.0 if plan.tree else stalled_s) + 0.01 * (len(sides) % 3)).lines:
            append(plan.files.timeline, line)
        return make_record(plan, ended())

    monkeypatch.setitem(LAUNCH_KINDS, Job, dataclasses.replace(LAUNCH_KINDS[Job], run=launch))
    result = run(made, "--distbench-against", "HEAD", "-v")

    assert result.ret == bool(stalled_s)
    assert all(sides[i] != sides[i + 1] for i in range(0, len(sides), 2))
    assert len(sides) == 10
    result.stdout.fnmatch_lines([text])
