"""Does a launcher that forks ranks measure what one measures that starts interpreters? An A/A test, in one run.

    python benchmarks/launcher_agreement.py [--rounds 8] [--json FILE]
    salloc --nodes=2 python benchmarks/launcher_agreement.py --launchers slurm slurm-cold      # on the nodes of a Slurm

Every round launches the same body under one, the other, one, the other in random order, on 2 gloo ranks: all_reduce at
three sizes and a DistributedDataParallel training step. A launch's value is the 25th percentile of the maximum over
ranks. Printed per point: the medians, their ratio, the ratio of two runs of the *same* launcher (what chance alone does
to a ratio), and the noise between launches (standard deviation of the logarithm).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import random
import statistics
import sys
import tempfile
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

from measuring import launched

from pytest_distbench.launch.starters.contract import Launcher
from pytest_distbench.launch.starters.table import LAUNCHERS, LauncherSetup
from pytest_distbench.units import format_seconds

Arm = tuple[str, int]
"""A launcher, and which of its two runs."""


def launch(launcher: Launcher, folder: Path) -> dict[str, float]:
    """Seconds per point of one launch of ``bodies.points``."""
    record = launched(launcher, folder, "points")
    return {m.key: m.value for m in record.measurements if m.value is not None and m.unit == "s"}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--launchers", nargs=2, choices=sorted(LAUNCHERS), default=("warm", "torchrun"))
    options = parser.parse_args()
    random.seed(0)
    arms: dict[Arm, list[dict[str, float]]] = {(name, turn): [] for turn in (1, 2) for name in options.launchers}
    with tempfile.TemporaryDirectory(prefix="distbench-") as made, contextlib.ExitStack() as stack:
        folder = Path(made)
        launchers: dict[str, Launcher] = {}
        for name in options.launchers:
            setup = LauncherSetup(directory=folder, session=uuid.uuid4().hex)
            launchers[name] = LAUNCHERS[name].make(setup)
            stack.callback(launchers[name].close)
            launch(launchers[name], folder)  # what it keeps is up now
        for done in range(options.rounds):
            for name, turn in random.sample(sorted(arms), len(arms)):
                arms[name, turn].append(launch(launchers[name], folder))
            print(f"round {done + 1}/{options.rounds}", file=sys.stderr)
    print_table(arms, options.launchers)
    if options.json:
        options.json.write_text(json.dumps({f"{name} {turn}": found for (name, turn), found in arms.items()}, indent=1))


def print_table(arms: Mapping[Arm, list[dict[str, float]]], launchers: Sequence[str]) -> None:
    """One row per point."""
    one, other = launchers
    header = (one, other, "ratio", *(f"{name}/same" for name in launchers), *(f"sd {name}" for name in launchers))
    width = max(11, *(len(text) + 2 for text in header))
    print(f"{'point':<34}" + "".join(f"{text:>{width}}" for text in header))
    for point in arms[one, 1][0]:
        values = {arm: [row[point] for row in rows] for arm, rows in arms.items()}
        both = {name: values[name, 1] + values[name, 2] for name in launchers}
        middle = {name: statistics.median(found) for name, found in both.items()}
        same = {name: statistics.median(values[name, 1]) / statistics.median(values[name, 2]) for name in launchers}
        sd = {name: statistics.stdev(map(math.log, found)) for name, found in both.items()}
        cells = (
            *(format_seconds(middle[name]) for name in launchers),
            f"{middle[one] / middle[other]:.3f}",
            *(f"{same[name]:.3f}" for name in launchers),
            *(f"{sd[name]:.3f}" for name in launchers),
        )
        print(f"{point:<34}" + "".join(f"{cell:>{width}}" for cell in cells))


if __name__ == "__main__":
    main()
