"""Which faults of an elastic training does the first run find, without a baseline? Plants them one by one.

    python benchmarks/elastic_faults.py [FAULT ...]

A training loses one of two nodes under real torchrun agents, or one of them leaves; each fault is planted in its body,
or in the agents. Printed per fault: the outcome, and what said so. Exit code 1 unless every fault fails the test, and
the healthy trainings pass. Half a minute per fault on two quiet cores.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from pytest_distbench.records.run import CaseResult
from pytest_distbench.report import layout
from pytest_distbench.store.files import read_run_record

FAULTS = {
    "none": "",
    "samples repeated": "a generation starts its epoch again",
    "checkpoint rarer": "a checkpoint every 80 steps, and 20 are claimed",
    "lr not rescaled": "the learning rate of two nodes goes on with one",
    "optimizer lost": "the optimizer is not kept",
    "new optimizer": "it is kept, and made again after rank.training(...)",
    "new weights": "they are made again after rank.training(...)",
    "first moments": "the optimizer's state is always that of the first checkpoint",
    "one batch": "all nodes draw the batch of rank 0, where there are two",
    "ends early": "a training of twelve epochs ends in its third",
    "wrong epoch": "a generation begins at epoch 0 again",
    "cannot restore": "the model's shape follows the world size",
    "body raises": "it raises in the second generation",
    "average not handed over": "an average of the weights starts again in each generation",
    "scaler not handed over": "the scale of the gradients starts again in each generation",
    "part forgets": "a part's state_dict() leaves out the mean that it clips gradients by",
    "count forgotten": "it leaves out the number of gradients that it has clipped",
    "statistics not saved": "the state of the model leaves out the running statistics of its BatchNorm",
    "rest reversed": "after the change, the rest of an epoch comes in reversed order",
    "next samples": "a later generation trains on the samples behind those it is given",
    "first batch": "a later generation trains on its first batch again and again",
    "half twice": "a later generation trains on half of its batch, twice",
    "every second step": "the optimizer steps every second time once a node is lost",
    "steps twice": "the optimizer steps twice a batch once a node is lost",
    "layer frozen": "the first layer is no longer trained once a node is lost",
    "slow rendezvous": "agents come to every rendezvous ten seconds late",
    "none, of a leave": "",
    "SIGTERM ignored": "for two seconds, by the node that is asked to leave",
}
"""Fault -> what is planted."""

LEAVES = ("none, of a leave", "SIGTERM ignored")
"""Those that are planted where a node leaves, and is not lost."""

LATE = """
import sys
if "torch.distributed.run" in sys.orig_argv:
    import time
    from torch.distributed.elastic.rendezvous.dynamic_rendezvous import DynamicRendezvousHandler as Handler
    meet = Handler.next_rendezvous
    Handler.next_rendezvous = lambda self: (time.sleep(10.0), meet(self))[1]
"""
"""A sitecustomize of the agents: what is measured knows nothing of it, as of a slow network."""

TEST = """
import copy
import os
import signal
import threading

import pytest
from pytest_distbench.elastic import kill, leave


class FirstState:
    def __init__(self, optimizer):
        self.optimizer, self.state = optimizer, None

    def state_dict(self):
        self.state = self.state or copy.deepcopy(self.optimizer.state_dict())
        return self.state

    def load_state_dict(self, state):
        self.state = state
        self.optimizer.load_state_dict(copy.deepcopy(state))


class WithoutStatistics:
    def __init__(self, model):
        self.model = model

    def state_dict(self):
        return {name: value for name, value in self.model.state_dict().items() if "running" not in name}

    def load_state_dict(self, state):
        self.model.load_state_dict(state, strict=False)


class Loader:
    def __init__(self, rank, samples, batch, reverses):
        self.rank, self.samples, self.batch, self.reverses = rank, samples, batch, reverses
        self.epoch = self.position = 0

    def state_dict(self):
        return {"epoch": self.epoch, "position": self.position}

    def load_state_dict(self, state):
        self.epoch, self.position = state["epoch"], state["position"]

    def __iter__(self):
        import torch

        loaded = self.epoch, self.position
        while True:
            order = torch.randperm(self.samples, generator=torch.Generator().manual_seed(self.epoch))
            if self.reverses and self.epoch == loaded[0]:
                order = torch.cat([order[: loaded[1]], order[loaded[1] :].flip(0)])
            while self.position < self.samples:
                begin, self.position = self.position, self.position + self.batch * self.rank.world_size
                yield order[begin : self.position][self.rank.rank :: self.rank.world_size]
            self.epoch, self.position = self.epoch + 1, 0


class Clips:
    def __init__(self, forgets):
        self.mean, self.seen, self.forgets = 0.0, 0, forgets

    def state_dict(self):
        return {name: getattr(self, name) for name in ("mean", "seen") if name != self.forgets}

    def load_state_dict(self, state):
        vars(self).update(state)

    def __call__(self, parameters, torch):
        self.seen += 1
        self.mean = 0.9 * self.mean + 0.1 * float(torch.nn.utils.clip_grad_norm_(parameters, self.mean * 2 + 1))


def train(rank, fault, epochs):
    import torch
    from torch.nn.parallel import DistributedDataParallel

    torch.manual_seed(0)
    x = torch.randn(4096, 64)
    labels = (x @ torch.randn(64, 10)).argmax(1)
    hidden = 32 * rank.world_size if fault == "cannot restore" else 32
    norm = torch.nn.BatchNorm1d(hidden) if fault == "statistics not saved" else torch.nn.Identity()
    model = torch.nn.Sequential(torch.nn.Linear(64, hidden), norm, torch.nn.ReLU(), torch.nn.Linear(hidden, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05 * rank.world_size, momentum=0.9)
    kept = {"model": model} if fault == "optimizer lost" else {"model": model, "optimizer": optimizer}
    if fault == "first moments":
        kept["optimizer"] = FirstState(optimizer)
    if fault == "statistics not saved":
        kept["model"] = WithoutStatistics(model)
    is_later = rank.generation > 0
    loader = Loader(rank, len(x), 16, reverses=is_later) if fault == "rest reversed" else None
    kept |= {"loader": loader} if loader is not None else {}
    average = torch.optim.swa_utils.AveragedModel(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0, growth_factor=1.1, growth_interval=50)
    kept |= {"clips": Clips({"part forgets": "mean", "count forgotten": "seen"}.get(fault))}
    kept |= {} if fault == "average not handed over" else {"average": average}
    kept |= {} if fault == "scaler not handed over" else {"scaler": scaler}
    every = 80 if fault == "checkpoint rarer" else None
    training = rank.training(checkpoint_every=every, **kept)
    if fault == "samples repeated":
        training.position = 0
    if fault == "new weights" and rank.generation:
        model[0].reset_parameters()
    if fault == "wrong epoch" and rank.generation:
        training.epoch = 0
    if fault == "new optimizer":
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05 * rank.world_size, momentum=0.9)
    if fault == "SIGTERM ignored":
        signal.signal(signal.SIGTERM, lambda *_: threading.Timer(2.0, os._exit, [1]).start())
    if fault == "body raises" and rank.generation:
        raise ValueError("planted")
    if fault != "lr not rescaled":
        for group in optimizer.param_groups:
            group["lr"] = 0.05 * rank.world_size
    if fault == "layer frozen" and is_later:
        model[0].requires_grad_(False)
    ddp = DistributedDataParallel(model)
    first = None
    own = iter(loader) if loader is not None else None
    for batch in training.batches(samples=len(x), batch=16, epochs=epochs):
        first = batch if first is None else first
        if own is not None:
            batch = next(own)
            training.drew(batch)
        if fault == "next samples" and is_later:
            batch = (batch + 1) % len(x)
        if fault == "first batch" and is_later:
            batch = first
        if fault == "half twice" and is_later:
            batch = torch.cat([batch[: len(batch) // 2]] * 2)
        if fault == "ends early" and training.epoch == 2:
            break
        if fault == "one batch" and rank.world_size > 1:
            size = torch.tensor(len(batch))
            torch.distributed.broadcast(size, src=0)
            batch = batch.new_zeros(int(size)) if rank.rank else batch.clone()
            torch.distributed.broadcast(batch, src=0)
        loss = torch.nn.functional.cross_entropy(ddp(x[batch]), labels[batch])
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        kept["clips"](model.parameters(), torch)
        if not (fault == "every second step" and is_later and training.step % 2):
            scaler.step(optimizer)
            average.update_parameters(model)
        scaler.update()
        if fault == "steps twice" and is_later:
            optimizer.step()
        training.note(loss=loss)


BOUNDS = {"slot_free[change=leave 2 to 1]": "2 s"} if LEAVES else {"recovery/rendezvous[change=kill 2 to 1]": "<= 9 s"}


@pytest.mark.distbench(bounds=BOUNDS)
def test_planted(elastic, distbench):
    change = leave(at_step=150) if LEAVES else kill(at_step=150)
    run = elastic(train, nodes=(1, 2), plan=change, params={"fault": FAULT, "epochs": 40 if LEAVES else 12})
    rule = lambda job: job["lr[nodes=2]"] / job["lr[nodes=1]"]
    distbench.judge("lr_rule", rule, of=run, at_least=1.99, at_most=2.01)
"""


def plant(fault: str) -> list[CaseResult]:
    """Run the test once with a fault."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "test_planted.py").write_text(f"FAULT, LEAVES = {fault!r}, {fault in LEAVES}\n{TEST}")
        if fault == "slow rendezvous":
            (Path(folder) / "sitecustomize.py").write_text(LATE)
        command = [sys.executable, "-m", "pytest", folder, "-q", "-p", "no:cacheprovider", f"--rootdir={folder}"]
        command += ["--world-size=2", f"--distbench-json={folder}/run.json"]
        path = {**os.environ, "PYTHONPATH": folder}
        done = subprocess.run(command, cwd=folder, env=path, capture_output=True, text=True, check=False)
        if done.returncode not in (0, 1):
            raise SystemExit(done.stdout + done.stderr)
        results = read_run_record(Path(folder) / "run.json").results
        if not results:
            raise SystemExit(done.stdout + done.stderr)
        return results


def told(results: list[CaseResult]) -> list[str]:
    """What a run said of a fault: metrics beyond a bound, a launch that failed, a warning."""
    found = [v.metric for r in results for v in r.verdicts if v.is_failure]
    for launch in (launch for result in results for launch in result.launches):
        found += [launch.reason.splitlines()[0]] if launch.outcome == "failed" else launch.remarks
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("faults", nargs="*", metavar="FAULT", help=f"default: all of {', '.join(FAULTS)}")
    chosen = parser.parse_args().faults or list(FAULTS)
    rows, is_found = [], True
    for fault in chosen:
        results = plant(fault)
        outcome = "failed" if any(result.outcome == "failed" for result in results) else "passed"
        said = told(results)
        is_found &= (outcome == "failed") is not fault.startswith("none")
        rows.append((fault, FAULTS[fault], outcome, "; ".join(dict.fromkeys(said))[:100]))
        print(*layout(("fault", "planted", "test", "reported by"), rows[-1:], left=4), sep="\n", flush=True)
    print(*layout(("fault", "planted", "test", "reported by"), rows, left=4), sep="\n")
    return 0 if is_found else 1


if __name__ == "__main__":
    sys.exit(main())
