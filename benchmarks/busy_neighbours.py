"""Is healthy code red because the machine became busy, and is the code's own load still found?

    python benchmarks/busy_neighbours.py [--runs 20] [--loops 8]

Stores baselines of a script, a sweep and a training of about a second each (``neighbours/``) on the machine as it is.
Then runs them again beside busy loops that come and go, each in a session of its own, as other people's work is: the
system shares the cores between sessions, so that eight loops of one session take no more than one. Printed per test:
how many runs were red; medians of what other processes did, in cores and in how many times as long the work took for
them; and the longest of its times over the stored. What was red is told on standard error.

Then what must be red: a body whose ranks start busy helpers and that takes 1.75 times as long, and one that takes three
times as long beside one busy loop. Healthy runs of them stand next to these.

On two virtual cores with load averages of 3 to 12 from other processes besides::

    injected                          test  runs  red  launches  cores of others  crowding  slowest
    8 busy loops come and go   test_script    10    0       4.0             1.61      5.07     2.05
    8 busy loops come and go    test_sweep    10    0       1.7             1.55      4.27     1.15
    8 busy loops come and go test_training    10    0       1.9             1.65      5.28     1.78
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from pytest_distbench.records.run import CaseResult
from pytest_distbench.report import layout
from pytest_distbench.store.files import read_run_record

PROJECT = Path(__file__).parent / "neighbours"
HEALTHY = ("test_script", "test_sweep", "test_training")
LONGEST_S = 4.0
"""That a loop computes, or pauses."""
HEADER = ("injected", "test", "runs", "red", "launches", "cores of others", "crowding", "slowest")


class Loops:
    """Busy loops, each computing and pausing for random times, or computing all the time."""

    def __init__(self, count: int, *, come_and_go: bool) -> None:
        self._over = threading.Event()
        self._threads = [
            threading.Thread(target=self._come_and_go if come_and_go else self._compute, args=(i,))
            for i in range(count)
        ]
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        """End them all."""
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _compute(self, _: int) -> None:
        with busy_loop():
            self._over.wait()

    def _come_and_go(self, _: int) -> None:
        dice = random.Random()
        while not self._over.is_set():
            with busy_loop():
                self._over.wait(dice.uniform(0, LONGEST_S))
            self._over.wait(dice.uniform(0, LONGEST_S))


@contextmanager
def busy_loop() -> Iterator[subprocess.Popen[bytes]]:
    """One process that computes for ever."""
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"], start_new_session=True)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@contextmanager
def beside(count: int, *, come_and_go: bool = True) -> Iterator[None]:
    """So many busy loops."""
    loops = Loops(count, come_and_go=come_and_go)
    try:
        yield
    finally:
        loops.end()


def run(folder: Path, tests: Sequence[str], *options: str, **variables: str) -> list[CaseResult]:
    """Run tests of the project once.

    Raises:
        SystemExit: they could not be run.
    """
    record = folder / "run.json"
    nodes = [f"{PROJECT / 'test_neighbours.py'}::{test}" for test in tests]
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--rootdir",
        str(PROJECT),
        "-c",
        os.devnull,
    ]
    command += ["--world-size", "2", f"--distbench-baselines={folder / 'baselines'}", f"--distbench-json={record}"]
    done = subprocess.run(
        [*command, *options, *nodes], env={**os.environ, **variables}, capture_output=True, text=True, check=False
    )
    if done.returncode not in (0, 1):
        raise SystemExit(f"pytest ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return read_run_record(record).results


def failures(result: CaseResult) -> list[str]:
    """What was red of a test, and why."""
    found = [f"{v.metric}: {v.kind} {v.ratio or 0:.2f} times; {v.reason}" for v in result.verdicts if v.is_failure]
    last = result.launches[-1]
    return found if last.outcome == "passed" else [*found, last.reason]


def row(planted: str, test: str, results: Sequence[CaseResult]) -> tuple[str, ...]:
    """Of the table."""
    launches = [launch for result in results for launch in result.launches]
    foreign = [launch.foreign_cores for launch in launches if launch.foreign_cores is not None]
    crowding = [launch.crowding for launch in launches if launch.crowding is not None]
    ratios = [v.ratio for r in results for v in r.verdicts if v.is_judged and v.unit == "s" and v.ratio]
    return (
        planted,
        test,
        str(len(results)),
        str(sum(bool(failures(result)) for result in results)),
        f"{len(launches) / len(results):.1f}",
        f"{statistics.median(foreign):.2f}" if foreign else "-",
        f"{statistics.median(crowding):.2f}" if crowding else "-",
        f"{max(ratios):.2f}" if ratios else "-",
    )


def measure(folder: Path, runs: int, loops: int) -> Iterator[tuple[str, ...]]:
    """The rows of the table, one after the other."""
    tell("storing baselines")
    run(folder, HEALTHY, "--distbench-update=new")
    found: Mapping[str, list[CaseResult]] = {test: [] for test in HEALTHY}
    for number in range(runs):
        tell(f"run {number + 1} of {runs} beside {loops} loops")
        with beside(loops):
            for test, result in zip(HEALTHY, run(folder, HEALTHY), strict=True):
                found[test].append(result)
                tell("    " + "  ".join(row("", test, [result])).strip())
                for line in failures(result):
                    tell(f"    {test}: {line}")
    for test, results in found.items():
        yield row(f"{loops} busy loops come and go", test, results)
    tell("storing the bodies' baselines")
    run(folder, ["test_body", "test_helpers"], "--distbench-update=all")
    cases: list[tuple[str, str, int, dict[str, str]]] = [
        ("nothing", "test_helpers", 0, {}),
        ("each rank starts a busy helper, 1.75 times as slow", "test_helpers", 0, {"HELPER": "1"}),
        ("nothing, beside one loop", "test_body", 1, {}),
        ("three times as slow, beside one loop", "test_body", 1, {"SLOWER": "3"}),
    ]
    for planted, test, count, variables in cases:
        tell(planted)
        results = []
        for _ in range(max(1, runs // 4)):
            with beside(count, come_and_go=False):
                results += run(folder, [test], **variables)
            for line in failures(results[-1]):
                tell(f"    {line}")
        yield row(planted, test, results)


def tell(text: str) -> None:
    """On standard error: standard output has the table alone."""
    print(text, file=sys.stderr, flush=True)


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20, help="beside the loops; a quarter of it of what is planted")
    parser.add_argument("--loops", type=int, default=8)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="neighbours-") as name:
        rows = list(measure(Path(name), options.runs, options.loops))
    print("\n".join(layout(HEADER, rows)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
