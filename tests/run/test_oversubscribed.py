"""More ranks than cores: their clocks are shown, and the case says so."""

from __future__ import annotations

from pathlib import Path

from support.plans import make_plan

from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.metric import Measurement
from pytest_distbench.records.record import replace
from pytest_distbench.run.kinds import HERE
from pytest_distbench.run.oversubscribed import OversubscribedAround

STEP = Measurement(name="step", unit="s", better="lower", value=1.0)
LOSS = Measurement(name="loss", unit="", better="same", value=1.0)
PASSED = LaunchRecord(index=0, outcome="passed", wall_s=1.0, measurements=[STEP, LOSS])


def test_clocks_of_ranks_that_share_cores_become_information(tmp_path: Path) -> None:
    plan = replace(make_plan(tmp_path), cores=2)
    around = OversubscribedAround()
    with around.during(plan, HERE) as witness:
        assert [m.better for m in witness.describe(PASSED).measurements] == ["info", "same"]
    assert around.conditions(plan) == {"oversubscribed": "2-cores"}


def test_with_a_core_for_each_nothing_changes(tmp_path: Path) -> None:
    around = OversubscribedAround()
    with around.during(make_plan(tmp_path), HERE) as witness:
        assert witness.describe(PASSED) == PASSED
    assert around.conditions(make_plan(tmp_path)) == {}
