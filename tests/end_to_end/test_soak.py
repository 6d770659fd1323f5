"""The soak that ships as a benchmark, in small: faults drawn at random, and runs killed at random moments."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from support.slurm_cluster import command_of, why_not

pytestmark = [pytest.mark.spawn, pytest.mark.nightly, pytest.mark.timeout(600)]

SOAK = [sys.executable, str(Path(__file__).parents[2] / "benchmarks" / "soak.py"), "--launches=16", "--kills=2"]


def check(command: Sequence[str]) -> None:
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout + done.stderr
    assert "launches wrong: 0, baselines damaged: 0" in done.stdout
    left = "processes 0, sockets 0, semaphores 0, shared memory 0, temporary folders 0"
    assert f"left behind: {left}" in done.stdout


def test_every_fault_is_attributed_and_nothing_is_left_or_damaged() -> None:
    check([*SOAK, "--seed=1"])


@pytest.mark.skipif(bool(why_not()), reason=f"no Slurm here: {why_not()}")
def test_nodes_may_die_and_networks_part() -> None:
    check(command_of(4, ["salloc", "-Q", "--no-kill", "--nodes=4", *SOAK, "--seed=1", "--launcher=slurm"]))
