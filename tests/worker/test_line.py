"""A rank's line, from the rank's side."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from support.plans import make_plan

from pytest_distbench.records.record import replace


@pytest.mark.spawn
def test_a_rank_that_cannot_reach_its_line_says_so_in_its_log_and_to_whoever_started_it(tmp_path: Path) -> None:
    """As one that was started on another host than its socket: before, it killed itself without a word."""
    plan = replace(
        make_plan(tmp_path, world_size=2),
        address=str(tmp_path / "elsewhere"),
        variables=dict(os.environ),
        python_path=sys.path,
    )
    plan.files.plan.write_bytes(msgspec.json.encode(plan))
    place = {"RANK": "1", "LOCAL_RANK": "0", "GROUP_RANK": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "pytest_distbench.worker", "rank", str(plan.files.plan)],
        env={**os.environ, **place},
        capture_output=True,
        text=True,
    )
    told = "cannot reach pytest: No such file or directory"

    assert done.returncode == 1
    assert f"rank 1 on {os.uname().nodename} {told}" in done.stderr
    assert told in plan.files.log(1).read_text()
