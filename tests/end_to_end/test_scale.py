"""The benchmark of many ranks runs, and says what of it is simulated."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.spawn, pytest.mark.nightly]

SCALE = Path(__file__).parents[2] / "benchmarks" / "scale.py"


def test_simulated_ranks_pass_through_the_real_line_and_a_store_has_real_clients() -> None:
    done = subprocess.run(
        [sys.executable, str(SCALE), "--ranks", "20,64", "--clients", "32"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    first, _, _, *rows = done.stdout.splitlines()
    assert first.startswith("simulated ranks, 8 a host")
    assert [row.split()[:2] for row in rows[:2]] == [["20", "3"], ["64", "8"]]
    assert "store, 32 real clients" in done.stdout
