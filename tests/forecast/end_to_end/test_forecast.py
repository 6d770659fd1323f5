"""Forecasts of a training, and what is said of one that became dearer."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.launching import RunInside
from support.processes import LIMIT_S

from pytest_distbench.store.files import read_run_record

pytestmark = [pytest.mark.spawn, pytest.mark.timeout(LIMIT_S)]

MEASURED = """
ranks_per_node = 8
[node]
latency = "50 us"
bandwidth = "1 GB/s"
[network]
latency = "100 us"
bandwidth = "0.1 GB/s"
"""
BODIES = """
import os
import torch
from torch.distributed.fsdp import fully_shard
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

def net():
    return torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(4)])

def train(rank):
    if rank.params["way"] == "ddp":
        model = DistributedDataParallel(net(), bucket_cap_mb=float(os.environ.get("CAP", "25")))
    elif rank.params["way"] == "hsdp":
        model = net()
        mesh = init_device_mesh("cpu", (rank.world_size // 8, 8), mesh_dim_names=("nodes", "node"))
        for layer in model:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
    elif rank.params["way"] == "tp":
        model = parallelize_module(net(), init_device_mesh("cpu", (rank.world_size,)), {
            "0": ColwiseParallel(), "1": RowwiseParallel(), "2": ColwiseParallel(), "3": RowwiseParallel()
        })
    else:
        model = net()
        for layer in model:
            fully_shard(layer)
        fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=rank.params.get("foreach"))
    for _ in rank.timed("step", warmup=rank.params.get("warmup", 2), iterations=5):
        loss = model(torch.ones(8, 64)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank.params.get("reads"):
            print("loss", loss.item())
    rank.record("world_size", rank.world_size)

def idle(rank):
    pass

def choosy(rank):
    for _ in rank.timed("step", warmup=2, iterations=5):
        torch.ones(4).nonzero()

def broken(rank):
    for _ in rank.timed("step", warmup=2, iterations=5):
        raise ValueError("out of luck")
"""
TESTS = """
import pytest

@pytest.mark.parametrize("way", ["ddp", "fsdp"])
def test_step(forecast, way):
    forecast("bodies.py::train", worlds=[1, 8, 64], cluster="h100-ib400", params={"way": way})
"""


@pytest.fixture(autouse=True)
def _project(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\n")


def measured() -> list[dict[str, Any]]:
    """Measured values of each case of the recorded run, by key."""
    return [
        {each.key: each.value for each in result.launches[0].measurements}
        for result in read_run_record(Path("run.json")).results
    ]


def test_a_change_that_costs_something_on_many_ranks_is_red(
    pytester: pytest.Pytester, run_inside: RunInside, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytester.makepyfile(bodies=BODIES, test_step=TESTS)
    run_inside("--distbench-update=new", "--distbench-json=run.json").assert_outcomes(passed=2)
    ddp, fsdp = measured()

    assert ddp["efficiency[ranks=1]"] == fsdp["efficiency[ranks=1]"] == 1.0
    assert ddp["step_forecast[ranks=64]"] > ddp["step_forecast[ranks=8]"] > ddp["step_forecast[ranks=1]"]
    assert (
        ddp["flops[ranks=1]"] == ddp["flops[ranks=64]"] == 3 * 4 * 2 * 8 * 64 * 64 - 2 * 8 * 64 * 64
    )  # none for the input
    assert ddp["gradient_bytes[ranks=64]"] == 4 * (64 * 64 + 64) * 4
    assert fsdp["gradient_bytes[ranks=8]"] == ddp["gradient_bytes[ranks=8]"] / 8
    assert "peak_memory" not in ddp
    assert "world_size" not in ddp  # the body ends with its step

    run_inside().assert_outcomes(passed=2)
    monkeypatch.setenv("CAP", "0.01")
    found = run_inside()
    found.assert_outcomes(passed=1, failed=1)
    found.stdout.re_match_lines_random(
        [
            r".*step at \d ranks and \d more: .*all_reduce.*became.*",
            r"\+\d.* % at 64 ranks",
            r"  \d+ all_reduce of .* float32, 0 before: .* more to send, a step waits .* for them",
        ]
    )


LATE = """
import torch
import torch.distributed as dist

def train(rank):
    x = torch.ones(1024, 1024)
    gathered = torch.empty(rank.world_size * 1024)
    for _ in rank.timed("step", warmup=1, iterations=3):
        if not rank.params["is_late"]:
            work = dist.all_gather_into_tensor(gathered, x[0], async_op=True)
        for _ in range(12):
            y = x @ x
        if rank.params["is_late"]:
            dist.all_gather_into_tensor(gathered, y[0])
        else:
            work.wait()
"""
OTHERS = """
import pytest

@pytest.mark.parametrize("is_late", [False, True])
def test_gather(forecast, is_late):
    forecast("late.py::train", worlds=[8], cluster="h100-ib400", params={"is_late": is_late})

@pytest.mark.parametrize("warmup", [2, 4])
def test_ddp(forecast, warmup):
    forecast("bodies.py::train", worlds=[8], cluster="h100-ib400", params={"way": "ddp", "warmup": warmup})

def test_matrices(forecast):
    forecast("bodies.py::train", worlds=[8], cluster="h100-ib400", params={"way": "tp"})
"""


def test_what_is_waited_for_is_exposed(pytester: pytest.Pytester, run_inside: RunInside) -> None:
    """A gather waits for what was computed before it, unlike FSDP's; and DDP rebuilds its buckets in no step."""
    pytester.makepyfile(bodies=BODIES, late=LATE, test_step=OTHERS)
    run_inside("--distbench-json=run.json").assert_outcomes(passed=5)
    early, late, sorted_again, steady, matrices = measured()

    assert early["exposed[ranks=8]"] == 0
    assert late["exposed[ranks=8]"] == pytest.approx(late["communication[ranks=8]"], rel=1e-3)
    assert late["communication[ranks=8]"] > 0
    assert sorted_again["step_forecast[ranks=8]"] == pytest.approx(steady["step_forecast[ranks=8]"], rel=1e-3)
    assert matrices["exposed[ranks=8]"] > 0


def test_a_call_that_only_became_exposed_is_named_with_its_time_before(
    pytester: pytest.Pytester, run_inside: RunInside
) -> None:
    late = LATE.replace('rank.params["is_late"]', "IS_LATE").replace("def train", "IS_LATE = False\n\ndef train")
    test = 'def test_gather(forecast):\n    forecast("late.py::train", worlds=[8], cluster="h100-ib400")\n'
    pytester.makepyfile(late=late, test_step=test)
    for command in (["init", "-q"], ["add", "-A"], ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "a"]):
        subprocess.run(["git", *command], cwd=pytester.path, check=True)
    pytester.makepyfile(late=late.replace("IS_LATE = False", "IS_LATE = True"))

    found = run_inside("--distbench-against=HEAD", "--distbench-launches=3:3")

    found.assert_outcomes(failed=1)
    found.stdout.re_match_lines_random(
        [r"\+\d.* % at 8 ranks", r"  it waits .* us \(0 s before\) for 1 all_gather_into_tensor of 4 KiB float32"]
    )


def test_computing_is_measured_where_the_cluster_states_none(pytester: pytest.Pytester, run_inside: RunInside) -> None:
    pytester.makepyfile(bodies=BODIES, test_step=TESTS.replace('"h100-ib400"', '"mine.toml"'))
    (pytester.path / "mine.toml").write_text(MEASURED)
    run_inside("--distbench-json=run.json").assert_outcomes(passed=2)
    result = read_run_record(pytester.path / "run.json").results[0]
    found = {each.key: each for each in result.launches[0].measurements}

    assert found["step_forecast[ranks=64]"].better == "info"
    assert found["step_forecast[ranks=64]"].facts["computing"] == "measured"
    spread = found["step"].spread
    assert spread is not None
    assert found["step_forecast[ranks=1]"].value == pytest.approx(spread.median)
    shown = subprocess.run(
        [sys.executable, "-m", "pytest_distbench", "report", str(pytester.path / "run.json"), "--table", "forecast"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "efficiency" in shown.stdout
    assert re.search(r"^test_step\[ddp-.*: communication .* of a step waits for it$", shown.stdout, re.MULTILINE)


FAKE = """
import pytest

@pytest.mark.parametrize("fake_tensors", [False, True])
@pytest.mark.parametrize("way", ["fsdp", "hsdp", "tp"])
def test_step(forecast, way, fake_tensors):
    forecast("bodies.py::train", worlds=[64], cluster="h100-ib400", params={"way": way, "reads": True},
             fake_tensors=fake_tensors)

@pytest.mark.parametrize("fake_tensors", [False, True])
@pytest.mark.parametrize("body", ["sliced", "functional", "scaled"])
def test_body(forecast, body, fake_tensors):
    forecast(f"odd.py::{body}", worlds=[64], cluster="h100-ib400", fake_tensors=fake_tensors)
"""
ODD = """
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol

def sliced(rank):
    data, net = torch.arange(100), torch.nn.Embedding(100, 8)
    for _ in rank.timed("step", warmup=1, iterations=3):
        tokens = torch.stack([data[i:i + 16] for i in torch.randint(80, (4,))])
        net(tokens).sum().backward()

def functional(rank):
    x = torch.ones(64, 8)
    for _ in rank.timed("step", warmup=1, iterations=3):
        for found in (
            funcol.all_reduce(x, "sum", dist.group.WORLD),
            funcol.all_gather_tensor(x, 0, dist.group.WORLD),
            funcol.reduce_scatter_tensor(x, "avg", 0, dist.group.WORLD),
            funcol.all_to_all_single(x, None, None, dist.group.WORLD),
            funcol.broadcast(x, 0, dist.group.WORLD),
            *funcol.all_reduce_coalesced([x, x], "sum", dist.group.WORLD),
        ):
            found + 1

def scaled(rank):
    net = torch.nn.Linear(8, 8)
    optimizer, scaler = torch.optim.AdamW(net.parameters(), foreach=True), torch.amp.GradScaler("cpu")
    for _ in rank.timed("step", warmup=1, iterations=3):
        scaler.scale(net(torch.ones(4, 8)).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
"""


def test_tensors_without_data_make_the_same_forecast(pytester: pytest.Pytester, run_inside: RunInside) -> None:
    pytester.makepyfile(bodies=BODIES, odd=ODD, test_step=FAKE)
    run_inside("--distbench-json=run.json").assert_outcomes(passed=12)
    found = measured()

    for with_data, without in zip(found[::2], found[1::2], strict=True):
        assert with_data == pytest.approx(without, rel=1e-3)
    fingerprints = [result.launches[0].fingerprints for result in read_run_record(Path("run.json")).results]
    assert fingerprints[::2] == fingerprints[1::2]
    matrices = found[4]["activation_bytes[ranks=64]"]  # a batch of 8; a rank has 1 of 64 columns
    assert matrices == 4 * (8 * 64 + 8 * 1 + 8 * 64 + 8 * 1 + 8 * 64)


EQUAL = """
import torch

X, Y, ROWS, TABLES = torch.ones(512, 512), torch.zeros(512, 512), torch.ones(512, 1), torch.ones(2, 4096, 64)
WAYS = {
    "clone": lambda: X.clone(),
    "copy_": lambda: Y.copy_(X),
    "mul": lambda: X * X,
    "mul out": lambda: torch.mul(X, X, out=Y),
    "zeros": lambda: torch.zeros(512, 512),
    "zero_": lambda: torch.empty(512, 512).zero_(),
    "flattened": lambda: (X @ X).reshape(4, 128, 512),
    "flat": lambda: X @ X,
    "expanded": lambda: X + ROWS.expand(512, 512),
    "broadcast": lambda: X + ROWS,
    "rows of a large table": lambda: torch.nn.functional.embedding(torch.arange(8), TABLES[0]),
    "rows of a small table": lambda: torch.nn.functional.embedding(torch.arange(8), TABLES[0, :64]),
}

def train(rank):
    net = torch.nn.Linear(512, 512)
    optimizer = torch.optim.AdamW(net.parameters(), foreach=rank.params["way"] == "many at once")
    for _ in rank.timed("step", warmup=1, iterations=3):
        if rank.params["way"] in WAYS:
            WAYS[rank.params["way"]]()
        else:
            net(X).sum().backward()
            optimizer.step()
"""
PAIRS = """
import pytest
from equal import WAYS

@pytest.mark.parametrize("way", [*WAYS, "one by one", "many at once"])
def test_step(forecast, way):
    forecast("equal.py::train", worlds=[1], cluster="h100-ib400", params={"way": way})
"""


def test_code_that_moves_as_much_memory_computes_as_long(pytester: pytest.Pytester, run_inside: RunInside) -> None:
    pytester.makepyfile(equal=EQUAL, test_step=PAIRS)
    run_inside("--distbench-json=run.json").assert_outcomes(passed=14)
    steps = [case["step_forecast[ranks=1]"] for case in measured()]

    for one, other in zip(steps[::2], steps[1::2], strict=True):
        assert one == pytest.approx(other, rel=1e-2)


REFUSED = {
    'forecast("bodies.py::idle", worlds=[8], cluster="h100-ib400")': "the body has no step to forecast",
    'forecast("bodies.py::broken", worlds=[8], cluster="h100-ib400")': "out of luck",
    'forecast("bodies.py::train", worlds=[8], cluster="h100-ib400", params={"way": "ddp"}, fake_tensors=True)': (
        "the body needs data, as DistributedDataParallel and shapes that depend on values do"
    ),
    'forecast("bodies.py::choosy", worlds=[8], cluster="h100-ib400", fake_tensors=True)': (
        "DynamicOutputShapeException: aten.nonzero.default"
    ),
    'forecast("bodies.py::train", worlds=[8], cluster="mine.toml", fake_tensors=True)': "nothing to measure",
    'forecast("bodies.py::train", worlds=[8], cluster="h100-ib400", fake_tensors="no")': "fake_tensors",
    'forecast("bodies.py::train", worlds=8, cluster="h100-ib400")': "worlds=8: wanted a list of 1 to 16 numbers",
    'forecast("bodies.py::train", worlds=[], cluster="h100-ib400")': "worlds=[]: wanted a list of 1 to 16 numbers",
    'forecast("bodies.py::train", worlds=[8, 8], cluster="h100-ib400")': "wanted each once",
    'forecast("bodies.py::train", worlds=[0], cluster="h100-ib400")': "worlds: a number of ranks",
    'forecast("bodies.py::train", worlds=[8], cluster="gh200")': "cluster='gh200': no file",
    'forecast("bodies.py::train", worlds=[8], cluster="h100-ib400", world_size=2)': "world_size",
}


def test_what_cannot_be_forecast_is_refused(pytester: pytest.Pytester, run_inside: RunInside) -> None:
    calls = "\n".join(f"def test_{i}(forecast):\n    {each}" for i, each in enumerate(REFUSED))
    pytester.makepyfile(bodies=BODIES, test_step=calls)
    (pytester.path / "mine.toml").write_text(MEASURED)
    found = run_inside()

    found.assert_outcomes(failed=len(REFUSED))
    text = " ".join(found.stdout.str().split())
    for sentence in REFUSED.values():
        assert sentence in text


SWEEP = """
import pytest

@pytest.mark.parametrize("collective", ["all_reduce", "all_gather"])
def test_sweep(collective_sweep, collective):
    collective_sweep(collective, sizes=[1024, 16384, 65536, 1048576], iterations=5, warmup=1)
"""


def test_a_sweep_becomes_a_cluster(pytester: pytest.Pytester, run_inside: RunInside) -> None:
    pytester.makepyfile(test_sweep=SWEEP)
    run_inside("--world-size=2", "--distbench-json=run.json").assert_outcomes(passed=2)
    made = [sys.executable, "-m", "pytest_distbench", "cluster"]
    shown = subprocess.run(
        [*made, "run.json", "--ranks-per-node", "8"], cwd=pytester.path, capture_output=True, text=True, check=True
    )
    (pytester.path / "mine.toml").write_text(shown.stdout)
    pytester.makepyfile(bodies=BODIES, test_step=TESTS.replace('"h100-ib400"', '"mine.toml"'))
    run_inside("test_step.py").assert_outcomes(passed=2)
    missed = re.sub("missed = .*", "missed = 0.9", shown.stdout)
    (pytester.path / "mine.toml").write_text(f'{missed}\n[computing]\nfloat32 = "1 TFLOP/s"\nmemory = "1 GB/s"\n')
    found = run_inside("test_step.py", "-Wdefault::pytest_distbench.errors.DistbenchWarning")
    found.assert_outcomes(passed=2, warnings=2)
    found.stdout.fnmatch_lines(["*cluster 'mine.toml' is off by 90 %, more than within=0.25: no step is judged"])

    assert "[collectives.all_reduce]" in shown.stdout
    assert "[collectives.all_gather]" in shown.stdout
    (pytester.path / "test_sweep.py").unlink()
    run_inside("test_step.py", "--distbench-json=other.json")
    refused = subprocess.run(
        [*made, "other.json", "--ranks-per-node", "8"], cwd=pytester.path, capture_output=True, text=True, check=False
    )
    assert refused.returncode == 2
    assert "has no sweep of a collective with 4 sizes on 2 ranks or more" in refused.stderr
