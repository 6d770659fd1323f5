"""How much slower does other work on the machine make a measurement, and how much of that does the rule excuse?

    python benchmarks/busy_machine.py [--launches 10] [--loops 1 2 4 8]

Launches one body on 2 gloo ranks, in random order alone on the machine and beside busy loops: plain Python, all_reduce
at three sizes and a DistributedDataParallel step. Printed per number of loops and point:

- *others*: cores that other processes used more than beside no loop (median over launches);
- *slower*: the fast side of a launch over that of the launches alone, median; *slowest*: of the slowest launch;
- *excused*: the slowdown below which a regression is called inconclusive;
- red runs of the same code, were nothing excused, and as it is: all of these are false;
- red runs when the code became 5 and 20 times slower besides.

A run is judged against the launches alone, as the plugin does: more launches while the answer is open.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from decision_rules import COMPARISONS, TOLERANCE
from measuring import launched

from pytest_distbench.judging.metric import Circumstances, judge
from pytest_distbench.judging.stored_rule import Side
from pytest_distbench.launch.warm import WarmLauncher
from pytest_distbench.machine.hardware import cores
from pytest_distbench.machine.locks import alone_on_this_host
from pytest_distbench.records.baseline import BaselineMetric
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.metric import Measurement
from pytest_distbench.records.record import replace
from pytest_distbench.report.layout import layout

PLANTED = (5.0, 20.0)
RUNS = 100
"""Runs that are drawn from the launches, for a share of red ones."""

HEADER = (
    "loops",
    "point",
    "others",
    "slower",
    "slowest",
    "excused",
    "red: nothing excused",
    "as it is",
    *(f"x {factor:g}" for factor in PLANTED),
)


@dataclass(frozen=True)
class Sample:
    """One metric in one launch, and the cores that other processes used meanwhile."""

    measurement: Measurement
    foreign_cores: float

    @property
    def fast(self) -> float:
        """Logarithm of the launch's fast side."""
        [value] = Side.of_measurements([self.measurement], timed=True).fast
        return value

    def slowed(self, factor: float) -> Sample:
        """As if each iteration had taken this many times longer."""
        summary = self.measurement.summary
        assert summary is not None
        made = replace(summary, minimum=summary.minimum * factor, p25=summary.p25 * factor, p95=summary.p95 * factor)
        return Sample(replace(self.measurement, value=made.p25, summary=made), self.foreign_cores)


def samples(record: LaunchRecord) -> dict[str, Sample]:
    """By point."""
    assert record.foreign_cores is not None  # the body runs for seconds
    return {m.key: Sample(m, record.foreign_cores) for m in record.measurements if m.summary is not None}


def rule(alone: Sequence[Sample], run: Sequence[Sample], *, most: int, excuses: bool) -> Circumstances:
    """As the plugin makes it for these launches."""
    then, now = (statistics.median(s.foreign_cores for s in side) for side in (alone, run))
    return Circumstances(
        tolerance=TOLERANCE,
        comparisons=COMPARISONS,
        max_launches=most,
        busier_cores=now - then if excuses else 0.0,
        cores=cores(),
    )


def is_red(alone: Sequence[Sample], run: Sequence[Sample], *, excuses: bool) -> bool:
    """Whether a run of these launches regressed against those alone."""
    summaries = [s.measurement.summary for s in alone if s.measurement.summary is not None]
    baseline = BaselineMetric(
        better="lower",
        unit="s",
        launches=[s.p25 for s in summaries],
        minimum=[s.minimum for s in summaries],
        p95=[s.p95 for s in summaries],
    )
    for count in range(1, len(run) + 1):
        seen = run[:count]
        terms = rule(alone, seen, most=len(run), excuses=excuses)
        judgement = judge([s.measurement for s in seen], baseline, terms)
        if not judgement.is_open:
            break
    return judgement.verdict.kind == "regressed"


def red_share(
    alone: Sequence[Sample], beside: Sequence[Sample], *, seed: int, excuses: bool = True, planted: float = 1.0
) -> float:
    """Share of red runs among :data:`RUNS`, each of these launches in another order.

    Args:
        alone: launches with nothing beside.
        beside: launches beside loops.
        seed: of the orders.
        excuses: whether other work is one.
        planted: how many times slower the code became.
    """
    dice = random.Random(seed)
    slowed = [s.slowed(planted) for s in beside]
    runs = [dice.sample(slowed, len(slowed)) for _ in range(RUNS)]
    return statistics.fmean(is_red(alone, run, excuses=excuses) for run in runs)


def row(point: str, loops: int, alone: Sequence[Sample], beside: Sequence[Sample]) -> tuple[str, ...]:
    """Of the table."""
    then = statistics.median(s.fast for s in alone)
    slower = sorted(math.exp(s.fast - then) for s in beside)
    terms = rule(alone, beside, most=len(beside), excuses=True)
    shares = [
        red_share(alone, beside, seed=loops, excuses=False),
        red_share(alone, beside, seed=loops),
        *(red_share(alone, beside, seed=loops, planted=factor) for factor in PLANTED),
    ]
    return (
        str(loops),
        point,
        f"{terms.busier_cores:.2f}",
        f"{statistics.median(slower):.2f}",
        f"{slower[-1]:.2f}",
        f"{math.exp(terms.explained_by_others):.1f}",
        *(f"{share:.0%}" for share in shares),
    )


@contextmanager
def busy_loops(count: int) -> Iterator[None]:
    """So many processes that compute for ever."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def measure(loops: Sequence[int], launches: int) -> dict[int, list[dict[str, Sample]]]:
    """Number of loops -> the samples of each launch beside them.

    Raises:
        SystemExit: a launch failed.
    """
    order = [count for count in (0, *loops) for _ in range(launches)]
    random.Random(0).shuffle(order)
    found: dict[int, list[dict[str, Sample]]] = {}
    with tempfile.TemporaryDirectory(prefix="distbench-") as name, alone_on_this_host(on_wait=tell):
        launcher = WarmLauncher(Path(name), uuid.uuid4().hex)
        try:
            launched(launcher, Path(name), "barrier")  # its agent is up now
            for i, count in enumerate(order):
                tell(f"launch {i + 1} of {len(order)}, beside {count} loops")
                with busy_loops(count):
                    found.setdefault(count, []).append(samples(launched(launcher, Path(name), "plain_and_points")))
        finally:
            launcher.close()
    return found


def tell(text: str) -> None:
    """On standard error: standard output has the table alone."""
    print(text, file=sys.stderr)


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--launches", type=int, default=10, help="alone, and beside each number of loops (default: 10)")
    parser.add_argument("--loops", type=int, nargs="+", default=[1, 2, 4, 8], metavar="N")
    options = parser.parse_args()
    if options.launches < 3 or min(options.loops) < 1:
        parser.error(f"wanted at least 3 launches and 1 loop, found {options.launches} and {options.loops}")
    found = measure(options.loops, options.launches)
    alone = found.pop(0)
    rows = [
        row(point, count, [s[point] for s in alone], [s[point] for s in launches])
        for count, launches in sorted(found.items())
        for point in alone[0]
    ]
    print("\n".join(layout(HEADER, rows)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
