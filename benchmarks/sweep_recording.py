"""Record launches of a sweep, for decision rules to be tried on (``verdict_rules.py --sweeps``).

    python benchmarks/sweep_recording.py OUT.parquet --stretch NAME [--launches 60] [--collective all_reduce]

Each launch sweeps 4 B to 64 MiB (float32, 2 gloo ranks) as the suite does. One row per launch and size: the 25th
percentile, the fastest iteration and the 95th percentile. A file that is there is added to: give every stretch of time
a name of its own, and record them under different load, as the machine has it.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path

import pandas as pd
from measuring import tried

from pytest_distbench.launch.warm import WarmLauncher
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.plan import BodyReference
from pytest_distbench.workloads import sweep
from pytest_distbench.workloads.protocol import power_of_two_sizes

BURN = """
import time
while True:
    until = time.monotonic() + 1
    while time.monotonic() < until:
        pass
    time.sleep(1)
"""

SIZES = power_of_two_sizes(4, 2**26)


def rows(record: LaunchRecord, stretch: str, launch: int) -> list[dict[str, object]]:
    """What is kept of a launch."""
    return [
        {
            "stretch": stretch,
            "launch": launch,
            "size": m.at["message_bytes"],
            "p25": m.summary.p25,
            "minimum": m.summary.minimum,
            "p95": m.summary.p95,
        }
        for m in record.measurements
        if m.name == "latency" and m.summary is not None
    ]


def main() -> int:
    """Record and write, after every launch."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--stretch", required=True)
    parser.add_argument("--launches", type=int, default=60)
    parser.add_argument("--collective", default="all_reduce")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after these")
    parser.add_argument("--burn", action="store_true", help="beside a process that computes every other second")
    options = parser.parse_args()
    found = pd.read_parquet(options.out) if options.out.exists() else pd.DataFrame()
    body = BodyReference(file=str(Path(sweep.__file__)), function="collective_sweep")
    params = {
        "collective": options.collective,
        "dtype": "float32",
        "sizes": SIZES,
        "iterations": None,
        "warmup": 5,
        "cache": "rotate",
    }
    end = time.monotonic() + options.seconds
    with tempfile.TemporaryDirectory(prefix="distbench-") as name:
        launcher = WarmLauncher(Path(name), uuid.uuid4().hex)
        burner = subprocess.Popen([sys.executable, "-c", BURN]) if options.burn else None
        try:
            for launch in range(options.launches):
                if time.monotonic() > end:
                    break
                record = tried(launcher, Path(name), body, params=params)
                if record.outcome != "passed":
                    raise SystemExit(record.reason)
                found = pd.concat([found, pd.DataFrame(rows(record, options.stretch, launch))], ignore_index=True)
                found.to_parquet(options.out)
                print(f"{options.stretch}: launch {launch + 1}, {record.wall_s:.1f} s", file=sys.stderr)
        finally:
            launcher.close()
            if burner is not None:
                burner.kill()
                burner.wait()
    return 0


if __name__ == "__main__":
    sys.exit(main())
