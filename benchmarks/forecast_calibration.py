"""How far off is ``forecast`` on this machine? Forecasts steps on real ranks, and measures them there.

    python benchmarks/forecast_calibration.py [--only 2 --only 2@1gbit] [--seed 0]

Ranks are 2, 4 and 8 on this host, and 2 on hosts of their own over a network of 1 Gbit/s and of 100 Mbit/s (root is
needed). In each place a sweep of three collectives becomes a cluster (``distbench cluster``); computing is measured on
one rank. Of five networks, three are drawn by lot: the largest error of their forecasts is the interval. Printed per
network, layout and place: the forecast, its bounds with all overlap and with none, the measured step, the error, and
whether it is within the interval; the other two networks are the test of it. Ranks beyond the cores share them, which
the model does not know: they are printed as such. Half an hour.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from pytest_distbench.records.kinds import median
from pytest_distbench.records.run import CaseResult
from pytest_distbench.report import layout
from pytest_distbench.store.files import read_run_record
from pytest_distbench.units import format_change, format_percent, format_seconds

BODIES = Path(__file__).parent / "forecasting" / "calibrated.py"
MODELS = ["wide", "deep", "normed", "attention", "convolutional"]
LAYOUTS = ["ddp", "fsdp", "tp"]
PLACES = ["2", "4", "8", "2@1gbit", "2@100mbit"]
"""Ranks, and the network between their hosts."""
SWEEP = """
import pytest

@pytest.mark.parametrize("collective", ["all_reduce", "all_gather", "reduce_scatter"])
def test_sweep(collective_sweep, collective):
    collective_sweep(collective, sizes=[2**k for k in range(10, 24, 2)], iterations=30, warmup=5)
"""
STEPS = f"""
import pytest

@pytest.mark.parametrize("layout", {LAYOUTS!r})
@pytest.mark.parametrize("model", {MODELS!r})
def test_step(forecast, distbench, model, layout):
    params = {{"model": model, "layout": layout}}
    distbench.measure({f"{BODIES}::train"!r}, params=params, name="real", launches=2)
    worlds = [distbench.world_size]
    forecast({f"{BODIES}::train"!r}, worlds=worlds, cluster="mine.toml", params=params, name="forecast", launches=2)
"""
_TITLE = re.compile(r"test_step\[(\w+)-(\w+)-ws\d+[^:]*:(real|forecast)")


def run(folder: Path, name: str, text: str, *options: str) -> list[CaseResult]:
    """The cases of a test file."""
    (folder / f"test_{name}.py").write_text(text)
    record = folder / f"{name}.json"
    command = [sys.executable, "-m", "pytest", "-q", f"test_{name}.py", f"--distbench-json={record}", *options]
    done = subprocess.run(command, cwd=folder, check=False, capture_output=True, text=True)
    if not record.is_file():
        raise SystemExit(done.stdout + done.stderr)
    return read_run_record(record).results


def value(result: CaseResult, key: str) -> float:
    """The median over launches."""
    found = median(each.value for launch in result.launches for each in launch.measurements if each.key == key)
    if found is None:
        raise SystemExit(f"{result.case.title} has no {key}: {result.headline or result.outcome}")
    return found


def fact(result: CaseResult, key: str, name: str) -> float:
    """The same of a fact."""
    facts = [each.facts[name] for launch in result.launches for each in launch.measurements if each.key == key]
    return float(median(float(each) for each in facts) or 0.0)


def steps(folder: Path, ranks: int, network: str) -> dict[tuple[str, str], tuple[float, float, float, float]]:
    """By network and layout: the measured step, the forecast, and its bounds."""
    options = [f"--world-size={ranks}", *([f"--distbench-network={network}"] if network else [])]
    run(folder, "sweep", SWEEP, *options)
    command = [sys.executable, "-m", "pytest_distbench", "cluster", "sweep.json", "--ranks-per-node=64"]
    made = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout
    (folder / "mine.toml").write_text(made)
    print(f"\n{made.partition(chr(10))[0]}")
    found: dict[tuple[str, str], dict[str, CaseResult]] = {}
    for result in run(folder, "step", STEPS, *options):
        if (match := _TITLE.match(result.case.title)) is not None:
            found.setdefault((match[1], match[2]), {})[match[3]] = result
    key = f"step_forecast[ranks={ranks}]"
    return {
        name: (
            value(both["real"], "step"),
            value(both["forecast"], key),
            fact(both["forecast"], key, "least_s"),
            fact(both["forecast"], key, "most_s"),
        )
        for name, both in found.items()
    }


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", action="append", choices=PLACES, metavar="PLACE", help=", ".join(PLACES))
    parser.add_argument("--seed", type=int, default=0, help="of the lot")
    given = parser.parse_args()
    drawn = random.Random(given.seed).sample(MODELS, 3)
    cores = len(os.sched_getaffinity(0))
    for place in given.only or PLACES:
        count, _, network = place.partition("@")
        ranks = int(count)
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            (folder / "pytest.ini").write_text("[pytest]\n")
            found = steps(folder, ranks, network)
        errors = {key: forecast / real - 1 for key, (real, forecast, _, _) in found.items()}
        interval = max(abs(error) for (model, _), error in errors.items() if model in drawn)
        rows = [
            [
                *key,
                format_seconds(forecast),
                f"{format_seconds(least)} to {format_seconds(most)}",
                format_seconds(real),
                format_change(forecast / real),
                "sets it" if key[0] in drawn else "within" if abs(errors[key]) <= interval else "OUTSIDE",
            ]
            for key, (real, forecast, least, most) in found.items()
        ]
        where = f" over {network}" if network else f", which share {cores} cores" if ranks > cores else ""
        print(f"{ranks} ranks{where}; interval: {format_percent(interval)}, of {', '.join(sorted(drawn))}")
        print("\n".join(layout(("network", "layout", "forecast", "bounds", "measured", "error", ""), rows, left=2)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
