"""Why the launches of a case do not follow each other in one breath: false alarms by how far apart they begin.

    python benchmarks/launch_spacing.py [--seconds 350] [--trials 1500] [--seed 0]

Launches two short loops of all_reduce (4 KB and 1 MiB, 2 gloo ranks) without a pause while other processes come and
go: one or two busy ones for 1 to 8 seconds, then none for as long. Then judges unchanged code by our rule, as a run
that makes one comparison does: ten launches as the baseline and up to ten as the run, both taken every so many
seconds out of the recording, at places that do not overlap. Also at the error rate of 2 % that such a run would have
if its single comparison used up all of it (see ``BASELINE_ERROR_RATE``).
"""

from __future__ import annotations

import argparse
import itertools
import math
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from measuring import launched

from pytest_distbench.judging.stats import BASELINE_ERROR_RATE, RUN_ERROR_RATE
from pytest_distbench.judging.stored_rule import Comparison
from pytest_distbench.launch.warm import WarmLauncher
from pytest_distbench.records.baseline import BaselineMetric
from pytest_distbench.records.metric import Measurement
from pytest_distbench.records.record import replace
from pytest_distbench.report.texts.layout import layout

LAUNCHES = 10
SPACINGS_S = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0)
TOLERANCE = 0.1
SLOWDOWNS = (1.5, 2.0)


@dataclass(frozen=True)
class Recorded:
    """One launch: when it began, in seconds, and its metrics by key."""

    at: float
    metrics: dict[str, Measurement]


def record(seconds: float) -> list[Recorded]:
    """Launch for so long, beside processes that come and go."""
    found: list[Recorded] = []
    over = threading.Event()
    load = threading.Thread(target=_come_and_go, args=(over,))
    with tempfile.TemporaryDirectory(prefix="distbench-") as name:
        launcher = WarmLauncher(Path(name), uuid.uuid4().hex)
        load.start()
        try:
            launched(launcher, Path(name), "short_loops")  # its agent is up now
            end = time.monotonic() + seconds
            while (at := time.monotonic()) < end:
                made = launched(launcher, Path(name), "short_loops")
                found.append(Recorded(at, {m.key: m for m in made.measurements}))
        finally:
            over.set()
            load.join()
            launcher.close()
    return found


def spaced(launches: Sequence[Recorded], start: int, spacing_s: float) -> list[int]:
    """Indices of ten launches from ``start`` on, each the first that begins so long after the one before."""
    chosen = [start]
    for i in range(start + 1, len(launches)):
        if len(chosen) == LAUNCHES:
            break
        if launches[i].at - launches[chosen[-1]].at >= spacing_s:
            chosen.append(i)
    return chosen


def called_regressed(old: Sequence[Measurement], new: Sequence[Measurement], alpha: float) -> tuple[bool, int]:
    """What our rule says in the end, and after how many launches."""
    baseline = BaselineMetric(
        better="lower",
        unit="s",
        launches=[m.value for m in old],
        minimum=[m.summary.minimum for m in old if m.summary],
        p95=[m.summary.p95 for m in old if m.summary],
    )
    for count in range(1, len(new) + 1):
        answer = Comparison.of(
            new[:count], baseline, tolerance=TOLERANCE, alpha=alpha, most=len(new), noise_floor=0.0
        ).answer
        if not answer.is_open:
            break
    return answer.kind == "regressed", count


def score(
    launches: Sequence[Recorded], key: str, spacing_s: float, alpha: float, trials: int, dice: random.Random
) -> list[str]:
    """False alarms, launches used, and the share of slowdowns found, as cells."""
    alarms = counts = 0
    found = dict.fromkeys(SLOWDOWNS, 0)
    last = max(i for i in range(len(launches)) if len(spaced(launches, i, spacing_s)) == LAUNCHES)
    made = 0
    while made < trials:
        before, after = (spaced(launches, dice.randint(0, last), spacing_s) for _ in range(2))
        if before[0] <= after[-1] and after[0] <= before[-1]:
            continue
        made += 1
        old, new = ([launches[i].metrics[key] for i in chosen] for chosen in (before, after))
        is_alarm, count = called_regressed(old, new, alpha)
        alarms += is_alarm
        counts += count
        for factor in SLOWDOWNS:
            found[factor] += called_regressed(old, [_slowed(m, factor) for m in new], alpha)[0]
    return [f"{alarms / made:.2%}", f"{counts / made:.2f}", *(f"{found[factor] / made:.0%}" for factor in SLOWDOWNS)]


def _slowed(measurement: Measurement, factor: float) -> Measurement:
    summary = measurement.summary
    assert summary is not None
    assert measurement.value is not None
    judged = replace(summary, minimum=summary.minimum * factor, p25=summary.p25 * factor, p95=summary.p95 * factor)
    return replace(measurement, value=measurement.value * factor, summary=judged)


def _come_and_go(over: threading.Event) -> None:
    dice = random.Random(0)
    while not over.is_set():
        busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(dice.choice((1, 1, 2)))]
        over.wait(dice.uniform(1, 8))
        for process in busy:
            process.kill()
            process.wait()
        over.wait(dice.uniform(1, 8))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=350.0)
    parser.add_argument("--trials", type=int, default=1500)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    least = 3 * LAUNCHES * max(SPACINGS_S)
    if options.seconds < least or options.trials < 1:
        parser.error(f"wanted at least --seconds {least:g} and --trials 1")
    launches = record(options.seconds)
    gaps = [b.at - a.at for a, b in itertools.pairwise(launches)]
    print(f"{len(launches)} launches, one every {statistics.median(gaps):.2f} s (at most {math.ceil(max(gaps))} s)\n")
    rows = [
        (
            key,
            f"{alpha:.1%}",
            f"{spacing_s:g} s" if spacing_s else "none",
            *score(launches, key, spacing_s, alpha, options.trials, random.Random(options.seed)),
        )
        for key in launches[0].metrics
        for alpha in (RUN_ERROR_RATE, BASELINE_ERROR_RATE)
        for spacing_s in SPACINGS_S
    ]
    header = ("metric", "error rate", "spacing", "false alarms", "launches", *(f"+{f - 1:.0%}" for f in SLOWDOWNS))
    print("\n".join(layout(header, rows, left=1)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
