"""The soak that ships as a benchmark, in small: faults drawn at random, and runs killed at random moments."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SOAK = Path(__file__).parents[2] / "benchmarks" / "soak.py"


@pytest.mark.spawn
@pytest.mark.timeout(600)
def test_every_fault_is_attributed_and_nothing_is_left_or_damaged() -> None:
    command = [sys.executable, str(SOAK), "--launches=16", "--kills=2", "--seed=1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout + done.stderr
    assert "launches wrong: 0, baselines damaged: 0" in done.stdout
    left = "processes 0, sockets 0, semaphores 0, shared memory 0, temporary folders 0"
    assert f"left behind: {left}" in done.stdout
