"""What does a forecast itself take? Seconds and memory, by network and number of ranks.

    python benchmarks/forecast_cost.py

Steps are those of ``suites/forecast/gpt.py``, and of its network with 80 blocks, which has 17 billion parameters.
Seconds are of the whole run of pytest, memory of its largest process. Five minutes.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from pytest_distbench.report import layout
from pytest_distbench.units import format_bytes, format_seconds

GPT = Path(__file__).parents[1] / "suites" / "forecast" / "gpt.py"
NETWORKS: dict[str, dict[str, object]] = {
    "small, DDP": {"way": "ddp"},
    "2 blocks, FSDP2 without data": {"way": "fsdp"},
    "80 blocks, FSDP2 in each node without data": {"way": "hsdp", "blocks": 80},
}
SIZES = [64, 1024, 4096]


def cost(params: dict[str, object], ranks: int) -> tuple[float, int]:
    """Seconds and bytes of a run of pytest with one forecast."""
    wanted = {**params, "samples": 4, "is_weak": True}
    test = f"""
import pytest

@pytest.mark.world_size(1)
def test_step(forecast):
    forecast({f"{GPT}::train"!r}, worlds=[{ranks}], cluster="h100-ib400", params={wanted!r},
             fake_tensors={params["way"] != "ddp"})
"""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "pytest.ini").write_text("[pytest]\n")
        (folder / "test_step.py").write_text(test)
        began = time.monotonic()
        command = [sys.executable, "-m", "pytest", "-q", "--distbench-platform=any"]
        done = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True)
        assert done.stdout is not None
        told = done.stdout.read()
        _, status, used = os.wait4(done.pid, 0)
        if status:
            raise SystemExit(told)
        return time.monotonic() - began, used.ru_maxrss * 1024


def main() -> int:
    """Measure and print."""
    rows = []
    for name, params in NETWORKS.items():
        for ranks in SIZES:
            seconds, most = cost(params, ranks)
            rows.append([name, f"{ranks:,}", format_seconds(seconds), format_bytes(most)])
    print("\n".join(layout(("network", "ranks", "run", "memory"), rows, left=1)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
