"""What having pytest-distbench installed costs a pytest run that does not use it.

    python benchmarks/plugin_overhead.py [--repeats 25]

Runs one empty test with and without the plugin (``-p no:distbench``), interleaved, and prints CPU time (user and
system) and wall time of the whole process, medians and minima, and the difference between two runs of the same kind,
which is what noise alone does. On a busy machine the minimum of the CPU time says most.
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
    parser.add_argument("--repeats", type=int, default=25)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "test_empty.py").write_text("def test_empty():\n    pass\n")
        kinds = {"with": [], "without": ["-p", "no:distbench"], "without again": ["-p", "no:distbench"]}
        run(folder)  # byte code is cached now, where caching is on
        rounds = [{kind: run(folder, *arguments) for kind, arguments in kinds.items()} for _ in range(options.repeats)]
    print(f"{'ms':<16}{'CPU median':>12}{'CPU min':>12}{'wall median':>12}{'wall min':>12}")
    rows = {
        kind: [f(r[kind][i] for r in rounds) * 1e3 for i in (0, 1) for f in (statistics.median, min)] for kind in kinds
    }
    rows["difference"] = [a - b for a, b in zip(rows["with"], rows["without"], strict=True)]
    rows["noise (A/A)"] = [a - b for a, b in zip(rows["without again"], rows["without"], strict=True)]
    for kind, cells in rows.items():
        print(f"{kind:<16}" + "".join(f"{c:>12.1f}" for c in cells))


if __name__ == "__main__":
    main()
