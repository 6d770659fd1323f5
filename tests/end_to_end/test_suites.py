"""What the shipped suites show without options, by what their tests say of themselves: nothing is measured here."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
SHOWN = {
    "test_all_reduce.py": "collectives",
    "test_buckets.py": "a shape of communication",
    "test_time_to_accuracy.py": "a time to accuracy",
    "test_transformer.py": "structure without clocks",
    "test_cycle.py": "an elastic change",
    "test_serving.py": "a serving",
}
MOST_S = 90


def test_the_first_picture_has_something_of_everything_within_ninety_seconds(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pytest", "suites", "--world-size=2", "--collect-only", "-m", "not full"]
    nothing_stored = [f"--distbench-baselines={tmp_path}", "-p", "no:cacheprovider"]
    told = subprocess.run([*command, *nothing_stored], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    lines = told.splitlines()

    missing = {what for file, what in SHOWN.items() if not any(line.strip() == f"<Module {file}>" for line in lines)}
    assert not missing
    [(seconds, rest)] = re.findall(r"^distbench: \d+ tests, about (\d+) s(.*)$", told, re.MULTILINE)
    assert int(seconds) <= MOST_S
    assert not rest, "each test of the suites says what it takes: @pytest.mark.distbench(takes=...)"
