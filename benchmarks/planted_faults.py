"""Which faults in a distributed training does one launch find? Plants them one by one in a real training.

    python benchmarks/planted_faults.py [--world-size 2] [--json FILE]

One pytest run records a healthy training (two launches, five seeds each), a second one plants the faults: one launch
each, judged against that baseline. Printed per fault: the step at which the golden loss curve departs, the
smallest and the largest deviation over the five seeds in the ten steps, and the verdict of each metric. Exit code 1
unless the curve alone finds all that it must, for every seed, and what is harmless passes. A minute on two
quiet cores.

The final accuracy misses three of the ten gross faults. Without set_epoch the first epoch, and so the curve, is the
same; a rate that is off by 0.1 % is on the edge. What it printed::

    fault                        diverges at  deviation     to      curve  mean loss  steps to 93 %   accuracy
    gradients summed                 step 2      2e-01  3e-01    changed    changed      unchanged  unchanged
    no gradient sync                 step 2      3e-02  8e-02    changed    changed      regressed  regressed
    one layer not synced             step 2      1e-02  3e-02    changed    changed      regressed  regressed
    LR not scaled by W               step 2      8e-02  1e-01    changed    changed      regressed  regressed
    LR halved                        step 2      8e-02  1e-01    changed    changed      regressed  regressed
    LR x 0.9                         step 2      2e-02  3e-02    changed    changed      unchanged  unchanged
    all ranks same shard             step 1      4e-02  1e-01    changed    changed      regressed  regressed
    no initial broadcast             step 1      8e-02  1e-01    changed    changed      regressed  unchanged
    one rank's gradient dropped      step 2      9e-02  1e-01    changed    changed      regressed  regressed
    momentum missing                 step 3      1e-01  2e-01    changed    changed      regressed  regressed
    no set_epoch                          -      0e+00  0e+00  unchanged    changed        changed    changed
    LR x 0.99                        step 2      2e-03  4e-03    changed    changed      unchanged  unchanged
    LR x 1.001                       step 2      2e-04  5e-04    changed  unchanged      unchanged  unchanged
    healthy1                              -      0e+00  0e+00  unchanged  unchanged      unchanged  unchanged
    healthy2                              -      0e+00  0e+00  unchanged  unchanged      unchanged  unchanged
    bf16 gradients                   step 2      2e-05  4e-05  unchanged  unchanged      unchanged  unchanged
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

import planted

from pytest_distbench.judging import golden_curve
from pytest_distbench.records.case import BaselineEntry
from pytest_distbench.records.run import CaseResult
from pytest_distbench.report import layout
from pytest_distbench.store.baselines import Baselines, read_file
from pytest_distbench.store.files import read_run_record

CASES = (*planted.FAULTS, *planted.BEYOND, *planted.HARMLESS)
HEADER = ("fault", "diverges at", "deviation", "to", "curve", "mean loss", "steps to 93 %", "accuracy")
METRICS = ("loss_curve", "mean_loss", "steps_to_accuracy", "final_accuracy")

TEST = f"""
import pytest

@pytest.mark.parametrize("fault", {CASES!r})
def test_planted(distbench, monkeypatch, fault):
    monkeypatch.setenv("{planted.VARIABLE}", fault)
    distbench.run({str(Path(planted.__file__).resolve())!r} + "::train", seeds=range(5))
"""


def run(folder: Path, world_size: int, *options: str) -> None:
    """One pytest run; planted faults fail it."""
    command = [sys.executable, "-m", "pytest", str(folder), "-q", "-p", "no:cacheprovider", f"--rootdir={folder}"]
    command += [f"--world-size={world_size}", "-o", "distbench_preload=sklearn.datasets", *options]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1):
        raise SystemExit(done.stdout + done.stderr)


def share_baseline(folder: Path) -> BaselineEntry:
    """Store the healthy training's baseline under the key of every fault."""
    [path] = folder.glob("baselines/**/*.json")
    stored = read_file(path)
    store = Baselines(folder / "baselines", stored.platform)
    for fault in CASES:
        store.write(stored.test, stored.key.replace(planted.HARMLESS[0], fault), stored.entry)
    return stored.entry


def main() -> int:
    """Measure, print, and say by the exit code whether all is well."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--world-size", type=int, default=2)
    parser.add_argument("--json", type=Path, help="write the rows as JSON")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="distbench-") as name:
        folder = Path(name)
        (folder / "test_planted.py").write_text(TEST)
        (folder / "pytest.ini").write_text("[pytest]\n")
        run(folder, options.world_size, "--distbench-update", "--distbench-launches=2", "-k=healthy1")
        entry = share_baseline(folder)
        once = ["--distbench-launches=1:1", "--distbench-json=run.json"]
        run(folder, options.world_size, *once)
        results = read_run_record(folder / "run.json").results
    rows = [row_of(fault, result, entry) for fault, result in zip(CASES, results, strict=True)]
    print("\n".join(layout(HEADER, [row.cells for row in rows])))
    if options.json:
        options.json.write_text(json.dumps([asdict(row) for row in rows], indent=1))
    missed = [row.fault for row in rows[: len(planted.FAULTS)] if row.smallest <= golden_curve.RTOL]
    blamed = [
        row.fault for row in rows[-len(planted.HARMLESS) :] if {"regressed", "changed"} & set(row.verdicts.values())
    ]
    print(f"\nmissed by the curve: {', '.join(missed) or 'none'}; blamed without fault: {', '.join(blamed) or 'none'}")
    return 1 if missed or blamed else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What one launch said about one fault.

    Attributes:
        fault: its name.
        departs_at: first step of the golden curve that differs, in any seed; None: none does.
        smallest: relative deviation within the curve, of the seed that deviates least.
        largest: the same of the seed that deviates most.
        verdicts: kind per metric.
    """

    fault: str
    departs_at: int | None
    smallest: float
    largest: float
    verdicts: dict[str, str]

    @property
    def cells(self) -> tuple[str, ...]:
        """As the table prints it."""
        step = "-" if self.departs_at is None else f"step {self.departs_at}"
        return (self.fault, step, f"{self.smallest:.0e}", f"{self.largest:.0e}", *self.verdicts.values())


def row_of(fault: str, result: CaseResult, entry: BaselineEntry) -> Row:
    """Compare the curves of every seed, beside the verdicts of the run itself."""
    [launch] = result.launches
    departures = [
        golden_curve.compare(entry.metrics[m.key][0].values, m.values, rtol=None, rounding=0.0)
        for m in launch.measurements
        if m.better == "curve"
    ]
    kinds = {verdict.metric: verdict.kind for verdict in result.verdicts}
    return Row(
        fault=fault,
        departs_at=min((d.starts_at for d in departures if d.starts_at is not None), default=None),
        smallest=min(d.largest for d in departures),
        largest=max(d.largest for d in departures),
        verdicts={metric: kinds[metric] for metric in METRICS},
    )


if __name__ == "__main__":
    sys.exit(main())
