"""Which faults of jobs that share a pool does the first run find, without a baseline? Plants them one by one.

    python benchmarks/pool_faults.py [--engine fast] [FAULT ...]

Two jobs share two slots, or a training yields to a serving process; each fault is planted in one of them. Printed per
fault: the outcome, what said so, and who had which slot. Exit code 1 unless every fault is told, and what is healthy
passes. A quarter of a minute per fault on two quiet cores.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from elastic_faults import told

from pytest_distbench.elastic.records import pool_of
from pytest_distbench.elastic.tables import picture
from pytest_distbench.records.run import CaseResult
from pytest_distbench.report import layout
from pytest_distbench.store.files import read_run_record

FAULTS = {
    "none (two jobs)": "",
    "never grows": "the second job may have two slots, and asks for one",
    "cannot grow": "a node that joins the second job does not come to its training",
    "slots kept": "the first job's worker stays for eight seconds when it has trained",
    "nobody trains": "the second job waits for ten seconds each time it begins",
    "none (serving)": "",
    "SIGTERM ignored": "the training ignores SIGTERM for two seconds",
    "lr not rescaled": "the learning rate of two workers goes on with one",
    "serving fails": "the server raises while it loads its model",
    "slow start": "the server takes 15 s more to load its model",
}
"""Fault -> what is planted."""

SERVED = ("none (serving)", "SIGTERM ignored", "lr not rescaled", "serving fails", "slow start")
"""Those of a training that yields."""

TEST = """
import os
import signal
import threading
import time

import pytest

from pytest_distbench.elastic import job, serving


def train(rank, fault, epochs):
    import torch
    from torch.nn.parallel import DistributedDataParallel

    if fault == "SIGTERM ignored":
        signal.signal(signal.SIGTERM, lambda *_: threading.Timer(2.0, os._exit, [1]).start())
    if fault == "cannot grow" and epochs == LONG and rank.world_size == 2:
        time.sleep(600)
    if fault == "nobody trains" and epochs == LONG and rank.generation:
        time.sleep(10)
    torch.manual_seed(0)
    x = torch.randn(8192, 256)
    labels = (x @ torch.randn(256, 10)).argmax(1)
    model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01 * rank.world_size, momentum=0.9)
    training = rank.training(model=model, optimizer=optimizer)
    if fault != "lr not rescaled":
        for group in optimizer.param_groups:
            group["lr"] = 0.01 * rank.world_size
    ddp = DistributedDataParallel(model)
    for batch in training.batches(samples=len(x), batch=64, epochs=epochs):
        loss = torch.nn.functional.cross_entropy(ddp(x[batch]), labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        training.note(loss=loss)
    if fault == "slots kept" and epochs != LONG:
        time.sleep(8)


def load(fault):
    import torch

    if fault == "serving fails":
        raise RuntimeError("out of memory")
    time.sleep(15 * (fault == "slow start"))
    return torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 10))


@pytest.mark.distbench(bounds={"slots_kept": "<= 5 s"})
def test_two_jobs(elastic_pool, distbench):
    jobs = [
        job("A", train, nodes=1, params={"fault": FAULT, "epochs": LONG // 2}),
        job("B", train, nodes=1 if FAULT == "never grows" else (1, 2), params={"fault": FAULT, "epochs": LONG}),
    ]
    run = elastic_pool(jobs, slots=2, policy="elastic", engine=ENGINE, timers={"settle_s": 20})
    distbench.judge("grew_to", lambda pool: pool["most_workers[job=B]"], of=run, better="info", at_least=2)
    distbench.judge("nobody", lambda pool: pool["idle_gap"], of=run, unit="s", better="info", at_most="6 s")


@pytest.mark.distbench(bounds={"serving_ready": "<= 12 s"})
def test_serving(elastic_pool, distbench):
    run = elastic_pool(
        job("train", train, nodes=(1, 2), params={"fault": FAULT, "epochs": 10_000}, ends_after=40),
        slots=2,
        policy="elastic",
        engine=ENGINE,
        serving=serving(load, demand=[(1, 1), (6, 0)], params={"fault": FAULT}),
    )
    latency = lambda pool: pool["preempt_latency"]
    distbench.judge("slots_free", latency, of=run, unit="s", better="info", at_most="2s")
    rule = lambda pool: pool["lr[job=train,nodes=1]"] / pool["lr[job=train,nodes=2]"]
    distbench.judge("lr_rule", rule, of=run, better="info", at_least=0.499, at_most=0.501)
"""


def plant(fault: str, engine: str) -> list[CaseResult]:
    """Run its test once with a fault."""
    test = "test_serving" if fault in SERVED else "test_two_jobs"
    long = 60 if engine == "fast" else 240
    with tempfile.TemporaryDirectory() as folder:
        head = f"FAULT = {fault!r}\nENGINE = {engine!r}\nLONG = {long}\n"
        (Path(folder) / "test_planted.py").write_text(f"{head}{TEST}")
        command = [sys.executable, "-m", "pytest", folder, "-q", "-p", "no:cacheprovider", f"--rootdir={folder}"]
        command += ["-k", test, "--world-size=2", f"--distbench-json={folder}/run.json"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        if done.returncode not in (0, 1):
            raise SystemExit(done.stdout + done.stderr)
        return read_run_record(Path(folder) / "run.json").results


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("faults", nargs="*", metavar="FAULT", help=f"default: all of {', '.join(FAULTS)}")
    parser.add_argument("--engine", default="fast", help="of the jobs; default: fast")
    options = parser.parse_args()
    header = ("fault", "planted", "test", "reported by")
    rows, is_found = [], True
    for fault in options.faults or list(FAULTS):
        results = plant(fault, options.engine)
        outcome = "failed" if any(result.outcome == "failed" for result in results) else "passed"
        said = told(results)
        is_found &= (outcome == "failed") is not fault.startswith("none")
        rows.append((fault, FAULTS[fault], outcome, "; ".join(dict.fromkeys(said))[:100]))
        print(*layout(header, rows[-1:], left=4), sep="\n", flush=True)
        for pool in (pool_of(launch.events) for result in results for launch in result.launches):
            if pool is not None:
                print(*picture(pool), "", sep="\n", flush=True)
    print(*layout(header, rows, left=4), sep="\n")
    return 0 if is_found else 1


if __name__ == "__main__":
    sys.exit(main())
