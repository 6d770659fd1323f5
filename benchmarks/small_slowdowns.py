"""Are slowdowns of 3 % and 5 % red within 120 s, and is unchanged code green? Replays recorded launches.

    python benchmarks/small_slowdowns.py record FILE [--launches 600]
    python benchmarks/small_slowdowns.py replay [FILE ...]

*record* launches the training step of ``slowed/test_slowed.py`` (20 ms, two ranks), one launch after the other, and
writes of each its seconds, the lower quantile of its step and its CPU time. ``small_slowdowns.csv`` is such a series,
of a quiet machine.

*replay* draws triples of neighbouring launches, makes the candidate slower, and judges them as a confirmation at a
tolerance of 2 %, with as many looks as 120 s allow. It does so by wall time alone, and with the CPU time. The slowdown
is in both if ranks compute longer, and in wall time alone if they wait longer. Printed: how many of the draws are red,
and the seconds until the verdict, medians of those that are red.
"""

from __future__ import annotations

import argparse
import csv
import math
import os
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from pytest_distbench.judging.terms import Terms
from pytest_distbench.judging.thresholds import LOOKS, fast_value
from pytest_distbench.records.case import Case, Conditions
from pytest_distbench.records.environment import Environment
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.metric import CPU_S, Sample
from pytest_distbench.records.run import CaseResult, Finding, OtherSideRecord
from pytest_distbench.report import layout
from pytest_distbench.run.against import Variant
from pytest_distbench.run.confirm import START_S, Allowance, Confirmation, Rerun, Suspect
from pytest_distbench.run.request import CaseRequest
from pytest_distbench.run.sources import Crossed, Source
from pytest_distbench.store.files import read_run_record

SERIES = Path(__file__).with_suffix(".csv")
SLOWED = Path(__file__).parent / "slowed"
BUDGET_S, TOLERANCE = 120.0, 0.02
DRAWS = 200
CASE = Case(test="test_small", conditions=Conditions(world_size=2, backend="gloo", launcher="warm"), device="cpu")


class Launch(NamedTuple):
    """Seconds of the launch, of its step (sqrt(fastest x 25th percentile)), and of the CPU time of an iteration."""

    launch_s: float
    step_s: float
    cpu_s: float


class Drawn(NamedTuple):
    is_red: bool
    seconds: float


def record(file: Path, launches: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        options = [f"--distbench-launches={launches}:{launches}", "--world-size=2", "--distbench-json=run.json"]
        command = [sys.executable, "-m", "pytest", "-q", f"--rootdir={name}", f"{SLOWED}/test_slowed.py::test_small"]
        surroundings = {**os.environ, "PYTHONPATH": os.pathsep.join([str(SLOWED), *sys.path])}
        subprocess.run([*command, *options], cwd=name, check=True, env=surroundings)
        [case] = read_run_record(Path(name, "run.json")).results
    with file.open("w", newline="") as out:
        csv.writer(out).writerows([Launch._fields, *map(as_row, case.launches)])


def as_row(launch: LaunchRecord) -> Sequence[str]:
    step = next(m for m in launch.measurements if m.name == "step")
    fast_s = fast_value(step)
    return [f"{launch.wall_s:.3f}", f"{fast_s:.7f}", f"{step.companions[CPU_S]:.7f}"]


def read(file: Path) -> list[Launch]:
    with file.open(newline="") as lines:
        return [Launch(*map(float, row)) for row in list(csv.reader(lines))[1:]]


def as_record(launch: Launch, *, wall: float = 1.0, cpu: float = 1.0, shows_cpu: bool) -> LaunchRecord:
    companions = {CPU_S: launch.cpu_s * cpu} if shows_cpu else {}
    step = Sample(name="step", unit="s", better="lower", value=launch.step_s * wall, companions=companions, ranks=2)
    return LaunchRecord(index=0, outcome="passed", wall_s=launch.launch_s, measurements=[step])


class Triples(Source):
    """Recorded launches in the place of new ones: of the candidate, and two of the baseline commit."""

    def __init__(self, triples: Iterator[Sequence[LaunchRecord]], most: int) -> None:
        super().__init__()
        self._triples = triples
        self.most = most

    def add(self, *, only: Sequence[str] = ()) -> None:
        del only
        for side, launch in zip(self.sides, next(self._triples), strict=True):
            side.append(launch)


def draw(launches: Sequence[Launch], rng: random.Random, slower: float, *, computes: bool, shows_cpu: bool) -> Drawn:
    """Confirm one draw: triples from a random place on, in a random order each, as many as the budget allows."""
    each_s = 3 * statistics.median(launch.launch_s for launch in launches)
    most = max(look for look in LOOKS if 2 * START_S + look * each_s <= BUDGET_S)
    begin = rng.randrange(len(launches) - 3 * most + 1)
    drawn = [rng.sample(launches[i : i + 3], 3) for i in range(begin, begin + 3 * most, 3)]
    made = {"wall": 1 + slower, "cpu": 1 + slower * computes}
    triples = iter(
        [as_record(triple[0], **made, shows_cpu=shows_cpu), *(as_record(la, shows_cpu=shows_cpu) for la in triple[1:])]
        for triple in drawn
    )
    pairs = Crossed(Triples(triples, most), Triples(triples, most), close=lambda: None)
    suspicious = Finding(metric="step", code="beyond-threshold", unit="s", better="lower", current=1.0, baseline=1.0)
    result = CaseResult(
        nodeid=CASE.test,
        case=CASE,
        environment=Environment(platform="", device="cpu", cores=2, software={}),
        launches=[],
        verdicts=[suspicious],
        reference=OtherSideRecord(kind="stored"),
    )
    suspect = Suspect(
        result=result,
        verdicts=[suspicious],
        variant=Variant(revision=None, interpreter=None),
        tolerances={"step": TOLERANCE},
    )
    rerun = Rerun(sources={}, results={}, suspects={}, variants={}, cases=1, budget=Allowance(math.inf))
    terms = Terms(default_tolerance=TOLERANCE, max_launches=most, cores=2)
    request = CaseRequest(nodeid=CASE.test, case=CASE, terms=terms, launches=1, xfail_perf="")
    [found] = Confirmation(request, suspect, rerun).decide_in_time(pairs)
    is_decided = found.kind != "inconclusive"
    seconds = START_S * len(pairs.starts) + len(pairs) * each_s if is_decided else BUDGET_S
    return Drawn(is_red=found.kind == "regressed", seconds=seconds)


def replay(launches: Sequence[Launch]) -> list[list[str]]:
    rows = [["slowdown", "by", "judged by", "draws", "red", "seconds"]]
    for slower, computes in [(0.0, True), *((s, c) for s in (0.03, 0.05) for c in (True, False))]:
        for shows_cpu in (False, True):
            rng = random.Random(0)
            drawn = [draw(launches, rng, slower, computes=computes, shows_cpu=shows_cpu) for _ in range(DRAWS)]
            red = [d.seconds for d in drawn if d.is_red]
            by = "-" if not slower else "computing" if computes else "waiting"
            how = "wall and CPU time" if shows_cpu else "wall time"
            seconds = f"{statistics.median(red):.0f}" if red else "-"
            rows.append([f"{slower:.0%}", by, how, str(DRAWS), str(len(red)), seconds])
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("record", "replay"))
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE", default=[SERIES])
    parser.add_argument("--launches", type=int, default=600)
    options = parser.parse_args()
    for file in options.files:
        if options.what == "record":
            record(file, options.launches)
        launches = read(file)
        logs = [[math.log(value) for value in column] for column in zip(*(la[1:] for la in launches), strict=True)]
        scatter = [statistics.stdev(b - a for a, b in zip(of[::2], of[1::2], strict=False)) for of in logs]
        print(f"{file.name}: {len(launches)} launches; pairs scatter by {scatter[0]:.1%}, by CPU time {scatter[1]:.1%}")
        head, *rows = replay(launches)
        print("\n".join(layout(head, rows)))


if __name__ == "__main__":
    main()
