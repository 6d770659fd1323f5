"""What the shipped suites show without options; and what needs one rank."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SHOWN = {
    "test_all_reduce.py": "collectives",
    "test_buckets.py": "a shape of communication",
    "test_time_to_accuracy.py": "a time to accuracy",
    "test_transformer.py": "structure without clocks",
    "test_cycle.py": "an elastic change",
    "test_serving.py": "a serving",
}


@pytest.mark.spawn
@pytest.mark.timeout(300)
def test_the_collectives_pass_on_one_rank_which_is_what_one_gpu_has(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pytest", "suites/collectives", "--world-size=1", "-rs", "-p", "no:cacheprovider"]
    short = ["--distbench-max-message=4KiB", "--distbench-launches=1", "--distbench-max-launches=1"]
    chosen = ["-k", "not mlbench and not nccl_tests", f"--distbench-baselines={tmp_path}", "-o", "filterwarnings="]
    done = subprocess.run([*command, *short, *chosen], cwd=ROOT, check=False, capture_output=True, text=True)

    assert done.returncode == 0, done.stdout
    assert "send_recv needs 2 ranks: its group has 1" in done.stdout


def test_the_first_picture_has_something_of_everything(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pytest", "suites", "--world-size=2", "--collect-only", "-m", "not full"]
    nothing_stored = [f"--distbench-baselines={tmp_path}", "-p", "no:cacheprovider"]
    told = subprocess.run([*command, *nothing_stored], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    lines = told.splitlines()

    missing = {what for file, what in SHOWN.items() if not any(line.strip() == f"<Module {file}>" for line in lines)}
    assert not missing
