"""Which faults of the communication are found, and named? Plants them one by one, each against a healthy baseline.

    python benchmarks/communication_faults.py [--world-size 4] [--launches 3]

One pytest run records what is healthy, one more for each fault judges it. Printed per fault: the first line of the
failure, and what it names as the cause. Exit code 1 unless each fault is named and the healthy run passes. A minute
or two on two quiet cores.

Seen with four ranks on two busy virtual cores, and three launches against a baseline of three; links need their bound
of 10 there, as such launches allow for more than a tenfold slowdown:

- a pair sleeps 30 ms before it sends: *rank 1 to rank 3: this link is slow*
- every pair of rank 2 does: *rank 2: every link of this rank is slow*
- rank 2 comes 50 ms late to an all_reduce: *rank 2 comes 51.37 ms late to the collectives of step*
- an all_reduce in 200 pieces: *1 all_reduce of 1 MiB became 200 of 4.902 KiB to 5.121 KiB*
- float32 instead of fp16: *gradient_bytes with the hook fp16: 1.004 MiB, baseline 514 KiB (exact)*
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from pytest_distbench.records.run import CaseResult
from pytest_distbench.report.verdicts import cause_lines
from pytest_distbench.store.files import read_run_record

VARIABLE = "PLANTED_FAULT"

TEST = f"""
import os
import time

from pytest_distbench.workloads.gradients import compressed_training
from pytest_distbench.workloads.links import link_matrix

FAULT = os.environ.get("{VARIABLE}", "")


def links(rank):
    import torch.distributed as dist

    def send(tensor, dst):
        pair = {{rank.rank, dst}}
        if (FAULT == "slow pair" and pair == {{1, 3}}) or (FAULT == "slow rank" and 2 in pair):
            time.sleep(0.03)
        sent(tensor, dst)

    sent, dist.send = dist.send, send
    link_matrix(rank)


def step(rank):
    import torch
    import torch.distributed as dist

    x = torch.zeros(1 << 18)
    pieces = x.chunk(200 if FAULT == "all_reduce in 200 pieces" else 1)
    for _ in rank.timed("step", warmup=3, iterations=20):
        if FAULT == "late rank" and rank.rank == 2:
            time.sleep(0.05)
        for piece in pieces:
            dist.all_reduce(piece)


def training(rank):
    if FAULT == "fp32 where fp16 was meant":
        from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

        default_hooks.fp16_compress_hook = default_hooks.allreduce_hook
    compressed_training(rank)


def test_links(distbench):
    # A bound besides the baseline: on a machine that was busy meanwhile the clock alone is inconclusive.
    sizes = {{"latency_bytes": 8, "bandwidth_bytes": 2**18}}
    rest = {{"pattern": "ping-pong", "iterations": 10, "warmup": 2, "max_imbalance": 10.0}}
    distbench.run(links, params=sizes | rest, tolerance=1.0)


def test_step(distbench):
    distbench.run(step, tolerance=1.0)


def test_training(distbench):
    sizes = {{"width": 256, "layers": 4, "batch": 32, "approximation_rank": 1}}
    distbench.run(training, params=sizes | {{"hook": "fp16", "iterations": 10, "warmup": 2}}, tolerance=1.0)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault.

    Attributes:
        name: as the bodies know it.
        test: that it is planted in.
        told: what the failure has to say.
    """

    name: str
    test: str
    told: str


FAULTS = (
    Fault(name="slow pair", test="test_links", told="rank 1 to rank 3: this link is slow"),
    Fault(name="slow rank", test="test_links", told="rank 2: every link of this rank is slow"),
    Fault(name="late rank", test="test_step", told="rank 2 comes"),
    Fault(name="all_reduce in 200 pieces", test="test_step", told="1 all_reduce of 1 MiB became 200 of"),
    Fault(name="fp32 where fp16 was meant", test="test_training", told="gradient_bytes"),
)
HEALTHY = Fault(name="healthy", test="test_", told="")


def run(folder: Path, fault: Fault, world_size: int, *options: str) -> list[CaseResult]:
    """One pytest run with a fault planted; its cases."""
    command = [sys.executable, "-m", "pytest", str(folder), "-q", "-p", "no:cacheprovider", f"--rootdir={folder}"]
    command += [f"--world-size={world_size}", f"-k={fault.test}", "--distbench-json=run.json", *options]
    environment = {**os.environ, VARIABLE: fault.name}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1):
        raise SystemExit(done.stdout + done.stderr)
    return read_run_record(folder / "run.json").results


def main() -> int:
    """Measure, print, and say by the exit code whether all were found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--world-size", type=int, default=4, help="at least 4: rank 3 is part of a fault")
    parser.add_argument("--launches", type=int, default=3)
    options = parser.parse_args()
    if options.world_size < 4:
        parser.error(f"--world-size {options.world_size}: wanted 4 or more, rank 3 is part of a fault")
    missed, blamed = [], []
    with tempfile.TemporaryDirectory(prefix="distbench-") as name:
        folder = Path(name)
        (folder / "test_planted.py").write_text(TEST)
        (folder / "pytest.ini").write_text("[pytest]\n")
        few = f"--distbench-launches={options.launches}:{options.launches}"
        run(folder, HEALTHY, options.world_size, few, "--distbench-update")
        for result in run(folder, HEALTHY, options.world_size, few):
            blamed += [result.case.title] if result.outcome == "failed" else []
        for fault in FAULTS:
            [result] = run(folder, fault, options.world_size, few)
            lines = [result.headline, *cause_lines(result)]
            is_named = result.outcome == "failed" and any(fault.told in line for line in lines)
            print(f"{fault.name}: {'named' if is_named else 'MISSED'}")
            print("\n".join(f"  {line}" for line in lines if line), end="\n\n", flush=True)
            missed += [] if is_named else [fault.name]
    print(f"missed: {', '.join(missed) or 'none'}; blamed without fault: {', '.join(blamed) or 'none'}")
    return 1 if missed or blamed else 0


if __name__ == "__main__":
    sys.exit(main())
