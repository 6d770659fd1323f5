"""What a launch amounts to, and what of it may be shown and stored where its ranks know secrets."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from support.plans import make_plan

from pytest_distbench.launch.diagnosis.fates import Ending
from pytest_distbench.launch.outcome import Clock, make_record, mask_record
from pytest_distbench.launch.site.contract import Exit, Heard
from pytest_distbench.read import stdout
from pytest_distbench.records.host_report import HostReport
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.plan import LaunchPlan
from pytest_distbench.records.rank import ErrorReport, RankFate, RankReport
from pytest_distbench.records.record import replace
from pytest_distbench.records.work import BodyReference, Ranks

SCRIPT = Ranks(body=BodyReference(file="train.py"))


@pytest.fixture
def plan(tmp_path: Path) -> LaunchPlan:
    return make_plan(tmp_path, work=SCRIPT)


@pytest.fixture
def heard() -> Heard:
    return Heard()


def record(plan: LaunchPlan, heard: Heard, *group_sizes: int, remarks: tuple[str, ...] = ()) -> LaunchRecord:
    reports = [
        RankReport(rank=rank, outcome="passed", phase="body", phases={"begin": 1.0, "end": 2.0}, group_size=size)
        for rank, size in enumerate(group_sizes)
    ]
    hosts = [HostReport(ranks=reports)]
    ending = Ending(exit=Exit(codes={0: 0, 1: 0}), timed_out=False, ended_by_us=frozenset())
    return make_record(plan, hosts, heard, ending, Clock(started_at=0.0, up_at=1.0, finished_at=3.0), remarks=remarks)


def test_a_script_whose_ranks_never_met_has_done_nothing(plan: LaunchPlan, heard: Heard) -> None:
    plan.files.log(0).write_text("Unable to locate 2 gpus. Exiting\n")
    found = record(plan, heard, 0, 1)

    assert found.outcome == "failed"
    assert found.reason.startswith("no rank joined a process group of 2")
    assert found.reason.endswith("the output of rank 0 ends with:\nUnable to locate 2 gpus. Exiting")


def test_ranks_that_met_have_done_something(plan: LaunchPlan, heard: Heard) -> None:
    assert record(plan, heard, 2, 2).outcome == "passed"


def test_a_script_may_say_that_it_needs_no_group(plan: LaunchPlan, heard: Heard) -> None:
    meant = replace(plan, work=replace(SCRIPT, body=replace(SCRIPT.body, makes_group=False)))

    assert record(meant, heard, 0, 0).outcome == "passed"


def test_one_rank_has_nobody_to_meet(plan: LaunchPlan, heard: Heard) -> None:
    assert record(replace(plan, world_size=1), heard, 0).outcome == "passed"


def test_a_group_of_some_of_the_ranks_is_remarked(plan: LaunchPlan, heard: Heard) -> None:
    four = record(replace(plan, world_size=4), heard, 2, 2, 2, 2)

    assert four.outcome == "passed"
    assert four.remarks == ["the largest process group had 2 of 4 ranks"]


def test_a_number_that_is_not_there_fails_the_launch(plan: LaunchPlan, heard: Heard) -> None:
    found = record(replace(plan, read={"loss": stdout("loss (.*)")}), heard, 2, 2)

    assert found.outcome == "failed"
    assert found.reason == "the pattern 'loss (.*)' matches nothing in the output of rank 0, which is empty"
    assert found.measurements == []


def test_what_is_remarked_is_kept(plan: LaunchPlan, heard: Heard) -> None:
    assert record(plan, heard, 2, 2, remarks=("left x", "")).remarks == ["left x"]


def test_a_rank_that_did_not_go_is_said_whatever_the_outcome(plan: LaunchPlan, heard: Heard) -> None:
    text = "rank 1 (pid 7) is still there 25 s after it was killed"
    clock = Clock(started_at=0.0, up_at=1.0, finished_at=3.0)
    ending = Ending(exit=Exit(codes={0: 3}), timed_out=False, ended_by_us=frozenset(), stuck={1: text})
    failed = make_record(plan, [], heard, ending, clock)

    assert failed.reason.splitlines() == ["rank 0 exit code 3", text]


SECRET = "s3cr3tValue"
TOLD = f"found {SECRET}, twice {SECRET}"

RECORD = LaunchRecord(
    index=0,
    command=TOLD,
    outcome="failed",
    wall_s=1.0,
    reason=TOLD,
    remarks=[TOLD],
    fates=[
        RankFate(
            rank=0,
            outcome="failed",
            phase="body",
            how=TOLD,
            error=ErrorReport(kind="E", message=TOLD, traceback=TOLD, raised_at=1.0, torch_errors=[TOLD]),
            log_tail=TOLD,
            stacks=TOLD,
        ),
        RankFate(rank=1, outcome="failed", phase="body", how="waited"),
    ],
    logs="/folder",
)


def test_secrets_are_masked_in_all_that_ranks_and_their_logs_say() -> None:
    masked = mask_record(RECORD, [SECRET])

    assert msgspec.to_builtins(masked) == msgspec.json.decode(
        msgspec.json.encode(RECORD).replace(SECRET.encode(), b"***")
    )


def test_without_secrets_a_record_is_as_it_was() -> None:
    assert mask_record(RECORD, []) is RECORD
