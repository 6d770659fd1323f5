"""Is CPU time, or the number of context switches, a quieter witness than the clock?

    python benchmarks/quiet_clocks.py [--launches 15] [--burn] [--json FILE]

Launches one body again and again on 2 gloo ranks: all_reduce at three sizes and a DistributedDataParallel step, each
iteration with its wall time, the CPU time of the rank's whole process (all threads) and its context switches.
Printed per point: the median over launches, and the noise between launches as standard deviation of the logarithm
(of a launch's 25th percentile; counts: standard deviation over mean of the launch's mean). With ``--burn`` every other
launch shares the machine with one busy process: the last columns say how far that alone moves each number.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Sequence
from pathlib import Path

from measuring import launched

from pytest_distbench.launch.warm import WarmLauncher
from pytest_distbench.units import format_quantity


def launch(launcher: WarmLauncher, folder: Path) -> dict[str, float]:
    """The number of each point and quantity in one launch of ``bodies.clocks``."""
    record = launched(launcher, folder, "clocks")
    numbers = {}
    for m in record.measurements:
        is_count = m.name in ("waits", "preemptions")
        value = m.summary.mean if is_count and m.summary is not None else m.value
        assert value is not None
        numbers[m.key] = value
    return numbers


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--launches", type=int, default=15)
    parser.add_argument("--burn", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    alone: list[dict[str, float]] = []
    crowded: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory(prefix="distbench-") as name:
        folder = Path(name)
        launcher = WarmLauncher(folder, uuid.uuid4().hex)
        launch(launcher, folder)  # its agent is up now
        for _ in range(options.launches):
            alone.append(launch(launcher, folder))
            if options.burn:
                burner = subprocess.Popen([sys.executable, "-c", "while True: pass"])
                try:
                    crowded.append(launch(launcher, folder))
                finally:
                    burner.kill()
                    burner.wait()
        launcher.close()
    print_table(alone, crowded)
    if options.json:
        options.json.write_text(json.dumps({"alone": alone, "crowded": crowded}, indent=1))


def print_table(alone: list[dict[str, float]], crowded: list[dict[str, float]]) -> None:
    """One row per point and quantity."""
    more = (f"{'beside a burner':>17}{'change':>9}{'sd':>8}") if crowded else ""
    print(f"{'quantity':<32}{'median':>12}{'sd':>8}{more}")
    for key in sorted(alone[0]):
        unit = "s" if "_s" in key.partition("[")[0] else "B" if key.startswith("peak") else ""
        values = [numbers[key] for numbers in alone]
        line = f"{key:<32}{format_quantity(statistics.median(values), unit):>12}{_noise(values):>8.3f}"
        if crowded:
            burnt = [numbers[key] for numbers in crowded]
            then, now = statistics.median(values), statistics.median(burnt)
            change = f"{now / then - 1:+.0%}" if then else "-"
            line += f"{format_quantity(now, unit):>17}{change:>9}{_noise(burnt):>8.3f}"
        print(line)


def _noise(values: Sequence[float]) -> float:
    """Standard deviation of the logarithm; of counts, which may be zero, relative to their mean."""
    if min(values) > 0:
        return statistics.stdev(math.log(v) for v in values)
    return statistics.stdev(values) / statistics.fmean(values) if any(values) else 0.0


if __name__ == "__main__":
    main()
