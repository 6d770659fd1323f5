"""Ranks that are children of the process that asks for them."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path

from support.plans import make_plan
from support.processes import wait_for

from pytest_distbench.launch.site.ranks import ChildRanks
from pytest_distbench.records.plan import LaunchPlan


def start(plan: LaunchPlan, rank: int, place: Mapping[str, str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(["sh", "-c", place["DOES"]])


def test_the_launch_has_ended_when_the_last_rank_has_and_tells_how_each_did(tmp_path: Path) -> None:
    started = ChildRanks({0: {"DOES": "exit 3"}, 1: {"DOES": "kill -9 $$"}}, start).start(make_plan(tmp_path))
    assert set(started.pids()) <= {0, 1}
    assert started.drivers() == []

    wait_for(lambda: started.poll() is not None)

    ended = started.poll()
    assert ended is not None
    assert ended.codes == {0: 3, 1: -9}
    assert started.pids() == {}
