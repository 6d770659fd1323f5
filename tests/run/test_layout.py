"""The layout over hosts is part of a case, where the user has said how."""

from __future__ import annotations

from pathlib import Path

from support.plans import make_plan

from pytest_distbench.launch.starters.contract import Engine
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.record import replace
from pytest_distbench.records.work import Command
from pytest_distbench.run.kinds import HERE
from pytest_distbench.run.layout import LayoutAround


def test_ranks_of_a_host_tell_cases_apart(tmp_path: Path) -> None:
    ranks = make_plan(tmp_path)
    command = replace(ranks, work=Command(words=["true"]))
    eight = LayoutAround(Engine(template="", ranks_per_node=8))

    assert eight.conditions(ranks) == {"ranks_per_node": "8"}
    assert eight.conditions(command) == {}  # its processes are started here
    assert LayoutAround(Engine(template="")).conditions(ranks) == {}
    assert LayoutAround(None).conditions(ranks) == {}


def test_a_record_stays_as_it_is(tmp_path: Path) -> None:
    record = LaunchRecord(index=0, outcome="passed", wall_s=1.0)
    around = LayoutAround(None)
    with around.during(make_plan(tmp_path), HERE) as witness:
        assert witness.describe(record) == record
    around.close()
