"""What a record says of a job that is over, from the files it left. Real ones: tests/end_to_end/test_elastic.py."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from support.plans import make_plan
from support.timelines import ERROR, JOB, Timeline, killed

from pytest_distbench.launch.elastic.launch import make_record
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.metric import Observation
from pytest_distbench.records.plan import LaunchPlan
from pytest_distbench.records.rank import RankReport
from pytest_distbench.records.record import replace
from pytest_distbench.records.timeline import AgentEnded, Loaded, Raised, Stepped, append


@pytest.fixture
def plan(tmp_path: Path) -> LaunchPlan:
    return make_plan(tmp_path)


def record(
    plan: LaunchPlan, timeline: Timeline, *, code: int = 0, timed_out: bool = False, most: int = 2
) -> LaunchRecord:
    for line in timeline.lines:
        append(plan.files.timeline, line)
    return make_record(plan, replace(JOB, most=most), code=code, timed_out=timed_out, wall_s=20.0)


def test_a_job_that_passed_has_its_numbers_and_those_of_its_last_generation(plan: LaunchPlan) -> None:
    accuracy = Observation(name="accuracy", unit="", better="info", reduce="rank0", values=[0.9], is_series=False)
    report = RankReport(
        rank=0, pid=1, outcome="passed", phase="body", phases={}, observations=[accuracy], software={"torch": "2.13.0"}
    )
    plan.files.report(0).write_bytes(msgspec.json.encode(report))
    made = record(plan, killed())
    values = {m.key: m.value for m in made.measurements}

    assert (made.outcome, made.reason, made.fates, made.software) == ("passed", "", [], {"torch": "2.13.0"})
    assert (values["accuracy"], values["samples_skipped"]) == (0.9, 0)
    assert made.elastic is not None
    assert len(made.elastic.changes) == 1


def test_why_the_controller_gave_up_is_the_reason_and_each_slot_tells_what_it_raised(plan: LaunchPlan) -> None:
    plan.files.trouble.write_text("the training was over before kill(at_s=60)")
    timeline = killed()
    timeline.lines.append(Raised(t=27.0, slot=0, pid=100, generation=1, error=ERROR))
    made = record(plan, timeline, code=1)

    assert (made.outcome, made.reason, made.measurements) == (
        "failed",
        "the training was over before kill(at_s=60)",
        [],
    )
    assert [(fate.rank, fate.how, fate.error) for fate in made.fates] == [
        (0, "raised ValueError", ERROR),
        (1, "was ended with the job", None),
    ]


def test_a_controller_that_died_is_told_with_its_log(plan: LaunchPlan) -> None:
    plan.files.log(0).write_text("Traceback: no store\n")

    assert record(plan, Timeline(), code=1).reason == (
        "the controller of the elastic job ended with exit code 1; its log:\nTraceback: no store"
    )


def test_a_job_that_did_not_end_in_time_is_told_as_that(plan: LaunchPlan) -> None:
    made = record(plan, killed(), code=-9, timed_out=True)

    assert (made.reason, made.timed_out) == ("the elastic job had not ended after 20.0 s, and was ended", True)


def test_a_body_without_a_training_is_told_what_to_call(plan: LaunchPlan) -> None:
    assert "whose body does not loop over rank.training(...).batches(...)" in record(plan, Timeline()).reason


def test_agents_that_outlive_their_workers_are_remarked(plan: LaunchPlan) -> None:
    timeline = killed()
    timeline.lines = [line for line in timeline.lines if not (isinstance(line, AgentEnded) and line.slot == 0)]

    [told] = [remark for remark in record(plan, timeline).remarks if "agents" in remark]
    assert told == "the agents of slots 0 had not ended 30 s after their workers, and were ended"


def test_torn_checkpoints_a_lost_optimizer_and_too_few_cores_are_remarked(plan: LaunchPlan) -> None:
    timeline = killed()
    timeline.lines.append(Loaded(t=24.9, slot=0, generation=1, began_t=24.8, step=6, torn=["step9.pt"]))
    timeline.lines = [replace(line, lr=None) if isinstance(line, Stepped) else line for line in timeline.lines]
    torn, optimizer, cores = record(plan, timeline, most=10_000).remarks

    assert torn == "checkpoint step9.pt was torn, and the last good one was used"
    assert optimizer.startswith("the body keeps no optimizer in rank.training(...)")
    assert cores.startswith("10000 nodes compute on")
