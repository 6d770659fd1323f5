"""Launches whose processes met, in part, or not."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.plans import make_plan

from pytest_distbench.errors import RecordingError
from pytest_distbench.launch.diagnosis.membership import check_command
from pytest_distbench.records.record import replace
from pytest_distbench.records.work import Command

COMMAND = Command(words=["true"])


def test_a_command_of_which_only_some_processes_met_is_told(tmp_path: Path) -> None:
    plan = make_plan(tmp_path, world_size=4, work=COMMAND)
    for size in (0, 2):
        (tmp_path / f"joined{size}").touch()

    assert check_command(plan, gave_numbers=True) == ["the largest process group had 2 of 4 ranks"]


def test_one_process_need_not_meet_anybody(tmp_path: Path) -> None:
    assert check_command(make_plan(tmp_path, world_size=1, work=COMMAND), gave_numbers=False) == []


def test_who_says_that_there_is_no_group_is_believed(tmp_path: Path) -> None:
    plan = make_plan(tmp_path, work=COMMAND)
    with pytest.raises(RecordingError, match="no process of the command joined"):
        check_command(plan, gave_numbers=False)

    without = replace(plan, work=replace(COMMAND, makes_group=False))
    assert check_command(without, gave_numbers=False) == []
