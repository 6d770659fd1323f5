"""What ``--distbench-against`` finds: runs on an unchanged tree, and on one whose all_reduce is slowed.

    python benchmarks/against_power.py [--runs 20] [--slowdown 0.1] [--json FILE]

Makes a small git repository with a test of all_reduce at 4 KiB and 1 MiB on two gloo ranks, and runs
``pytest --distbench-against HEAD`` in it, alternately with the tree as committed and with every timed call slowed: each
rank first waits, busily, for that fraction of what its calls have taken so far (25th percentile).

Printed per point: how many runs were red, and how many their own noise predicts for the change that all of them
together saw (mean over the runs of ``pairs.power``; waiting before a call also delays the other rank, so this is more
than what was planted); the smallest slowdown they said they could find; noise between pairs; pairs and seconds.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from pytest_distbench.judging.thresholds import FIRST_LOOK, LAST_LOOK, Circumstances, looks, power
from pytest_distbench.records.run import CaseResult
from pytest_distbench.records.wanted import PAIRED_TOLERANCE
from pytest_distbench.store.files import read_run_record

TEST = """
import time

SLOWDOWN = 0.0


def body(rank):
    import torch
    import torch.distributed as dist

    for size in (4096, 2**20):
        at = {"message_bytes": size}
        if not rank.wants("all_reduce", at=at):
            continue
        x = torch.zeros(size // 4)
        calls = []
        wait = 0.0
        for i in rank.timed("all_reduce", warmup=20, iterations=200, at=at):
            start = time.perf_counter()
            while time.perf_counter() < start + wait:
                pass
            begin = time.perf_counter()
            dist.all_reduce(x)
            calls.append(time.perf_counter() - begin)
            if len(calls) % 20 == 0:
                wait = SLOWDOWN * sorted(calls)[len(calls) // 4]


def test_all_reduce(distbench):
    distbench.run(body)
"""


@dataclass(frozen=True)
class Point:
    """One metric of one run."""

    tree: str
    metric: str
    kind: str
    change: float
    pairs: int
    noise: float
    finds: float
    seconds: float


RULE = Circumstances(tolerance=PAIRED_TOLERANCE, comparisons=2, looks=looks(FIRST_LOOK, LAST_LOOK))


def run(folder: Path, *, slowdown: float) -> list[Point]:
    """One run of pytest, on a tree slowed by this fraction."""
    (folder / "test_all_reduce.py").write_text(TEST.replace("SLOWDOWN = 0.0", f"SLOWDOWN = {slowdown}"))
    record = folder / "run.json"
    start = time.monotonic()
    done = subprocess.run(
        [
            sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider",
            "--distbench-against", "HEAD", f"--distbench-json={record}",
        ],
        cwd=folder, capture_output=True, text=True, check=False,
    )  # fmt: skip
    seconds = time.monotonic() - start
    if done.returncode not in (0, 1):
        raise SystemExit(f"pytest ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    result = read_run_record(record).results[0]
    tree = f"slowed by {slowdown:.0%}" if slowdown else "unchanged"
    points = []
    for verdict in (v for v in result.verdicts if v.better == "lower"):  # not the fingerprint
        noise = statistics.stdev(_differences(result, verdict.metric)[: verdict.launches])
        points.append(
            Point(
                tree=tree,
                metric=verdict.metric,
                kind=verdict.kind,
                change=(verdict.ratio or math.nan) - 1,
                pairs=verdict.launches,
                noise=noise,
                finds=verdict.mde or math.nan,
                seconds=seconds,
            )
        )
    return points


def _differences(result: CaseResult, metric: str) -> list[float]:
    """Logarithm of this tree's value over the reference's, per pair that measured the metric."""
    sides = [
        {launch.index: m.value for launch in launches for m in launch.measurements if m.key == metric and m.value}
        for launches in (result.launches, result.reference.launches)
    ]
    return [math.log(value / sides[1][index]) for index, value in sides[0].items()]


def print_table(points: Sequence[Point]) -> None:
    """One row per tree and metric."""
    header = f"{'tree':<16}{'metric':<36}{'red':>8}{'predicted':>11}{'MDE':>8}{'change':>9}"
    print(f"{header}{'noise':>8}{'pairs':>7}{'seconds':>9}{'longest':>9}")
    for tree, metric in dict.fromkeys((p.tree, p.metric) for p in points):
        found = [p for p in points if (p.tree, p.metric) == (tree, metric)]
        red = sum(p.kind == "regressed" for p in found)
        change = math.expm1(statistics.fmean(math.log1p(p.change) for p in found))
        predicted = (
            f"{statistics.fmean(power(change, p.noise, RULE) for p in found):.0%}" if tree != "unchanged" else "-"
        )
        middle = {
            name: statistics.median(getattr(p, name) for p in found) for name in ("finds", "noise", "pairs", "seconds")
        }
        print(
            f"{tree:<16}{metric:<36}{f'{red}/{len(found)}':>8}{predicted:>11}{middle['finds']:>+8.1%}"
            f"{change:>+9.1%}{middle['noise']:>8.3f}{middle['pairs']:>7.0f}{middle['seconds']:>9.1f}"
            f"{max(p.seconds for p in found):>9.1f}"
        )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--slowdown", type=float, default=0.1)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    points: list[Point] = []
    with tempfile.TemporaryDirectory(prefix="against-") as name:
        folder = Path(name)
        (folder / "pytest.ini").write_text("[pytest]\n")
        (folder / "test_all_reduce.py").write_text(TEST)
        identity = ["-c", "user.name=benchmark", "-c", "user.email=benchmark@localhost"]
        for command in (["init", "-q"], ["add", "-A"], [*identity, "commit", "-q", "-m", "reference"]):
            subprocess.run(["git", *command], cwd=folder, check=True, env={**os.environ, "GIT_CONFIG_NOSYSTEM": "1"})
        for done in range(options.runs):
            for slowdown in (0.0, options.slowdown):
                points += run(folder, slowdown=slowdown)
                last = ", ".join(f"{p.kind} {p.change:+.1%} in {p.pairs}" for p in points[-2:])
                print(f"run {done + 1}/{options.runs} {points[-1].tree}: {last}", file=sys.stderr)
            if options.json:
                options.json.write_text(json.dumps([asdict(p) for p in points], indent=1))
    print_table(points)


if __name__ == "__main__":
    main()
