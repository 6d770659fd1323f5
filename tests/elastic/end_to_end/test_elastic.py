"""An elastic job under real torchrun agents: a training that loses a node, and one that is killed in a change."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from support.processes import wait_for

from pytest_distbench.commands.cli import main
from pytest_distbench.elastic.engines.nodes import prints_events
from pytest_distbench.elastic.records import runs_of, unaccounted_s
from pytest_distbench.store.files import read_run_record

pytestmark = pytest.mark.spawn

EXAMPLE = """
from pytest_distbench.elastic import kill


def train(rank):
    import torch
    from torch.nn.parallel import DistributedDataParallel

    torch.manual_seed(0)
    x = torch.randn(8192, 64)
    labels = (x @ torch.randn(64, 10)).argmax(1)
    model = torch.nn.Linear(64, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    training = rank.training(model=model, optimizer=optimizer)  # takes what the last good checkpoint has
    for group in optimizer.param_groups:
        group["lr"] = 0.1 * rank.world_size
    ddp = DistributedDataParallel(model)
    for batch in training.batches(samples=len(x), batch=16, epochs=4):  # indices: each sample once per epoch
        loss = torch.nn.functional.cross_entropy(ddp(x[batch]), labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        training.note(loss=loss)


def test_lost_node(elastic):
    elastic(train, nodes=(1, 2), plan=[kill(at_step=100)], checkpoint_every=20)
"""
COMMAND = ("--world-size", "2", "--distbench-launcher=torchrun")
"""A launcher that prepares nothing, for nodes are not started by it."""


@pytest.mark.usefixtures("closed_doors")
def test_a_training_loses_a_node_and_every_sample_is_trained_on_once(
    pytester: pytest.Pytester, capsys: pytest.CaptureFixture[str]
) -> None:
    pytester.makepyfile(test_mine=EXAMPLE)
    result = pytester.runpytest_subprocess(*COMMAND, "-s", "--distbench-json=run.json")

    result.stdout.fnmatch_lines(["*elastic: 1 to 2 nodes, 2 at the start, kill(at_step=100); checkpoint every 20 *"])
    assert result.ret == 0
    [case] = read_run_record(pytester.path / "run.json").results
    [launch] = case.launches
    values = {m.key: m.value for m in launch.measurements}
    [run] = runs_of(launch.events)
    [change] = run.changes
    assert (change.kind, change.slots, change.before, change.after, change.rounds) == ("kill", [1], 2, 1, 1)
    assert change.stall_s is not None
    assert change.recovery_s is not None
    assert 0 <= change.steps_redone <= 20
    assert {"import", "group_init", "build", "checkpoint_load", "first_step"} <= change.parts.keys()
    if prints_events():
        assert {"detect", "rendezvous", "process_start"} <= change.parts.keys()
        assert abs(unaccounted_s(change) or 0.0) < 0.1 * change.recovery_s
    assert [epoch.epoch for epoch in run.epochs] == [0, 1, 2, 3]
    assert (values["samples_skipped"], values["samples_repeated"], values["checkpoint_interval"]) == (0, 0, 20)
    assert 0 < (values["goodput"] or 0) < 1
    assert case.case.key == "ws2.gloo.elastic-stock"

    main(["report", str(pytester.path / "run.json"), "--table", "events"])
    told = capsys.readouterr().out
    assert "kill of slot 1" in told


SCRIPT = """
import os
import time

import torch
import torch.distributed as dist
from pytest_distbench import record
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group()
torch.manual_seed(0)
x = torch.randn(640, 8)
net = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
first = 0
if os.path.exists("snapshot.pt"):
    snapshot = torch.load("snapshot.pt")
    net.load_state_dict(snapshot["model"])
    first = snapshot["epoch"]
model = DistributedDataParallel(net)
for epoch in range(first, 8):
    for step, part in enumerate(x.split(32 * dist.get_world_size())):
        loss = model(part).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(0.01)
        if dist.get_rank() == 0:
            print(f"Epoch {epoch} step {step} loss {loss.item():.4f}")
    if dist.get_rank() == 0:
        torch.save({"model": net.state_dict(), "epoch": epoch + 1}, "snapshot.pt")
record("final", loss.item())
dist.destroy_process_group()
"""

TEST_OF_SCRIPT = r"""
from pytest_distbench.elastic import kill
from pytest_distbench.read import stdout


def test_script(elastic):
    steps = stdout(r"Epoch (?P<epoch>\d+) step (?P<value>\d+) loss (?P<loss>\S+)")
    elastic("train.py", nodes=(1, 2), plan=kill(at_step=45), steps=steps, checkpoint_every=10,
            read={"final_loss": stdout(r"loss (\S+)", take="last")})
"""


@pytest.mark.nightly
@pytest.mark.usefixtures("closed_doors")
def test_an_unchanged_script_that_keeps_a_snapshot_is_measured_from_outside(pytester: pytest.Pytester) -> None:
    """It repeats its epoch, unless that had just ended: ten steps on two nodes, twenty on one."""
    pytester.makepyfile(train=SCRIPT, test_mine=TEST_OF_SCRIPT)
    result = pytester.runpytest_subprocess(*COMMAND, "--distbench-json=run.json")

    assert result.ret == 0
    [case] = read_run_record(pytester.path / "run.json").results
    [launch] = case.launches
    values = {m.key: m.value for m in launch.measurements}
    [run] = runs_of(launch.events)
    [change] = run.changes
    assert (change.kind, change.before, change.after, change.rounds) == ("kill", 2, 1, 1)
    assert change.before_it is not None
    assert change.after_it is not None
    assert change.after_it["step"] == 10 * (change.after_it["epoch"] or 0)
    assert 0 <= (change.after_it["epoch"] or 0) - (change.before_it["epoch"] or 0) <= 1
    assert change.steps_redone == change.before_it["step"] - change.after_it["step"] + 1
    assert {"import", "group_init", "first_step"} <= change.parts.keys()
    assert [epoch.epoch for epoch in run.epochs] == list(range(8))
    assert (values["final_loss"] or 0) == pytest.approx(values["final"], abs=1e-4)
    assert 0 < (values["goodput"] or 0) < 1
    assert values["stall[change=kill 2 to 1]"] == change.stall_s
    assert "samples_skipped" not in values
    assert not list(pytester.path.glob("snapshot.pt"))


@pytest.mark.parametrize(
    "engine", [pytest.param('engine="stock"', marks=pytest.mark.nightly), 'engine="fast", timers={"keep_alive_s": 10}']
)
def test_nothing_is_left_of_a_run_that_is_killed_in_the_middle_of_a_change(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, engine: str
) -> None:
    """Nor the plan, which names what ran; the fixture that looks for processes does the rest."""
    (pytester.path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(pytester.path / "tmp"))
    example = EXAMPLE.replace("kill(at_step=100)", "kill(at_step=10)")
    pytester.makepyfile(test_mine=example.replace("checkpoint_every=20", f"checkpoint_every=20, {engine}"))
    command = [sys.executable, "-m", "pytest", *COMMAND]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        wait_for(lambda: '"changed"' in timeline(pytester.path), process)
        process.kill()

    wait_for(lambda: not list(pytester.path.rglob("plan.json")))
    assert '"stable","t":' not in timeline(pytester.path).partition('"changed"')[2]


HELD = """
import os

import pytest
from pytest_distbench.elastic import crash, join, kill


def train(rank):
    import torch
    from torch.nn.parallel import DistributedDataParallel

    torch.manual_seed(rank.seed)
    x = torch.randn(512, 16)
    labels = (x @ torch.randn(16, 4)).argmax(1)
    model = torch.nn.Linear(16, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    training = rank.training(model=model, optimizer=optimizer)
    parallel = DistributedDataParallel(model)
    skips = "INJECTED" in os.environ and rank.world_size == 1
    for batch in training.batches(samples=len(x), batch=16, epochs=5):
        output = parallel(x[batch])
        loss = torch.nn.functional.cross_entropy(output, labels[batch])
        optimizer.zero_grad()
        loss.backward()
        if training.step % 2 or not skips:
            optimizer.step()
        training.note(loss=loss, accuracy=(output.argmax(1) == labels[batch]).float().mean())


BOUNDS = {"learning_lost": "<= 0.5", "accuracy_lost": os.environ.get("INJECTED", "<= 0.9")}


@pytest.mark.distbench(metrics=["losses"], bounds=BOUNDS)
def test_held(elastic):
    changes = [crash(at_step=20, slot=1), kill(at_step=40), join(at_step=60)]
    elastic(train, nodes=(1, 2), plan=changes, start=2, engine="fast", hold=True)
"""


def test_behind_changes_that_are_held_losses_repeat_bit_for_bit_and_are_judged(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytester.makepyfile(test_mine=HELD)
    run = ("--distbench-json=run.json", "-p", "no:cacheprovider")
    stored = pytester.runpytest_subprocess(*COMMAND, "--distbench-update", "--distbench-launches=2", *run)
    stored.assert_outcomes(passed=1)
    [case] = read_run_record(pytester.path / "run.json").results
    one, other = ({m.key: m for m in launch.measurements}["losses"].values for launch in case.launches)

    assert len(one) == 5
    assert one == other  # which of the steps any launch was at when it was changed would be chance

    monkeypatch.setenv("INJECTED", "<= -1")
    changed = pytester.runpytest_subprocess(*COMMAND, *run)
    changed.assert_outcomes(failed=1)
    [case] = read_run_record(pytester.path / "run.json").results
    failed = {v.metric: v.kind for v in case.verdicts if v.is_failure}
    assert failed == {"losses": "changed", "optimizer_steps_missed": "regressed", "accuracy_lost": "regressed"}
    changed.stdout.fnmatch_lines(["losses: diverges at value 3 (epoch 2), *"])


def timeline(folder: Path) -> str:
    return "".join(path.read_text() for path in folder.rglob("timeline.jsonl"))


ON_GPU = """
import json
import os
from pathlib import Path

import torch
from torch.nn.parallel import DistributedDataParallel

ASKED = ("NCCL_HOSTID", "TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")

def train(rank):
    from support import stand_in_cuda as cuda

    seen = {"calls": cuda.calls[:2], "current": torch.cuda.current_device(), "rank's": rank.device.index}
    seen |= {name: os.environ[name] for name in ASKED if name in os.environ}
    Path(os.environ["SEEN"], f"slot{rank.slot}.json").write_text(json.dumps(seen))
    torch.manual_seed(rank.seed)
    inputs = torch.randn(64, 4, device=rank.device)
    net = torch.nn.Linear(4, 1).to(rank.device)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    training = rank.training(net=net, optimizer=optimizer)
    model = DistributedDataParallel(net)
    for chosen in training.batches(samples=len(inputs), batch=8, epochs=4):
        optimizer.zero_grad()
        model(inputs[chosen]).square().mean().backward()
        optimizer.step()

def test_on_gpus(elastic):
    elastic(train, nodes=2, checkpoint_every=8, launches=1, engine="fast")
"""
WARM = ("--distbench-launcher=stand-in-cuda", "-p", "support.cuda_launcher", "-p", "support.nvml", "--gpu")


@pytest.mark.parametrize(
    ("visible", "options", "devices"),
    [
        pytest.param("", (), [0, 1], id="a GPU each", marks=pytest.mark.nightly),
        pytest.param("5,3", (), [0, 1], id="of some that are visible"),
        pytest.param("2", ("--distbench-share=gpu",), [0, 0], id="shared", marks=pytest.mark.nightly),
    ],
)
def test_workers_compute_on_their_own_gpu_from_the_beginning(
    pytester: pytest.Pytester,
    monkeypatch: pytest.MonkeyPatch,
    visible: str,
    options: tuple[str, ...],
    devices: list[int],
) -> None:
    monkeypatch.setenv("DISTBENCH_NVML", "8xH100")
    monkeypatch.setenv("SEEN", str(pytester.path))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    if visible:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    pytester.makepyfile(test_mine=ON_GPU)
    result = pytester.runpytest_subprocess(*WARM, *options, "--world-size=2")

    assert result.ret == 0
    seen = [json.loads((pytester.path / f"slot{slot}.json").read_text()) for slot in (0, 1)]
    assert [one["current"] for one in seen] == [one["rank's"] for one in seen] == devices
    assert [one["calls"] for one in seen] == [[f"set_device {i}", "init_process_group nccl"] for i in devices]
    assert [sum(name.endswith("TEMP_FILE") for name in one) for one in seen] == [1, 1]
    assert len({one.get("NCCL_HOSTID") for one in seen}) == (2 if options else 1)
