"""A launch as it was asked for, and as it is made: what runs, where, and what its processes need."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from support.plans import BODY, make_plan
from support.pools import POOL
from support.timelines import JOB

from pytest_distbench.read import stdout
from pytest_distbench.records.launch_files import LaunchFiles
from pytest_distbench.records.plan import (
    BodyReference,
    Command,
    Job,
    LaunchPlan,
    LaunchRequest,
    Pool,
    Ranks,
    Task,
    Work,
    Workplace,
)
from pytest_distbench.records.record import replace

SCRIPT = BodyReference(file="/repo/train.py", arguments=["--out={launch_dir}", "/repo/a.yaml", "--config=/repo/b.yaml"])
TASKS = {job.name: Task(body=BODY, params={"n": 1}, seeds=[index]) for index, job in enumerate(POOL.jobs)}
EACH = [
    Ranks(body=BODY, params={"a": 1}, seeds=[1, 2], attached=1),
    Command(words=["true"], makes_group=False),
    Job(body=BODY, job=JOB),
    Pool(sharing=POOL, tasks=TASKS),
]


@pytest.mark.parametrize("work", EACH, ids=lambda work: work.kind)
def test_a_plan_with_each_kind_is_read_back_as_it_was_written(tmp_path: Path, work: Work) -> None:
    plan = make_plan(tmp_path, work=work)
    plan.files.plan.write_bytes(msgspec.json.encode(plan))

    assert LaunchPlan.read_from(plan.files.plan) == plan


def test_a_plan_is_its_request_made_ready_and_leaves_out_nothing_of_it(tmp_path: Path) -> None:
    request = LaunchRequest(
        title="a/b",
        work=Command(words=["true"]),
        workplace=Workplace(folder="/x", is_mirrored=True, variables={"A": "1"}),
        read={"loss": stdout("loss (.*)")},
        world_size=3,
        backend="nccl",
        device="cuda",
        timeout_s=2.0,
    )
    plan = LaunchPlan.of(
        replace(request, title="b"), index=4, directory="d", data_dir="e", python_path=["p"], variables={"B": "2"}
    )

    assert {name: getattr(plan, name) for name in LaunchRequest.__struct_fields__} == {
        **{name: getattr(request, name) for name in LaunchRequest.__struct_fields__},
        "title": "b",
    }
    assert (plan.index, plan.files) == (4, LaunchFiles(Path("d")))


def test_a_plan_tells_what_can_be_expected_of_its_kind(tmp_path: Path) -> None:
    plan = make_plan(tmp_path)
    assert plan.expect(Ranks) == plan.expect(Task) == plan.work
    with pytest.raises(AssertionError, match="wanted Job, found Ranks"):
        plan.expect(Job)

    files = LaunchFiles(tmp_path)
    assert Ranks(body=BODY).processes(4) == 4
    assert Ranks(body=BODY, stands_for=3).processes(4) == 1
    assert (EACH[1].processes(4), EACH[1].outputs(4), EACH[1].logs(files, 4)) == (4, 1, [(0, files.log(0))])

    files = LaunchFiles(tmp_path)
    assert EACH[3].logs(files, 2) == [(slot, files.job(index).log(slot)) for index in (0, 1) for slot in (0, 1)]

    assert [work.kind for work in EACH] == ["ranks", "command", "job", "pool"]


def test_words_of_a_command_line_are_filled_and_paths_lead_elsewhere() -> None:
    script, command = Ranks(body=SCRIPT), Command(words=["/repo/run.sh", "--config=/repo/b.yaml", "-n"])

    assert script.with_words(str.upper).body.arguments[0] == "--OUT={LAUNCH_DIR}"
    there = script.with_files(lambda path: path.replace("/repo", "/tree")).body
    assert (there.file, there.arguments) == (
        "/tree/train.py",
        ["--out={launch_dir}", "/tree/a.yaml", "--config=/tree/b.yaml"],
    )
    assert command.with_files(lambda path: f"/tree{path}").words == [
        "/tree/repo/run.sh",
        "--config=/tree/repo/b.yaml",
        "-n",
    ]


def test_the_plan_of_a_job_of_a_pool_runs_its_task_in_a_folder_of_its_own(tmp_path: Path) -> None:
    plan = make_plan(tmp_path, work=EACH[3])
    part = plan.of_job(1)

    assert part.work == Job(body=BODY, params={"n": 1}, seeds=[1], job=POOL.jobs[1].job)
    assert (part.files, part.world_size) == (plan.files.job(1), POOL.jobs[1].job.most)
    assert replace(part, work=plan.work, directory=plan.directory, world_size=2) == plan
