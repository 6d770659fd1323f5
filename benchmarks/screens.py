"""What a fixed list of commands prints and stores: recorded of one revision, and compared with that of another.

    python benchmarks/screens.py record OUT [--only NAME,...] [-j N]
    python benchmarks/screens.py compare OLD NEW
    python benchmarks/screens.py covers

Each row runs its commands in a fresh git repository, with the Python that runs this program: the package and the suites
are those of the revision that is installed there. Kept below OUT/ROW/ are ``screen.txt``, each command with what it
printed and its exit status, and ``stored/``, the files that it left. ``compare`` first takes out what differs between
two runs of the same code: times, paths, process ids, hosts, dates. Rows whose values are planted keep their numbers.
``compare`` prints what differs, and ends with 1 if anything does. ``covers`` names each option, ini key,
marker and its keywords, fixture, table, format and command with its options that no row uses, of those that the
installed package's own help lists.
About ten minutes on two quiet cores.
"""

from __future__ import annotations

import argparse
import difflib
import html
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
LIMIT_S = 900.0
"""Of one command."""
MOST_BYTES = 8_000_000
"""Of a file that is looked into."""


@dataclass(frozen=True, slots=True)
class Row:
    """Commands that run one after another in one repository.

    Attributes:
        name: of its folder below OUT.
        commands: a line each, for a shell.
        files: what lies in the repository before the first of them, and is committed.
        copied: files and folders of this checkout that lie there too; ``suites`` is the installed revision's.
        is_planted: its bodies record fixed values, so numbers are compared; else each is a placeholder.
    """

    name: str
    commands: str
    files: Mapping[str, str] = field(default_factory=dict)
    copied: tuple[str, ...] = ()
    is_planted: bool = False


WORK = """
STEP = [0.0200, 0.0201, 0.0199, 0.0202, 0.0198]
ANSWER = 7
CURVE = [4.0, 3.0, 2.5, 2.25, 2.0]
QUALITY = 0.75
STEPS = 40
HELD = 1 << 26
"""
PLANTED = """
import pytest
import work


def planted(rank):
    rank.record("step", work.STEP, unit="s", better="lower")
    rank.record("speed", 50.0 * work.ANSWER, unit="samples/s", better="higher")
    rank.record("answer", work.ANSWER, better="exact")
    rank.record("seen", 12.0, better="info")
    rank.record("loss_curve", work.CURVE, better="curve")
    rank.record("final_loss", work.CURVE[-1], better="same")
    rank.record("steps_to_loss", work.STEPS, better="steps", identity={"every": 10})
    rank.record("accuracy", work.QUALITY, better="floor")
    rank.record("held", work.HELD, unit="B", better="memory")


METRICS = ["step", "speed", "answer", "seen", "loss_curve", "final_loss", "steps_to_loss", "accuracy", "held"]
JUDGED = pytest.mark.distbench(metrics=METRICS, timeout=60, launches=1, tolerance=0.1)


@JUDGED
def test_planted(distbench):
    distbench.run(planted)


@JUDGED
@pytest.mark.world_size(1, 2)
def test_sizes(distbench, world_size, distbench_backend):
    assert (distbench.world_size, distbench.backend) == (world_size, distbench_backend)
    one = distbench.measure(planted, world_size=1, name="one")
    all_of_them = distbench.measure(planted, name="all")
    ratio = lambda a, b: a["step"] / b["step"]
    distbench.judge("efficiency", ratio, of=[one, all_of_them], better="higher", at_least=0.5)


def test_checked(distbench):
    distbench.check(planted)
"""
"""Cases without a clock of their own: each kind of metric, and each call of the fixture."""

INI = "[pytest]\n"
PLAIN = {"test_it.py": PLANTED, "work.py": WORK, "pytest.ini": INI, ".gitignore": "__pycache__/\n"}
COMMIT = "git add --all && git commit --quiet --message baselines"
RECORD = "pytest -q --world-size 2 --distbench-update=new"
WORSE = "sed -i 's/0.0200, 0.0201, 0.0199, 0.0202, 0.0198/0.0260, 0.0261, 0.0259, 0.0262, 0.0258/' work.py"
QUIET = "pytest -q --world-size 1 -k planted --distbench-confirm=off --distbench-json"
BETTER = "sed -i 's/0.0200, 0.0201, 0.0199, 0.0202, 0.0198/0.0140, 0.0141, 0.0139, 0.0142, 0.0138/' work.py"
BROKEN = "sed -i 's/ANSWER = 7/ANSWER = 8/; s/2.25, 2.0/2.35, 2.1/; s/= 40/= 60/; s/0.75/0.60/; s/26/27/' work.py"

MARKED = """
import pytest
from test_it import planted


@pytest.mark.gpu(min_memory="1 GB", capability="8.0", link="nvlink")
def test_on_gpus(distbench):
    distbench.run(planted)


@pytest.mark.cpu
def test_on_cpus(distbench):
    distbench.check(planted)


@pytest.mark.full
def test_long(distbench):
    distbench.check(planted)


@pytest.mark.world_size(min=3, max=4)
def test_large(distbench):
    distbench.check(planted)


@pytest.mark.world_size(1, 2)
@pytest.mark.distbench(metrics=["step"], bounds={"step": "<= 10 ms"}, xfail_perf="known to be slow")
def test_bound(distbench):
    distbench.run(planted)


@pytest.mark.distbench(bounds={"answer": ">= 5 and <= 10"}, tolerance={"step": 0.2})
def test_bounded(distbench):
    distbench.run(planted)
"""

MISSPELLED = """
import pytest


@pytest.mark.distbench(tolerated=1)
@pytest.mark.gpu(capability=8.0)
def test_misspelled(distbench):
    pass
"""

LOOPS = """
import time

import work


def loop(rank):
    import torch
    import torch.distributed as dist

    x = torch.ones(256)
    for _ in rank.timed("step", warmup=1, iterations=10):
        with rank.phase("wait"):
            time.sleep(work.SECONDS)
        with rank.phase("reduce"):
            for _ in range(work.CALLS):
                dist.all_reduce(x)


def test_loop(distbench):
    distbench.run(loop, tolerance=0.15)
"""
SLEEPS = {
    "test_loop.py": LOOPS,
    "work.py": "SECONDS = 0.02\nCALLS = 1\n",
    "pytest.ini": INI,
    ".gitignore": "data/\n__pycache__/\n",
}
SLOWER = "sed -i 's/0.02/0.06/' work.py"
MORE_CALLS = "sed -i 's/CALLS = 1/CALLS = 2/' work.py"

FAULTS = """
import faults
import pytest

ENDING = [fault for fault in faults.FAULTS if not (fault.is_hang or fault.waits or fault.name in LEFT_OUT)]
HANGING = [fault for fault in faults.FAULTS if fault.is_hang and not fault.phase]


@pytest.mark.distbench(timeout=20)
@pytest.mark.parametrize("fault", ENDING, ids=lambda fault: fault.name)
def test_fault(distbench, fault):
    variables = {faults.PHASE_VARIABLE: fault.phase} if fault.phase else None
    distbench.check(f"faults.py::{fault.body.__name__}", env=variables)


@pytest.mark.distbench(timeout=4)
@pytest.mark.parametrize("fault", HANGING, ids=lambda fault: fault.name)
def test_hang(distbench, fault):
    distbench.check(f"faults.py::{fault.body.__name__}")
"""
LEFT_OUT = ("prints_100_megabytes", "hangs_at_exit", "stops_who_waits_for_it")
"""They take ten seconds each."""

WRONG = """
import pytest


def body(rank, count=1):
    raise ValueError(count)


def says_nothing(rank):
    pass


def records_twice(rank):
    rank.record("a", 1.0, better="lower")
    rank.record("a", 1.0, better="higher")


def records_text(rank):
    rank.record("a", "many", better="lower")


def times_a_loop_of_no_iterations(rank):
    for _ in rank.timed("step", iterations=0):
        pass


@pytest.mark.parametrize("wrong", [
    {"body": None},
    {"body": "nothing.py"},
    {"body": "test_wrong.py::nobody"},
    {"body": lambda rank: None},
    {"body": body, "world_size": 64},
    {"body": body, "world_size": 3, "oversubscribed": "yes"},
    {"body": body, "params": {"a": object()}},
    {"body": body, "env": {"RANK": "0"}},
    {"body": body, "read": {"a": 1}},
    {"body": body, "timeout": -1},
    {"body": body, "seeds": []},
    {"body": body, "network": "fast"},
    {"body": body, "cpus": 0},
    {"body": body, "launches": 0},
    {"body": body, "tolerance": -0.5},
    {"body": ["false"], "makes_group": False},
    {"body": says_nothing},
    {"body": records_twice},
    {"body": records_text},
    {"body": times_a_loop_of_no_iterations},
    {"body": body, "params": {"count": 3}},
], ids=str)
def test_wrong(distbench, wrong):
    distbench.run(**wrong)


def test_twice(distbench):
    distbench.run(says_nothing)
    distbench.run(says_nothing)


def test_nothing(distbench):
    pass
"""

TRAIN = """
import json
import os

import torch
import torch.distributed as dist
from pytest_distbench import phase, record, timed
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
for step in range(12):
    x = torch.randn(16, 8, generator=torch.Generator().manual_seed(step))
    with phase("forward"):
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    record("gradient", model.module.weight.grad.norm(), better="curve")
    if dist.get_rank() == 0:
        print(f"iter {step}: loss {loss.item():.4f}, time 10.0ms")
        with open("log.jsonl", "a") as log:
            print(json.dumps({"eval": {"loss": round(loss.item(), 4)}}), file=log)
        with open("log.csv", "a") as log:
            print(f"{step},{loss.item():.4f}" if step else "step,loss\\n0,9.0", file=log)
for _ in timed("reduce", warmup=1, iterations=5):
    dist.all_reduce(torch.ones(4))
if dist.get_rank() == 0:
    event = {"key": "eval_accuracy", "value": 0.5, "time_ms": 1, "namespace": "", "event_type": "POINT_IN_TIME"}
    print(":::MLLOG", json.dumps({**event, "metadata": {}}))
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter("board") as writer:
        writer.add_scalar("quality", 0.5, 1)
dist.destroy_process_group()
""".replace("RATE", "0.02")
SCRIPTS = r"""
import pytest
from pytest_distbench.read import NUMBER, csv, jsonl, mllog, stdout, tensorboard

READ = {
    "loss_curve": stdout("loss " + NUMBER, better="curve", first=10),
    "final_loss": stdout("loss " + NUMBER, better="same"),
    "step_time": stdout(NUMBER + "ms", scale=1e-3, unit="s", better="lower", skip=2, at_most="20 ms"),
    "eval_loss": jsonl("log.jsonl", "eval.loss", better="info", take="min"),
    "column": csv("log.csv", "loss", better="info", take="last"),
    "eval_accuracy": mllog("eval_accuracy", better="floor"),
    "quality": tensorboard("board", "quality", better="floor"),
}
KEPT = pytest.mark.distbench(metrics=[*READ, "gradient", "fingerprint"])


@KEPT
def test_script(distbench):
    args = ["--out={launch_dir}", "--seed={seed}"]
    distbench.run("train.py", args=args, env={"WORDS": "{world_size}"}, seeds=[3], read=READ)


def test_module(distbench):
    distbench.check(module="json.tool", args=["data.json"], makes_group=False)


@KEPT
def test_command(distbench):
    command = ["python", "-m", "torch.distributed.run", "--nproc-per-node={world_size}", "train.py"]
    distbench.run(command, read={"final_loss": READ["final_loss"]}, cwd="{launch_dir}" if False else None)


def test_not_there(distbench):
    distbench.run("train.py", read={"a": stdout("nothing " + NUMBER, better="lower")})


def test_own_ranks(distbench):
    distbench.run("single.py")
"""
SCRIPT = {
    "test_script.py": SCRIPTS,
    "train.py": TRAIN,
    "data.json": "{}\n",
    "single.py": "print('alone')\n",
    "pytest.ini": INI,
    ".gitignore": "__pycache__/\n",
}

GOALS = """
import pytest


def train(rank):
    import torch
    from torch.nn.parallel import DistributedDataParallel

    torch.manual_seed(rank.seed)
    model = DistributedDataParallel(torch.nn.Linear(8, 1, bias=False))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    goal = rank.goal("loss", target=rank.params["goal"], every=5, max_steps=60, better="lower")
    for step in goal.steps(samples_per_step=16):
        x = torch.randn(16, 8, generator=torch.Generator().manual_seed(step))
        with rank.phase("forward"):
            loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        goal.check(lambda: rank.sum_over_ranks(float(loss)) / rank.world_size, loss=loss)


@pytest.mark.distbench(metrics=["fingerprint", "loss_curve", "steps_to_loss", "final_loss"])
def test_training(time_to_accuracy):
    time_to_accuracy(train, goal=0.5, seeds=range(2))
"""

SWEEPS = """
def test_all_reduce(collective_sweep):
    collective_sweep("all_reduce", sizes=[64, 4096], iterations=5, warmup=1)


def test_forms(collective_sweep):
    collective_sweep("all_gather", dtype="float16", sizes=[4096], iterations=5, in_place=False)


def test_transports(collective_sweep):
    collective_sweep("all_reduce", sizes=[4096], iterations=5, transport="all")


def test_buckets(communication):
    communication.buckets(message_bytes=4096, tensors=(1, 4), iterations=3)


def test_overlap(communication):
    communication.overlap(message_bytes=4096, matrix=16, multiplications=2, iterations=3)


def test_compression(communication):
    communication.compression("fp16", width=16, layers=2, iterations=3)


def test_links(communication):
    communication.links(bandwidth_bytes=4096, iterations=3, max_imbalance=1000)


def step(rank):
    import torch
    import torch.distributed as dist

    x = torch.ones(64)
    for _ in rank.timed("step", warmup=1, iterations=5):
        dist.all_reduce(x)


def test_replay(distbench, communication):
    communication.replay(distbench.check(step), iterations=5)
"""

SCALES = """
import pytest
from pytest_distbench.workloads.gradients import parallel
from pytest_distbench.workloads.rates import record_rate


def train(rank):
    import torch

    model = parallel(rank, torch.nn.Linear(64, 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x = torch.ones(rank.params["batch"], 64)
    for _ in rank.timed("step", warmup=1, iterations=5):
        with rank.phase("forward"):
            loss = model(x).square().mean()
        with rank.phase("backward"):
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    record_rate(rank, samples=rank.params["batch"])


@pytest.mark.parametrize("mode", ["weak", "strong"])
def test_scaling(scaling, mode):
    scaling(train, mode=mode, params={"batch": 8})
"""

JOBS = """
from pytest_distbench.elastic import crash, cycle, draw, job, join, kill, leave, serving, stop


def train(rank):
    import torch
    from torch.nn.parallel import DistributedDataParallel

    torch.manual_seed(0)
    x = torch.randn(2048, 64)
    labels = (x @ torch.randn(64, 10)).argmax(1)
    model = torch.nn.Linear(64, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    training = rank.training(model=model, optimizer=optimizer)
    for group in optimizer.param_groups:
        group["lr"] = 0.1 * rank.world_size
    ddp = DistributedDataParallel(model)
    for batch in training.batches(samples=len(x), batch=16, epochs=rank.params["epochs"]):
        loss = torch.nn.functional.cross_entropy(ddp(x[batch]), labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        training.note(loss=loss, accuracy=0.5, top5=0.9)
    rank.record("accuracy", 0.5, at_least=0.4)


def raises(rank):
    rank.training()
    raise ValueError("planted")


def test_fixed(elastic):
    elastic(train, nodes=2, params={"epochs": 4}, engine="fast")


def test_kill(elastic):
    elastic(train, nodes=(1, 2), plan=[kill(at_step=100)], params={"epochs": 4}, engine="fast", checkpoint_every=20)


def test_join(elastic):
    elastic(train, nodes=(1, 2), plan=[join(at_step=40)], ends_after=40, params={"epochs": 1000}, engine="fast")


def test_stock(elastic):
    elastic(train, nodes=(1, 2), plan=[leave(at_step=60)], params={"epochs": 4}, engine="stock")


def test_wrong(elastic):
    elastic(train, nodes=(2, 1), plan=cycle(period_s=1))


def test_raises(elastic):
    elastic(raises, nodes=1, engine="fast")


def test_pool(elastic_pool):
    jobs = [job("A", train, nodes=1, params={"epochs": 8}), job("B", train, nodes=(1, 2), params={"epochs": 8})]
    elastic_pool(jobs, slots=2, policy="gang", engine="fast")
"""
TORCHFT = """
def train(rank):
    pass


def test_torchft(elastic):
    elastic(train, nodes=2, engine="torchft")
"""

SPREAD = """
import json
import pathlib
import sys



def same_memory(value):
    if isinstance(value, dict) and value.get("name") == "peak_memory":
        value["value"] = 32768.0
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        same_memory(inner)


pathlib.Path("runs").mkdir()
for day in range(1, 25):
    run = json.loads(pathlib.Path(sys.argv[1 + (day > 12)]).read_text())
    same_memory(run)
    run["started"], run["commit"] = f"2026-01-{day:02}T03:04:05+00:00", f"{day:040x}"
    pathlib.Path(f"runs/{day}.json").write_text(json.dumps(run))
"""

HOSTS = """
import os
import subprocess
import sys

number, command = int(sys.argv[1]), sys.argv[2:]
hosts = [subprocess.Popen(command, env={**os.environ, "DISTBENCH_HOST": f"host{n}"}) for n in range(number)]
sys.exit(max(host.wait() for host in hosts))
"""

NETWORKED = """
import pytest


@pytest.mark.network("100mbit", delay="1ms", loss="0.1%", overlay=True, hosts=2)
def test_shared(collective_sweep):
    collective_sweep("all_reduce", sizes=[4096], iterations=3)


@pytest.mark.network(label="theirs")
def test_labelled(collective_sweep):
    collective_sweep("all_reduce", sizes=[4096], iterations=3)


@pytest.mark.network("1gbit")
def test_given(collective_sweep):
    collective_sweep("all_reduce", sizes=[4096], iterations=3)


def test_of_the_run(collective_sweep):
    collective_sweep("all_reduce", sizes=[4096], iterations=3)
"""

STRUCTURE = """
import pytest


def train(rank):
    import torch
    from torch.nn.parallel import DistributedDataParallel

    model = DistributedDataParallel(torch.nn.Linear(64, 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in rank.timed("step", warmup=1, iterations=3):
        model(torch.ones(4, 64)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.distbench(metrics=["fingerprint", "collectives", "sent_bytes"])
def test_train(distbench):
    distbench.run(train)


@pytest.mark.distbench(metrics=["fingerprint", "collectives", "sent_bytes"], fake_rank=-1)
def test_last(distbench):
    distbench.run(train)
"""

EXPERIMENT = """
description = "2 workers"
storage = "a disk"
cluster = "Cruiser10"
behind_gateway = false
expected = "as fast as before"

[test."test_it*"]
summary = "Requires further investigation"

[planned]
torch = "the next release"
"""
PRICES = """
currency = "USD"
per = "hour"
date = 2020-10-05
source = "a page"

[accelerator.T4]
regular = 0.35
preemptible = 0.11

[machine.small]
ranks_per_node = 1
regular = 0.19
preemptible = 0.04
accelerator = "T4"
accelerators_per_node = 1
"""
NCCL = """\
# nThread 1 nGpus 1 minBytes 8 maxBytes 65536 step: 2(factor) warmup iters: 5 iters: 20 validation: 1 graph: 0
#
# Using devices
#  Rank  0 Group  0 Pid  20100 on      node1 device  0 [0x1b] NVIDIA H100 80GB HBM3
#  Rank  1 Group  0 Pid  20101 on      node1 device  1 [0x2b] NVIDIA H100 80GB HBM3
#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
           8             2     float     sum      -1    12.06    0.00    0.00      0    11.98    0.00    0.00      0
       65536         16384     float     sum      -1    20.41    3.21    3.21      0    20.12    3.26    3.26      0
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 1.61
#
"""
TYPED = """[pytest]
distbench_world_size = 2
distbench_backend = gloo
distbench_launcher = warm
distbench_launches = 2:3
distbench_timeout = 60
distbench_baselines = stored
distbench_data = .
distbench_platform = a-machine
distbench_no_baseline = skip
distbench_tolerance = 0.2
distbench_out = out
distbench_json = run.json
distbench_report = run.html
distbench_experiment = experiment.toml
distbench_addresses = true
distbench_max_message = 4MiB
distbench_confirm = off
distbench_strict = true
distbench_fail_on_improvement = true
distbench_full = true
distbench_gpu = false
distbench_update = new
distbench_preload = json
distbench_short_options = false
"""
OTHER_KEYS = {
    "against": "distbench_against = HEAD\ndistbench_against_tolerance = 0.5\ndistbench_against_link = data\n",
    "against_python": "distbench_against_python = missing/python\n",
    "attach": "distbench_attach = 0\n",
    "trace": "distbench_trace = none\n",
    "fake": "distbench_backend = fake:1\n",
    "cmd": "distbench_launcher = {command} {nodes:2}\n",
    "network": "distbench_network = fast\n",
    "numa": "distbench_numa_binding = node\n",
}
"""Ini files whose keys meet in no run, by name."""

SUITES = {
    "pytest.ini": "[pytest]\npythonpath = suites/training suites/structure\ndistbench_preload = sklearn.datasets\n",
    ".gitignore": "__pycache__/\n",
}
ONE_LAUNCH = "--distbench-launches=1:1"
SUITE = f"pytest -q -rA --world-size 2 --distbench-json=run.json --distbench-confirm=off {ONE_LAUNCH}"


def of_suites(name: str, arguments: str, tables: str, more: str = "", first: str = "") -> Row:
    """A run of the suites, what is made ready first, and tables of it."""
    reports = [f"distbench report run.json --table {table}" for table in tables.split()]
    commands = [first, f"{SUITE} {arguments}", *reports, more]
    return Row(name, "\n".join(filter(None, commands)), SUITES, ("suites",))


ROWS = [
    Row(
        "help",
        """
        distbench --help
        for command in init doctor calibrate bisect compare report history explain; do distbench $command --help; done
        for command in list show update prune diff accept export import; do distbench baseline $command --help; done
        for command in list prepare verify; do distbench data $command --help; done
        pytest --help | grep -A2 -E '^ +(--distbench|--gpu|--world-size|distbench_)'
        pytest --fixtures -q | grep -A2 'pytest_distbench'
        """,
    ),
    Row(
        "unseen",
        """
        pytest --world-size 2 -v
        pytest -q --world-size 2 --distbench-no-baseline=fail -k planted
        pytest -q --world-size 2 --distbench-no-baseline=skip -k planted
        pytest -q --world-size 3,64 -k planted
        pytest -q --world-size 0
        pytest -q --world-size 2 --distbench-launches=0
        pytest -q --world-size 2 --distbench-backend=mpi
        pytest -q --world-size 2 --distbench-launcher=nothing
        pytest -q --distbench-nothing
        pytest -q --gpu
        pytest -q --distbench-gpu
        pytest -q --gpu --distbench-share=gpu,host -o distbench_numa_binding=node
        pytest -q --distbench-share=gpu
        pytest --collect-only -q --world-size 2
        """,
        PLAIN,
        is_planted=True,
    ),
    Row(
        "stored",
        f"""
        {RECORD} -v
        distbench baseline list
        distbench baseline show planted
        distbench baseline show -k efficiency
        {COMMIT}
        pytest --world-size 2 -v --distbench-json=a.json --distbench-out=out --distbench-experiment=experiment.toml
        {WORSE}
        pytest --world-size 2 --distbench-json=b.json --distbench-confirm=off --distbench-tolerance=0.1
        distbench baseline accept b.json --only failed --dry-run
        distbench compare a.json b.json
        distbench compare a.json b.json --fail --tolerance 0.5
        distbench report b.json --table verdicts
        distbench report b.json --table verdicts --format markdown
        distbench report b.json --table verdicts --format csv -o b.csv
        distbench report b.json --table verdicts --format parquet -o b.parquet
        distbench report b.json --format github-comment
        distbench report b.json --format html -o b.html
        distbench report b.json --html c.html --against a.json
        distbench baseline accept b.json --only all --force
        distbench baseline diff
        distbench baseline diff --markdown
        pytest -q --world-size 2 --distbench-confirm=off
        git checkout --quiet baselines work.py
        """,
        {**PLAIN, "experiment.toml": EXPERIMENT},
        is_planted=True,
    ),
    Row(
        "changed",
        f"""
        {RECORD}
        {COMMIT}
        {BROKEN}
        pytest --world-size 2 --distbench-confirm=off --distbench-json=run.json
        pytest -q --world-size 2 --distbench-confirm=off --distbench-platform=other --distbench-strict
        pytest -q --world-size 2 --distbench-update=changed
        git checkout --quiet work.py baselines
        {BETTER}
        pytest -q --world-size 2 --distbench-confirm=off
        pytest -q --world-size 2 --distbench-confirm=off --distbench-fail-on-improvement
        pytest -q --world-size 2 --distbench-confirm=always
        sed -i '/"answer"/d' test_it.py
        pytest -q --world-size 2 --distbench-confirm=off
        distbench baseline update --only all test_it.py --world-size 2 -q
        pytest -q --world-size 2 -k planted --distbench-update=all --distbench-launches=2:4
        """,
        PLAIN,
        is_planted=True,
    ),
    Row(
        "store",
        f"""
        {RECORD}
        {COMMIT}
        distbench baseline export -o all.json
        distbench baseline export --format csv -o all.csv
        distbench baseline export --format parquet -o all.parquet
        distbench baseline export --format csv -k checked
        distbench baseline import all.json --existing replace
        distbench baseline import all.json --baselines elsewhere
        distbench baseline list --baselines elsewhere --platform nothing
        for command in show list export; do distbench baseline $command --baselines elsewhere --platform any; done
        distbench baseline show --baselines elsewhere --platform any
        distbench baseline prune --baselines elsewhere --platform any
        distbench baseline diff elsewhere --baselines baselines --platform any
        pytest -q --world-size 2 --distbench-baselines=elsewhere -k planted
        distbench baseline import nccl.txt --as bounds --test 'test_it.py::test_planted[ws2]' --margin 10% \
            --platform any
        distbench baseline import nccl.txt --as baseline --test 'test_n.py::test_n[ws2]' \
            --backend gloo --launcher warm --world-size 2 --metric busbw --column out-of-place --min-size 8 \
            --max-size 64KiB --dtype float32 --redop sum --platform gpu-h100-8x
        distbench baseline show test_n
        sed -i 's/def test_planted/def test_renamed/' test_it.py
        distbench baseline prune --gone --root .
        pytest -q --world-size 2 --distbench-json=run.json
        distbench baseline prune run.json
        pytest -q --world-size 2 --distbench-update=new --distbench-prune
        distbench baseline prune --gone --delete
        distbench baseline prune -k nothing
        distbench baseline import nothing.json
        distbench baseline export --baselines elsewhere --platform none
        distbench baseline accept run.json --only all --baselines elsewhere --platform any
        """,
        {**PLAIN, "nccl.txt": NCCL},
        is_planted=True,
    ),
    Row(
        "marked",
        """
        pytest --world-size 2 test_marked.py -v --distbench-json=run.json
        pytest --world-size 2 test_marked.py -q --distbench-full --distbench-update=new
        pytest --world-size 2 test_marked.py -q --distbench-confirm=off
        pytest --distbench-world-size 4 test_marked.py -q -k large
        pytest --world-size 2 test_misspelled.py -q
        pytest --markers | grep -A1 -E 'mark.(world_size|gpu|cpu|network|full|distbench)'
        """,
        {**PLAIN, "test_marked.py": MARKED, "test_misspelled.py": MISSPELLED},
        is_planted=True,
    ),
    Row(
        "keys",
        "pytest -q test_it.py\n"
        + "\n".join(f"pytest -q --tb=line test_it.py -k planted -c {name}.ini --rootdir ." for name in OTHER_KEYS),
        {
            **PLAIN,
            "pytest.ini": TYPED,
            "experiment.toml": EXPERIMENT,
            **{f"{n}.ini": INI + k for n, k in OTHER_KEYS.items()},
        },
        is_planted=True,
    ),
    Row(
        "formats",
        """
        pytest -q --world-size 1,2 --distbench-json=run.json --distbench-report=run.html -o distbench_addresses=true
        distbench report run.json
        distbench report run.json --table control
        distbench report run.json --table environment
        distbench report run.json --table record
        distbench report run.json --table setup
        distbench report run.json --table nothing
        distbench report run.json --format text --table verdicts
        distbench report run.json --format nccl-tests-json
        distbench report run.json --format github-action-benchmark-smaller
        distbench report run.json --format github-action-benchmark-bigger
        distbench report run.json --format bencher
        distbench report run.json --format pytorch-benchmark
        distbench report run.json --format openmetrics
        distbench report run.json --format mllog
        distbench report run.json --format trace -o trace.json
        distbench report nothing.json
        """,
        PLAIN,
        is_planted=True,
    ),
    Row(
        "launches",
        """
        pytest -q --world-size 2 --distbench-json=run.json
        distbench report run.json --table launches
        """,
        PLAIN,
    ),
    Row(
        "timed",
        f"""
        pytest --world-size 2 --distbench-update=new
        {COMMIT}
        {MORE_CALLS}
        pytest --world-size 2 --distbench-json=run.json
        distbench report run.json --table phases
        distbench report run.json --table launches
        git checkout --quiet work.py
        pytest --world-size 2 --distbench-control=3 --distbench-json=control.json
        distbench report control.json --table control
        """,
        SLEEPS,
    ),
    Row(
        "confirmed",
        f"""
        pytest -q --world-size 2 --distbench-update=new --distbench-launches=3
        {COMMIT}
        {SLOWER}
        pytest --world-size 2 --distbench-confirm=auto:60 \
            --distbench-trace=regressed --distbench-json=run.json
        distbench report run.json --html run.html
        """,
        SLEEPS,
    ),
    Row(
        "against",
        f"""
        {SLOWER}
        mkdir -p data
        pytest --world-size 2 --distbench-against=HEAD -o distbench_against_tolerance=0.2 \
            -o distbench_against_link=data --distbench-json=run.json
        distbench report run.json --table verdicts
        pytest -q --world-size 2 --distbench-against=nothing
        pytest -q --world-size 2 --distbench-against=HEAD --distbench-update
        pytest -q --world-size 2 -o distbench_against_python=missing/python
        pytest -q --world-size 2 --distbench-against=HEAD -o distbench_against_python=$(which python) \
            --distbench-launches=3:3
        """,
        SLEEPS,
    ),
    Row(
        "bisected",
        f"""
        for n in 1 2 3; do echo $n > number.txt && git add --all && git commit --quiet --message $n; done
        {MORE_CALLS}
        git commit --quiet --all --message calls
        for n in 4 5; do echo $n > number.txt && git add --all && git commit --quiet --message $n; done
        distbench bisect HEAD~6 HEAD --timeout 120 --most-visits 9 --metric fingerprint \
            --link data --take pytest.ini -- test_loop.py --world-size 2
        distbench bisect HEAD~6 HEAD --restart --most-visits 1 -- test_loop.py --world-size 2
        distbench bisect HEAD nothing -- test_loop.py
        git switch --quiet --detach HEAD~6
        pytest -q --world-size 2 --distbench-update=new --distbench-baselines=$TMPDIR/good
        git switch --quiet - && git bisect start HEAD HEAD~6
        git bisect run distbench verdict --exact --metric fingerprint test_loop.py --world-size 2 \
            --distbench-baselines=$TMPDIR/good
        """,
        {**SLEEPS, "number.txt": "0\n", "data/kept": ""},
    ),
    Row(
        "history",
        f"""
        {QUIET}=first.json
        {WORSE}
        {QUIET}=second.json
        python spread.py first.json second.json
        {RECORD} -k planted
        {COMMIT}
        distbench history runs
        distbench history runs --all --last 12 -k step
        distbench history runs --points -k step --format csv -o points.csv
        distbench history runs --format markdown
        distbench history runs --html history.html
        distbench history runs --html history.html --points
        distbench history runs --otava otava
        distbench history runs --format parquet -o points.parquet
        distbench history --baselines baselines
        distbench report runs/24.json --html run.html --history runs
        distbench history nothing
        """,
        {**PLAIN, "spread.py": SPREAD},
        is_planted=True,
    ),
    Row(
        "calibrated",
        """
        distbench calibrate --launches 5 --tolerance 0.2 --json found.json --all test_loop.py --world-size 2
        distbench calibrate --seconds 1 test_loop.py --world-size 1
        """,
        SLEEPS,
    ),
    Row(
        "begun",
        "distbench init\ndistbench init\nls -A\npytest --collect-only -q suites --world-size 2",
        {".gitignore": "__pycache__/\n"},
    ),
    Row(
        "explained",
        "distbench explain\ndistbench explain inconclusive\ndistbench explain waiting for\ndistbench explain nonsense",
        is_planted=True,
    ),
    Row("doctor", "distbench doctor | cut -c7-24 | grep -v '^ *$'"),
    Row(
        "sets",
        """
        distbench data list
        distbench data prepare cifar10 epsilon wmt16 wmt17 wikitext2 --generated --data data
        distbench data verify --data data
        distbench data list --data data cifar10
        echo wrong > data/wikitext2/wiki.train.tokens
        distbench data verify --data data wikitext2
        rm -r data
        """,
        {".gitignore": "data/\n"},
    ),
    Row(
        "wrong",
        "pytest --world-size 1 -q --tb=short",
        {"test_wrong.py": WRONG, "pytest.ini": INI},
        is_planted=True,
    ),
    Row(
        "faults",
        "pytest -q --tb=line --world-size 2",
        {"test_faults.py": FAULTS.replace("LEFT_OUT", repr(LEFT_OUT)), "pytest.ini": INI},
        ("benchmarks/faults.py",),
        is_planted=True,
    ),
    Row(
        "attached",
        "printf 'p 6 * 7\\nc\\n' | pytest -q --world-size 2 --distbench-attach=1",
        {"test_it.py": "def body(rank):\n    breakpoint()\n\n\ndef test_it(distbench):\n    distbench.run(body)\n"},
        is_planted=True,
    ),
    Row(
        "scripts",
        f"""
        pytest --world-size 2 --distbench-update=new -v
        {COMMIT}
        pytest --world-size 2 --distbench-json=run.json --distbench-out=out -k 'script or module'
        sed -i 's/lr=0.02/lr=0.03/' train.py
        pytest -q --world-size 2 -k 'script or command' --distbench-confirm=off
        distbench report run.json --table phases
        """,
        SCRIPT,
        is_planted=True,
    ),
    Row(
        "launchers",
        """
        pytest -q --world-size 2 --distbench-launcher=torchrun -k planted
        pytest -q --world-size 2 --distbench-launcher='python hosts.py {nodes:1} {command}' -k planted
        pytest -q --world-size 2 --distbench-launcher=cmd
        pytest -q --world-size 2 --distbench-launcher='false' -k planted
        pytest -q --world-size 2 --distbench-launcher=slurm -k planted
        pytest -q --world-size 2 --distbench-timeout=0.5 -k planted
        """,
        {**PLAIN, "hosts.py": HOSTS},
        is_planted=True,
    ),
    Row(
        "slurm",
        "\n".join(
            f"python slurm_cluster.py 2 -- salloc -Q --nodes=2 pytest -q --world-size 2 {option}"
            for option in (
                "--distbench-launcher=slurm",
                "--distbench-launcher='srun --overlap -N {nodes} -n {nodes} --mpi=none {command}'",
                "--distbench-launcher='srun --overlap -N {nodes} -n {nodes} --mpi=none {torchrun}'",
            )
        ),
        PLAIN,
        ("tests/support/slurm_cluster.py",),
        is_planted=True,
    ),
    Row(
        "networks",
        """
        pytest -q -rs --world-size 2 test_n.py --distbench-network=1gbit --distbench-json=run.json
        distbench report run.json --table networks
        distbench report run.json --table collectives
        pytest -q -rs --world-size 2 test_n.py --distbench-network=none
        pytest -q -rs --world-size 2 test_n.py --distbench-network=label=lab -k of_the_run
        """,
        {"test_n.py": NETWORKED, "pytest.ini": INI},
    ),
    Row(
        "sweeps",
        """
        pytest -q -rs --world-size 2 --distbench-json=run.json --distbench-max-message=64KiB --distbench-report=run.html
        distbench report run.json --table collectives
        distbench report run.json --table transports
        distbench report run.json --table buckets
        distbench report run.json --table links
        distbench report run.json --table link_matrix
        distbench report run.json --format nccl-tests-json
        pytest -q -rs --world-size 2 --distbench-backend=gloo,mpi --distbench-json=backends.json -k all_reduce
        distbench report backends.json --table backends
        """,
        {"test_s.py": SWEEPS, "pytest.ini": INI},
    ),
    Row(
        "structure",
        f"""
        pytest -q --world-size 8,64 --distbench-backend=fake --distbench-update=new --distbench-json=run.json
        {COMMIT}
        pytest --world-size 8,64 --distbench-backend=fake -v
        distbench report run.json --table growth
        pytest -q --world-size 8 --distbench-backend=fake:3 --distbench-no-baseline=fail
        sed -i 's/Linear(64, 64)/Linear(64, 65)/' test_t.py
        pytest -q --world-size 8 --distbench-backend=fake
        """,
        {"test_t.py": STRUCTURE, "pytest.ini": INI, ".gitignore": "__pycache__/\n"},
        is_planted=True,
    ),
    Row(
        "goals",
        f"""
        pytest -q --world-size 1,2 --distbench-update=new --distbench-json=run.json
        {COMMIT}
        distbench report run.json --table cost --prices prices.toml
        distbench report run.json --table setup
        distbench report run.json --table record
        distbench report run.json --format mllog
        distbench report run.json --html run.html --prices prices.toml
        sed -i 's/lr=0.1/lr=0.02/' test_g.py
        pytest --world-size 1,2 --distbench-confirm=off
        """,
        {"test_g.py": GOALS, "prices.toml": PRICES, "pytest.ini": INI, ".gitignore": "__pycache__/\n"},
    ),
    Row(
        "scaled",
        """
        pytest -q --world-size 2 --distbench-json=run.json --distbench-report=run.html --distbench-trace=all
        distbench report run.json --table scaling
        distbench report run.json --table phases
        """,
        {"test_s.py": SCALES, "pytest.ini": INI},
    ),
    Row(
        "jobs",
        """
        pytest -q --tb=short --world-size 2 --distbench-json=run.json --distbench-report=run.html
        distbench report run.json --table elastic
        distbench report run.json --table events
        distbench report run.json --table workers
        distbench report run.json --table learning_rate
        distbench report run.json --table epochs
        distbench report run.json --table cycle
        distbench report run.json --table pool
        distbench report run.json --format trace -o trace.json
        """,
        {"test_jobs.py": JOBS, "test_torchft.py": TORCHFT, "pytest.ini": INI},
    ),
    of_suites("report-000-setups", "suites/elastic -k setups --distbench-full", "elastic"),
    of_suites(
        "report-000",
        "suites/elastic -k cycle",
        "elastic cycle epochs events workers learning_rate environment record",
    ),
    of_suites(
        "report-001-scaling",
        "suites/scaling/test_scaling.py -k 'mobilenet_v2 or packed' --distbench-full",
        "scaling phases setup record environment",
    ),
    of_suites(
        "report-001-data",
        "suites/scaling/test_input.py --distbench-full --distbench-data=data/cifar10",
        "scaling setup record",
        first="distbench data prepare cifar10 --generated --data data",
    ),
    of_suites(
        "report-001-accuracy",
        "suites/training/test_final_accuracy.py -k fixed --distbench-full",
        "accuracy final_accuracy cost record",
    ),
    of_suites("report-001-networks", "suites/networks -k 'comparison' --distbench-full", "networks collectives"),
    of_suites(
        "report-002", "suites/elastic -k 'pool or serving or varying' --distbench-full", "pool serving accuracy events"
    ),
    of_suites("report-003", "suites/scaling -k task --distbench-full", "scaling phases setup"),
    of_suites(
        "report-004-0a",
        "suites/collectives -k mlbench --distbench-full --distbench-max-message 256KiB",
        "collectives",
        "distbench report run.json --format nccl-tests-json -o nccl.json",
    ),
    of_suites(
        "report-004-1a",
        "suites/training/test_time_to_accuracy.py -k 'resnet20 and light or logistic'",
        "cost phases setup record",
        "distbench report run.json --table cost --format markdown",
    ),
    of_suites("report-004-3a", "suites/training/test_time_to_accuracy.py -k 'language_model'", "cost phases"),
    of_suites("report-004-4", "suites/training/test_time_to_accuracy.py -k 'gnmt' --distbench-full", "cost phases"),
    of_suites("communication", "suites/communication --distbench-full", "buckets links link_matrix"),
    of_suites(
        "first-picture",
        "suites/collectives suites/structure suites/training/test_throughput.py --distbench-max-message 64KiB",
        "collectives growth phases",
    ),
]
"""The fixed list."""


def record(out: Path, rows: Iterable[Row], jobs: int) -> None:
    """Run the rows, so many at once, and keep what each printed and left."""
    with ThreadPoolExecutor(jobs) as pool:
        for done in as_completed([pool.submit(run, row, out / row.name) for row in rows]):
            print(done.result(), flush=True)


def run(row: Row, out: Path) -> str:
    """Run a row; says how many seconds that took, and which commands took most of them."""
    shutil.rmtree(out, ignore_errors=True)
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="screens-") as made:
        place = Place(Path(made).resolve(), row)
        place.fill()
        commands = [" ".join(line.split()) for line in row.commands.strip().splitlines()]
        screen = "".join(map(place.run, commands))
        out.mkdir(parents=True)
        (out / SCREEN).write_text(screen)
        (out / PLACES).write_text(json.dumps(place.names))
        place.keep(out / STORED)
    slowest = sorted(place.seconds.items(), key=lambda each: -each[1])[:3]
    return f"{row.name}: {time.monotonic() - begun:.0f} s, of it " + ", ".join(
        f"{s:.0f} s {c[:60]}" for c, s in slowest
    )


class Place:
    """Where a row runs: a repository, and a folder for all that its commands write besides.

    Args:
        top: a fresh folder.
        row: what runs there.
    """

    def __init__(self, top: Path, row: Row) -> None:
        self.seconds: dict[str, float] = {}
        self._row = row
        self._folder = top / "repository"
        self._temporary = top / "tmp"
        self._package = Path(imported().__file__).parents[1]
        self._given: dict[Path, float] = {}
        self.names = {
            str(self._folder): "<here>",
            str(top): "<top>",
            str(self._package): "<package>",
            sys.prefix: "<python>",
            sys.base_prefix: "<python>",
            os.uname().nodename: "<host>",
        }
        """What stands for the names of this run."""

    def fill(self) -> None:
        """Write and commit what lies there before the first command."""
        self._temporary.mkdir(parents=True)
        self._folder.mkdir()
        for name, text in self._row.files.items():
            path = self._folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text.lstrip("\n"))
        for name in self._row.copied:
            source = (self._package if name == "suites" else HERE.parent) / name
            target = self._folder / source.name
            if source.is_dir():
                shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(source, target)
        self.run("git init --quiet && git add --all && git commit --quiet --allow-empty --message first")
        self._given = {path: path.stat().st_mtime for path in self._folder.rglob("*") if path.is_file()}

    def run(self, command: str) -> str:
        """Run one, and show it as a terminal would."""
        begun = time.monotonic()
        process = subprocess.Popen(
            ["bash", "-c", command], cwd=self._folder, env=self._variables(), start_new_session=True, text=True,
            errors="replace", stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        try:
            output, _ = process.communicate(timeout=LIMIT_S)
            status = str(process.returncode)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output, status = process.communicate()[0], f"not over after {LIMIT_S:g} s"
        self.seconds[command] = time.monotonic() - begun
        return f"$ {command}\n{output.rstrip()}\n[{status}]\n\n"

    def keep(self, out: Path) -> None:
        """Copy the files that were not there before, or are others now."""
        for path in sorted(self._folder.rglob("*")):
            name = str(path.relative_to(self._folder))
            if not path.is_file() or re.search(r"(^|/)(\.git|__pycache__)/", name):
                continue
            if self._given.get(path) == path.stat().st_mtime:
                continue
            target = out / name
            target.parent.mkdir(parents=True, exist_ok=True)
            if path.stat().st_size > MOST_BYTES or path.suffix in UNREADABLE:
                target.write_text("")
            else:
                shutil.copy(path, target)

    def _variables(self) -> dict[str, str]:
        kept = {n: v for n, v in os.environ.items() if not re.match("CI$|GITHUB_|PYTEST|DISTBENCH|COV|PYTHON", n)}
        return {
            **kept,
            "PATH": f"{Path(sys.executable).parent}:{kept['PATH']}",
            "HOME": str(self._temporary),
            "TMPDIR": str(self._temporary),
            "COLUMNS": "160",
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONPATH": str(self._package),
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "PYTEST_ADDOPTS": "-p distbench -p benchmark -p no:cacheprovider",
            **{f"GIT_{who}_{what}": "a" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")},
            **{f"GIT_{who}_DATE": "2026-01-02T03:04:05Z" for who in ("AUTHOR", "COMMITTER")},
        }


SCREEN, PLACES, STORED = "screen.txt", "places.json", "stored"
UNREADABLE = (".gz", ".parquet", ".sqlite", ".png", ".bin", ".pt")
NUMBER = r"(?<![\w.])\d[\d,]*(\.\d+)?(e[+-]?\d+)?"
UNIT = r"\s?(ns|us|ms|s|min|h|d|B|[kKMGT]i?B|samples|%)(/s)?(?![\w/])"
ALWAYS_MEASURED = re.compile(r"duration|fitness|free|kernel|wall_time|launch_s\b|^\W*(reduce|phase/)")
"""Lines whose numbers no body plants."""
SOMETIMES = re.compile(r"peak_memory|foreign_|crowding|^change: |^phase \S+: .* -> ")
"""Lines that depend on how noisy the machine was."""
MEASURED_KEYS = re.compile(
    r"cpu_course|companions|crowding|delayed_s|foreign|fitness|memory|peak|_s$|^seconds|took|began|time|slowest|late|^pid|machine"
)
MOST_KEPT = 10_000
"""Larger numbers are bytes and times."""
VICTIM = re.compile(r"(--- ranks? [\d, ]+: ).*followed from another rank's failure\n((?!---|logs:).*\n)*")
"""What a rank that waited for the culprit was seen at: a race."""
AGENTS_KILLED = re.compile(r"=+ warnings summary =+\n(\S*test_cycle.*\n|.*had not ended.*\n| .*\n|\n)*-- Docs: .*\n")
PROGRESS = re.compile(r"(\.py) *\n(distbench: .*\n)+(?=[.FNUsx?]+\b)")


class Masks:
    """Takes out of texts what differs between two runs of the same code.

    Args:
        row: its numbers are kept if they are planted.
        names: what stands for the names of the run.
    """

    def __init__(self, row: Row, names: Mapping[str, str]) -> None:
        self._is_planted = row.is_planted
        self._names = names
        written = " ".join([row.commands, *row.files.values()])
        self._planted = {float(found[0].replace(",", "")) for found in re.finditer(NUMBER, written)}

    def name(self, name: str) -> str:
        """The path of a file."""
        return re.sub(r"[0-9a-f]{10,}|\d{3,}", "#", name)

    def text(self, text: str) -> str:
        """What a program printed."""
        for name, word in self._names.items():
            text = text.replace(name, word)
        text = re.sub(r"/\S+/site-packages", "<site>", text)
        text = re.sub(r"<package>/pytest_distbench/[\w/]+\.py(:\d+)?", "<package>", text)
        text = re.sub(r"\x1b\[[\d;]*m|\r", "", text)
        text = re.sub(r"0x[0-9a-f]+", "<address>", text)
        text = re.sub(r"\b\d{4}-\d\d-\d\d([T ]\d\d:\d\d(:\d\d)?(\.\d+)?(Z|[+-]\d\d:?\d\d)?)?", "<date>", text)
        text = re.sub(r"(?<![\w.])(?=[a-f]*\d)(?=\d*[a-f])[0-9a-f]{7,40}\b", "<hash>", text)
        text = re.sub(r"\[?\b\d+\.\d+\.\d+\.\d+\b\]?(:\d+)?", "<host>", text)
        text = re.sub(r"<top>/repo\w*\.\.\.", "<here>...", text)
        text = re.sub(r'  File "<(package|site)>.*\n(    .*\n)*', "", text)
        text = re.sub(r"(<top>/tmp/\w+-)\w+", r"\1#", text)
        text = PROGRESS.sub(r"\1 ", VICTIM.sub(r"\1passed, in phase body\n", text))
        text = re.sub(r"(?<=\[W)\d{4} [\d:.]+", "<date>", text)
        text = re.sub(r"--- ranks? [\d, ]+: passed, in phase body\n", "", text)
        text = AGENTS_KILLED.sub("", text)
        text = re.sub(r"; rank \d was in [^;\n]*|(?<=rank )\d(?= raised BodyError)", "", text)
        return "\n".join(filter(None, map(self._line, text.splitlines())))

    def file(self, path: Path) -> str:
        """What a file holds."""
        text = path.read_text(errors="replace")
        if path.suffix == ".html":
            data = re.findall(r"<script[^>]*json[^>]*>(.*?)</script>", text, re.DOTALL)
            text = re.sub(r"<(script|style|svg)\b.*?</\1>", "", text, flags=re.DOTALL)
            return self.text(html.unescape(re.sub(r"\s*<[^>]+>\s*", "\n", text))) + "".join(map(self._json, data))
        return self._json(text) if path.suffix == ".json" else self.text(text)

    def _json(self, text: str) -> str:
        try:
            value = json.loads(text)
        except json.JSONDecodeError:
            return self.text(text)
        masked = self._value(value)
        if self._is_planted:
            return json.dumps(masked, indent=1, sort_keys=True)
        return "\n".join(sorted(set(leaves(masked))))

    def _value(self, value: Any) -> Any:
        if isinstance(value, dict):
            kept = {name: inner for name, inner in value.items() if not self._is_measured(name, inner)}
            return {self.text(name): self._value(inner) for name, inner in kept.items()}
        if isinstance(value, list):
            return [self._value(each) for each in value]
        if isinstance(value, str):
            return self.text(value)
        if value is None or isinstance(value, bool):
            return value
        return value if self._is_planted and value in self._planted and value < MOST_KEPT else "#"

    def _is_measured(self, name: str, value: Any) -> bool:
        return name == "fates" or (not isinstance(value, str | bool) and MEASURED_KEYS.search(name) is not None)

    def _line(self, line: str) -> str:
        line = re.sub(r"[ \t]+", " ", re.sub(r"[-=_]{4,}", "----", line)).strip()
        line = line.replace("--distbench-attach 0", "--distbench-attach 1")
        if SOMETIMES.search(line) or re.match(r"(platform|plugins:|benchmark:) ", line):
            return ""
        if re.match(r"slot ?\d", line):
            return re.sub(r"(.)\1+", r"\1", line)
        if not self._is_planted or ALWAYS_MEASURED.search(line):
            line = re.sub(rf"[+±~-]?\s?{NUMBER}({UNIT})?", "#", line.replace("negative scaling", ""))
            line = re.sub(r"<#|(?<= )-(?= |$)", "#", line)
            line = re.sub(r"\s*#(\s*[,:x-]?\s*#)*", " #", line)
            return re.sub(r"in # \(#\)|in # \( #\)", "in #", line).replace(", # warning in", " in").strip()
        line = re.sub(r"\babout [\d.]+( s| min)?( to [\d.]+)? (s|min)\b", "about #", line)
        line = re.sub(r"(?<![-=\w])\d+(\.\d+)? ?(s|min)\b( \(\d:\d\d:\d\d\))?", "# s", line)
        line = re.sub(r"\b[\d.]+ (us|ns)\b", "# s", line)
        line = re.sub(r"\b\d{5,}(\.\d+)?\b", "#", line)
        line = re.sub(r"(pid|process|port|line|Thread-|worker-|launch)( ?)\d+", r"\1\2#", line)
        return re.sub(r"(\.py):\d+", r"\1:#", line)


def leaves(value: Any, path: str = "") -> Iterator[str]:
    """Each value in a JSON document, behind the names that lead to it."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from leaves(inner, f"{path}.{name}")
    elif isinstance(value, list):
        for inner in value:
            yield from leaves(inner, f"{path}[]")
    elif value is not None and "had not ended" not in str(value):
        yield f"{path}: {value}"


def imported() -> Any:
    """The package that is looked at."""
    import pytest_distbench

    return pytest_distbench


def compare(old: Path, new: Path) -> bool:
    """Print what differs, row by row; says whether nothing does."""
    names = sorted({path.name for folder in (old, new) for path in folder.iterdir() if path.is_dir()})
    differing = []
    for name in names:
        before, after = kept(old / name), kept(new / name)
        lines = [
            line
            for file in sorted({*before, *after})
            for line in difflib.unified_diff(
                before.get(file, []), after.get(file, []), f"old/{name}/{file}", f"new/{name}/{file}", lineterm="", n=2
            )
        ]
        if lines:
            differing.append(name)
            print(*lines, sep="\n")
    print(f"{len(names)} rows, {len(differing)} differ{': ' if differing else ''}{', '.join(differing)}")
    return not differing


def kept(folder: Path) -> dict[str, list[str]]:
    """The masked lines of the screen of a row, and of each file that it left."""
    row = next((row for row in ROWS if row.name == folder.name), Row(folder.name, ""))
    if not folder.exists():
        return {}
    masks = Masks(row, json.loads((folder / PLACES).read_text()))
    stored = folder / STORED
    files = {masks.name(str(p.relative_to(folder))): masks.file(p) for p in sorted(stored.rglob("*")) if p.is_file()}
    return {name: text.splitlines() for name, text in {SCREEN: masks.file(folder / SCREEN), **files}.items()}


def uncovered() -> Iterator[str]:
    """What the package has, by its own help, and no row uses."""
    commands = "\n".join(row.commands for row in ROWS if row.name != "help")
    files = "\n".join(text for row in ROWS for text in row.files.values())
    ini = "\n".join(text for row in ROWS for name, text in row.files.items() if name.endswith(".ini"))
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "pytest.ini").write_text(INI)
        theirs = asked(folder, "pytest -p no:distbench --help")
        ours = asked(folder, "pytest --help")
        known = asked(folder, "pytest -p no:distbench --markers")
        markers = asked(folder, "pytest --markers")
        fixtures = asked(folder, "pytest --fixtures -q")
        helped = {"": asked(folder, "distbench --help")}
        for command in re.findall(r"^    ([a-z]+)\b", helped[""], re.MULTILINE):
            helped[command] = asked(folder, f"distbench {command} --help")
            for inner in (
                re.findall(r"^    ([a-z]+)\b", helped[command], re.MULTILINE)
                if "COMMAND ..." in helped[command]
                else ()
            ):
                helped[f"{command} {inner}"] = asked(folder, f"distbench {command} {inner} --help")
    for option in sorted(
        set(re.findall(r"^  (--[a-z-]+)", ours, re.MULTILINE))
        - set(re.findall(r"^  (--[a-z-]+)", theirs, re.MULTILINE))
    ):
        if not re.search(rf"{option}(?![\w-])", commands):
            yield f"option {option}"
    for key in sorted(set(re.findall(r"^  (distbench_\w+) \(", ours, re.MULTILINE))):
        if not re.search(rf"^{key} =", ini, re.MULTILINE):
            yield f"ini key {key}"
    for marker, keywords in re.findall(r"^@pytest\.mark\.(\w+)(?:\((.*?)\))?:", markers, re.MULTILINE):
        if f"@pytest.mark.{marker}" in known:
            continue
        uses = re.findall(rf"mark\.{marker}\b(?:\((.*)\))?", files)
        yield from () if uses else [f"marker {marker}"]
        yield from (
            f"marker {marker}({word}=)"
            for word in re.findall(r"(\w+)=", keywords)
            if not any(f"{word}=" in use for use in uses)
        )
    found = re.search(r"defined from pytest_distbench(.*?)(\n---|\Z)", fixtures, re.DOTALL)
    for fixture in re.findall(r"^(\w+) --", found[1] if found else "", re.MULTILINE):
        if not re.search(rf"def test_\w+\(.*\b{fixture}\b", files):
            yield f"fixture {fixture}"
    for command, text in helped.items():
        if command and "COMMAND ..." not in text and f"distbench {command}" not in commands:
            yield f"command {command}"
        for short, option in re.findall(r"^ +(-\w)?(?: [A-Z]+)?,? ?(--[a-z-]+)", text, re.MULTILINE):
            spelt = rf"distbench {command} .*({option}\b{f'| {short} ' if short else ''})"
            if command and option != "--help" and not re.search(spelt, commands):
                yield f"command {command} {option}"
    report = helped["report"]
    tables = re.search(r"one of ([\w, \n-]+);", report)
    for table in re.findall(r"\w+", tables[1] if tables else ""):
        if f"--table {table}" not in commands:
            yield f"table {table}"
    formats = re.search(r"--format {([^}]*)}", report)
    for name in (formats[1].replace("\n", "").replace(" ", "") if formats else "").split(","):
        if not re.search(rf"--format {name}(?![\w-])", commands):
            yield f"format {name}"


def asked(folder: str, command: str) -> str:
    """What a program says of itself, in lines that are not broken."""
    variables = {
        **os.environ,
        "COLUMNS": "1000",
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTEST_ADDOPTS": "-p no:cacheprovider",
    }
    return subprocess.run(
        ["bash", "-c", command], cwd=folder, env=variables, capture_output=True, text=True, check=True
    ).stdout


def main() -> int:
    """Do what the first word asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parsers = parser.add_subparsers(dest="what", required=True)
    recorder = parsers.add_parser("record")
    recorder.add_argument("out", type=Path)
    recorder.add_argument("--only", default="", help="names of rows, with commas between")
    recorder.add_argument("-j", type=int, default=1, help="rows at once")
    comparer = parsers.add_parser("compare")
    comparer.add_argument("old", type=Path)
    comparer.add_argument("new", type=Path)
    parsers.add_parser("covers")
    options = parser.parse_args()
    if options.what == "record":
        names = [row.name for row in ROWS]
        only = options.only.split(",") if options.only else names
        if unknown := set(only) - set(names):
            parser.error(f"no row {', '.join(sorted(unknown))}; wanted some of {', '.join(names)}")
        record(options.out, [row for row in ROWS if row.name in only], options.j)
        return 0
    if options.what == "compare":
        return 0 if compare(options.old, options.new) else 1
    missing = [*uncovered()]
    print(*missing, f"{len(missing)} not covered", sep="\n")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
