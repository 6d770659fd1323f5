"""Does the warm launcher measure what torchrun measures? An A/A test, interleaved, in one run.

    python benchmarks/launcher_agreement.py [--rounds 8] [--json FILE]

Every round launches the same body under warm, torchrun, warm, torchrun in random order, on 2 gloo ranks: all_reduce at
three sizes and a DistributedDataParallel training step. A launch's value is the 25th percentile of the maximum over
ranks. Printed per point: the medians, the ratio warm / torchrun, the ratio of two runs of the *same* launcher (what
chance alone does to a ratio), and the noise between launches (standard deviation of the logarithm).
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import sys
import tempfile
import uuid
from pathlib import Path

from measuring import launched

from pytest_distbench.launch.starters.contract import Launcher
from pytest_distbench.launch.starters.torchrun import TorchrunLauncher
from pytest_distbench.launch.starters.warm import WarmLauncher
from pytest_distbench.units import format_seconds


def launch(launcher: Launcher, folder: Path) -> dict[str, float]:
    """Seconds per point of one launch of ``bodies.points``."""
    record = launched(launcher, folder, "points")
    return {m.key: m.value for m in record.measurements if m.value is not None}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    random.seed(0)
    arms: dict[str, list[dict[str, float]]] = {"warm 1": [], "torchrun 1": [], "warm 2": [], "torchrun 2": []}
    with tempfile.TemporaryDirectory(prefix="distbench-") as name:
        folder = Path(name)
        launchers: dict[str, Launcher] = {
            "warm": WarmLauncher(folder, uuid.uuid4().hex),
            "torchrun": TorchrunLauncher(uuid.uuid4().hex),
        }
        launch(launchers["warm"], folder)  # its agent is up now
        for done in range(options.rounds):
            for arm in random.sample(sorted(arms), len(arms)):
                arms[arm].append(launch(launchers[arm.split()[0]], folder))
            print(f"round {done + 1}/{options.rounds}", file=sys.stderr)
        launchers["warm"].close()
    print_table(arms)
    if options.json:
        options.json.write_text(json.dumps(arms, indent=1))


def print_table(arms: dict[str, list[dict[str, float]]]) -> None:
    """One row per point."""
    header = ("warm", "torchrun", "ratio", "warm/warm", "tr/tr", "sd warm", "sd tr")
    print(f"{'point':<34}" + "".join(f"{h:>11}" for h in header))
    for point in arms["warm 1"][0]:
        values = {arm: [r[point] for r in rows] for arm, rows in arms.items()}
        middle = {arm: statistics.median(v) for arm, v in values.items()}
        both = {name: values[f"{name} 1"] + values[f"{name} 2"] for name in ("warm", "torchrun")}
        sd = {name: statistics.stdev(math.log(v) for v in found) for name, found in both.items()}
        warm, torchrun = statistics.median(both["warm"]), statistics.median(both["torchrun"])
        cells = (
            format_seconds(warm),
            format_seconds(torchrun),
            f"{warm / torchrun:.3f}",
            f"{middle['warm 1'] / middle['warm 2']:.3f}",
            f"{middle['torchrun 1'] / middle['torchrun 2']:.3f}",
            f"{sd['warm']:.3f}",
            f"{sd['torchrun']:.3f}",
        )
        print(f"{point:<34}" + "".join(f"{c:>11}" for c in cells))


if __name__ == "__main__":
    main()
