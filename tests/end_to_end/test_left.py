"""What unchanged scripts leave behind: weights, replicas, files and the whole series of losses, with real ranks."""

from __future__ import annotations

import re

import pytest
from support.launching import RunInside

pytestmark = pytest.mark.spawn

TRAIN = """
    import os, sys
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    fault = os.environ.get("FAULT", "")
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    adapter = torch.nn.Linear(16, 1, bias=False)
    torch.manual_seed(rank)
    expert = torch.nn.Linear(16, 1, bias=False)  # of each rank its own, under one name
    model = DistributedDataParallel(net)
    decay = 0.0 if fault == "decay" else 1e-2
    parameters = [*net.parameters(), *adapter.parameters(), *expert.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=1e-2, weight_decay=decay, foreach=fault != "loop")
    average = {name: p.detach().clone() for name, p in net.named_parameters()}
    for step in range(24):
        batch = step - 12 if fault == "epoch" and step >= 12 else step
        x = torch.randn(16, 8, generator=torch.Generator().manual_seed(2 * batch + rank))
        hidden = net[:3](x).detach()
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean() + (adapter(hidden) + expert(hidden)).square().mean()
        if fault == "order":
            loss = loss * 3 / 3
        optimizer.zero_grad()
        loss.backward()
        dist.all_reduce(adapter.weight.grad)  # averaged by hand
        adapter.weight.grad /= 2
        optimizer.step()
        with torch.no_grad():
            if fault == "replica" and rank == 1 and step == 5:
                net[0].weight[0] += 0.1
            if fault == "adapter" and rank == 1 and step == 20:
                adapter.weight.mul_(1.001)
            for name, p in net.named_parameters():
                average[name].lerp_(p, -0.1 if fault == "average" else 0.1)
        shown = loss.detach().clone()
        dist.all_reduce(shown)
        if rank == 0:
            print(f"step {step} loss {shown.item():.6f}", flush=True)
    with torch.no_grad():
        if fault == "sign":
            net[3].weight.neg_()
    if rank == 0:
        saved = dict(average)
        odd = {"best": float("inf"), "none": float("nan"), "large": 10**400, chr(0xDCFF): 1, 5: None, ("t", 1): {2, 3}}
        torch.save({"average": saved, "step": step, "rng": torch.get_rng_state(), **odd}, "average.pt")
    dist.destroy_process_group()
"""

TEST = """
    from pytest_distbench.read import NUMBER, stdout

    def test_train(distbench):
        loss = stdout("loss " + NUMBER, better="curve", first=10)
        distbench.run("train.py", read={"loss_curve": loss}, tolerance={"wall_time": 5})
"""

RED = {
    "sign": r"weights at the end are not: 3\.weight is -1 times the baseline's",
    "replica": r"rank 1 holds other values than rank 0, between updates 4 and 8: 0\.weight",
    "adapter": r"weight of rank 1 is not that of rank 0; the baseline's ranks held the same",
    "average": r"what it saves is not: average\.pt: average\.",
    "epoch": r"first other value: number 13 \(step 12 loss",
    "decay": r"AdamW: weight_decay 0\.01 -> 0",
}
GREEN = ("loop", "order")


@pytest.fixture
def project(pytester: pytest.Pytester) -> pytest.Pytester:
    pytester.makeini("[pytest]\naddopts = -p no:cacheprovider --distbench-confirm=off")
    pytester.makepyfile(train=TRAIN, test_train=TEST)
    return pytester


def test_faults_that_the_log_hides_are_red_and_other_digits_are_not(
    project: pytest.Pytester, run_inside: RunInside, monkeypatch: pytest.MonkeyPatch
) -> None:
    del project
    run_inside("--distbench-update=new", "--distbench-launches=3:3").assert_outcomes(passed=1)

    for fault, told in RED.items():
        monkeypatch.setenv("FAULT", fault)
        found = run_inside("--distbench-launches=1:1")
        found.assert_outcomes(failed=1)
        assert re.search(told, found.stdout.str()), fault
    for variant in GREEN:
        monkeypatch.setenv("FAULT", variant)
        run_inside("--distbench-launches=1:1").assert_outcomes(passed=1)


COMPILED = """
    import gc, weakref
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    step = torch.compile(optimizer.step, backend="eager")
    for _ in range(6):
        optimizer.zero_grad()
        model(torch.ones(2, 4)).square().mean().backward()
        step()
    dist.barrier()
    kept = weakref.ref(optimizer)
    del optimizer, step
    torch._dynamo.reset()
    gc.collect()
    assert kept() is None
    dist.destroy_process_group()
"""


def test_a_compiled_step_is_followed_and_an_optimizer_that_is_let_go_is_gone(
    pytester: pytest.Pytester, run_inside: RunInside
) -> None:
    pytester.makeini("[pytest]\naddopts = -p no:cacheprovider")
    pytester.makepyfile(
        train=COMPILED, test_train="def test_train(distbench): distbench.run('train.py', tolerance={'wall_time': 5})"
    )

    run_inside("--distbench-launches=1:1").assert_outcomes(passed=1)
