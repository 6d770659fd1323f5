"""What having pytest-distbench installed costs a pytest run that does not use it.

    python benchmarks/plugin_overhead.py [--repeats 60]

Runs one empty test with and without the plugin (``-p no:distbench``) in turns, each turn in another order, and prints
CPU time (user and system) and wall time of the whole process. The difference is the median over the turns of what the
two runs of one turn differ by, which load that lasts longer than a turn does not touch; plus or minus is its standard
error. The noise is the same between two runs without the plugin.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path


def run(folder: Path, *arguments: str) -> tuple[float, float]:
    """CPU seconds and wall seconds of one pytest process."""
    start = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments],
        cwd=folder,
        stdout=subprocess.DEVNULL,
    )
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"pytest ended with {process.returncode}")
    return used.ru_utime + used.ru_stime, time.perf_counter() - start


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=60)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "test_empty.py").write_text("def test_empty():\n    pass\n")
        kinds = {"with": [], "without": ["-p", "no:distbench"], "without again": ["-p", "no:distbench"]}
        run(folder)  # byte code is cached now, where caching is on
        turns = []
        for turn in range(options.repeats):
            order = [*kinds, *kinds][turn % len(kinds) :][: len(kinds)]
            turns.append({kind: run(folder, *kinds[kind]) for kind in order})
    print(f"{'ms, median':<16}{'CPU':>16}{'wall':>16}")
    for kind in kinds:
        print(f"{kind:<16}" + "".join(f"{statistics.median(t[kind][i] for t in turns) * 1e3:>16.1f}" for i in (0, 1)))
    for label, other in (("difference", "with"), ("noise (A/A)", "without again")):
        cells = [middle([t[other][i] - t["without"][i] for t in turns]) for i in (0, 1)]
        print(f"{label:<16}" + "".join(f"{cell:>16}" for cell in cells))


def middle(seconds: list[float]) -> str:
    """Median and its standard error, in ms: 1.2533 standard deviations over the root of the count, from quartiles."""
    low, median, high = statistics.quantiles(seconds, n=4)
    error = 1.2533 * (high - low) / 1.349 / len(seconds) ** 0.5
    return f"{median * 1e3:.1f} +- {error * 1e3:.1f}"


if __name__ == "__main__":
    main()
