"""One launch below a guardian: what it is given, what it leaves, and what is shown meanwhile."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from support.plans import ended, make_plan

from pytest_distbench.launch.controlled import Controlled, TimelineFollower, controller_problem
from pytest_distbench.launch.supervise import Side
from pytest_distbench.records.environment import Load
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.plan import Command, LaunchPlan
from pytest_distbench.records.record import replace


@pytest.fixture
def plan(tmp_path: Path) -> LaunchPlan:
    directory, project = tmp_path / "launch", tmp_path / "project"
    directory.mkdir()
    project.mkdir()
    return make_plan(
        directory,
        folder=str(project),
        own_variables={"MINE": "{seed}"},
        work=Command(words=["true"], seeds=[7]),
        timeout_s=60.0,
        variables=dict(os.environ),
    )


@pytest.mark.spawn
def test_the_plan_is_for_this_user_alone_and_gone_at_the_end_with_no_secret_in_it(plan: LaunchPlan) -> None:
    launch = Controlled(plan, Side(), observes=False, is_ours=True)
    path = str(plan.files.plan)
    code = f"import os; print(oct(os.stat({path!r}).st_mode), open({path!r}).read(), os.environ['MINE'])"
    end = launch.run([sys.executable, "-c", code])
    printed = plan.files.log(0).read_text()

    assert end.code == 0
    assert printed.startswith("0o100600 ")
    assert '"variables":{}' in printed
    assert printed.endswith(" 7\n")
    assert not plan.files.plan.exists()


@pytest.mark.parametrize(("observes", "is_ours", "path"), [(False, True, ["/a"]), (True, False, ["/mine"])])
def test_a_module_of_ours_is_found_where_the_plan_says_and_a_program_of_the_users_as_ever(
    plan: LaunchPlan, observes: bool, is_ours: bool, path: list[str]
) -> None:
    plan = replace(plan, python_path=["/a"], variables={"PYTHONPATH": "/mine", "PYTHONUNBUFFERED": "0"})
    variables = Controlled(plan, Side(), observes=observes, is_ours=is_ours).plan.variables
    first, *rest = variables["PYTHONPATH"].split(os.pathsep)

    assert ([first, *rest] == path) if not observes else (first.endswith("site") and rest == path)
    assert variables["PYTHONUNBUFFERED"] == "0"  # the user's goes before ours
    assert ("PYTHONFAULTHANDLER" in variables) is observes


def test_each_launch_has_a_cookie_of_its_own(tmp_path: Path) -> None:
    found = set()
    for number in range(2):
        directory = tmp_path / str(number)
        directory.mkdir()
        launch = Controlled(make_plan(directory), Side(), observes=False, is_ours=True)
        found.add(launch.plan.variables["DISTBENCH_SESSION"])

    assert len(found) == 2


@pytest.mark.spawn
def test_the_record_has_leftover_files_and_the_load_of_other_processes(plan: LaunchPlan) -> None:
    launch = Controlled(plan, Side(), observes=True, is_ours=False)
    end = launch.run(["touch", "left.txt"])
    record = launch.complete(LaunchRecord(index=0, outcome="passed", wall_s=1.0, remarks=["first"]), end)

    assert record.remarks[0] == "first"
    assert record.remarks[1].startswith("left left.txt in ")
    assert isinstance(end.load, Load)
    assert record.foreign_cores == end.load.foreign_cores


def test_a_timeline_is_shown_line_by_line_up_to_its_end() -> None:
    lines, shown = [["a", ""], [], ["b"]], []
    follower = TimelineFollower(lambda: lines.pop(0), str.upper, shown.append)
    follower.poll()
    follower.poll()
    follower.finish()

    assert shown == ["A", "B"]


def test_a_controller_that_did_not_end_normally_is_reported(tmp_path: Path) -> None:
    plan = make_plan(tmp_path)
    plan.files.log(0).write_text("Traceback: no store\n")

    assert controller_problem(plan, "pool", ended()) == ""
    assert (
        controller_problem(plan, "pool", ended(timed_out=True)) == "the pool had not ended after 20.0 s, and was ended"
    )
    died = "the controller of the pool ended with exit code 1; its log:\nTraceback: no store"
    assert controller_problem(plan, "pool", ended(code=1)) == died
    plan.files.trouble.write_text("job B: it hangs")
    assert controller_problem(plan, "pool", ended(code=1)) == "job B: it hangs"
