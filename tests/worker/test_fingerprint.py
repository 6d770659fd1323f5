"""A rank of 64 in one process: injected defects in what is sent and held are seen, without a second core."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from support.fake_world import fake_rank

from pytest_distbench.judging.fingerprint_rule import differences
from pytest_distbench.launch.reduce import of_launch
from pytest_distbench.records.iteration import Fingerprint
from pytest_distbench.worker.context import RankContext

ROOT_OF_FSDP = "ignore:FSDP2-wrapped module:UserWarning"


def fingerprints(rank: RankContext) -> dict[str, Fingerprint]:
    return {key: of_launch(one, None) for key, one in rank.watch.found.items()}


@pytest.fixture(scope="module")
def healthy() -> Fingerprint:
    with fake_rank() as made, warnings.catch_warnings(action="ignore"):
        return train(made)


@pytest.fixture
def rank() -> Iterator[RankContext]:
    with fake_rank() as made:
        yield made


def train(rank: RankContext, *, fault: str = "") -> Fingerprint:
    """Three blocks under FSDP2; a fault in what they send."""
    from torch.distributed.fsdp import fully_shard  # takes a second, in every process that collects these tests

    torch.manual_seed(0)
    blocks = [torch.nn.Linear(64, 64) for _ in range(3)]
    net = torch.nn.Sequential(*blocks)
    for block in blocks:
        fully_shard(block)
        if fault == "an all_gather per layer":
            block.register_forward_hook(lambda *_: dist.all_gather_into_tensor(torch.empty(64 * 2), torch.ones(2)))
    fully_shard(net)
    if fault == "a group too many":
        dist.new_group([0, 1], group_desc="extra")
    options = {"amsgrad": True} if fault == "more state" else {}
    optimizer = torch.optim.AdamW(net.parameters(), **options)
    op = dist.ReduceOp.MAX if fault == "another reduction" else dist.ReduceOp.SUM
    for i in rank.timed("step", warmup=2, iterations=30):
        loss = net(torch.ones(2, 64)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        dist.all_reduce(loss.detach(), op=op)
        if fault == "every fifth iteration" and i % 5 == 2:
            dist.all_reduce(loss.detach())
    return fingerprints(rank)["step"]


FAULTS = {
    "": [],
    "an all_gather per layer": ["3 all_gather_into_tensor of 8 B float32 were added"],
    "a group too many": ["1 process group extra of 2 ranks with stride 1 was added"],
    "another reduction": ["1 all_reduce of 4 B (sum) became 1 of 4 B (max)"],
    "every fifth iteration": ["every 5th step from the 3rd on (2 of 10): 1 all_reduce of 4 B float32 was added"],
    "more state": ["1.547 KiB of optimizer state per rank became 2.309 KiB"],
}


@pytest.mark.filterwarnings(ROOT_OF_FSDP, "ignore:.*deprecated:FutureWarning")
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_at_64_ranks_is_reported(rank: RankContext, healthy: Fingerprint, fault: str) -> None:
    lines = differences(healthy, train(rank, fault=fault))

    assert [line for line in lines if "sent per rank" not in line] == FAULTS[fault]


def test_iterations_other_than_the_described_one_are_counted(rank: RankContext) -> None:
    for i in rank.timed("step", warmup=1, iterations=5):
        for _ in range(i + 2):
            dist.all_reduce(torch.ones(1))

    assert fingerprints(rank)["step"].beyond == {"0": (2 + 3 + 4 + 5 + 6 - 5, 5)}


def test_a_training_takes_a_few_steps_and_is_not_evaluated(rank: RankContext) -> None:
    goal = rank.goal("accuracy", target=0.9, every=1, max_steps=1000)
    steps = 0
    for _ in goal.steps(samples_per_step=1):
        steps += 1
        dist.all_reduce(torch.ones(1))
        goal.check(lambda: pytest.fail("evaluated"))

    assert steps == 13
    assert rank.notebook.observations == []
    assert fingerprints(rank)["step_time"].beyond == {}


def test_what_the_plugin_sends_is_left_out(rank: RankContext) -> None:
    for _ in rank.timed("step", warmup=1, iterations=1):
        with rank.watch.apart():
            dist.barrier()

    assert fingerprints(rank)["step"].collectives == {"0": []}


def test_what_no_fingerprint_describes_is_counted(rank: RankContext) -> None:
    rank.barrier()
    rank.agree(1.0)
    assert rank.watch.unrecorded() == 0
    for _ in range(3):
        dist.all_reduce(torch.ones(1))
    assert rank.watch.unrecorded() == 3
    for _ in rank.timed("step", warmup=1, iterations=2):
        dist.all_reduce(torch.ones(1))
    assert rank.watch.unrecorded() == 0


def test_a_watch_that_is_off_notes_nothing(rank: RankContext) -> None:
    rank.watch.is_on = False
    for _ in rank.timed("step", warmup=1, iterations=1):
        dist.barrier()

    assert rank.watch.found == {}


def test_parameters_and_state_of_all_optimizers_that_step_are_counted(rank: RankContext) -> None:
    layer = torch.nn.Linear(2, 2)
    both = [torch.optim.Adam([p]) for p in layer.parameters()]
    for _ in rank.timed("step", warmup=1, iterations=1):
        layer(torch.ones(2)).sum().backward()
        for optimizer in both:
            optimizer.step()
    found = fingerprints(rank)["step"]

    assert found.totals == {"parameters": 6, "optimizer_steps": 2}
    assert found.facts == {"parameter_bytes": {"0": 24}, "optimizer_bytes": {"0": 2 * 24 + 2 * 4}}


def test_pickles_are_compared_by_their_number_and_not_by_their_sizes(rank: RankContext) -> None:
    for number, length in ((1, 10), (1, 1000), (2, 10)):
        with rank.point(number=number, length=length):
            for _ in rank.timed("meet", warmup=1, iterations=2):
                for _ in range(number):
                    dist.broadcast_object_list(["x" * length], src=0)
                dist.broadcast(torch.ones(length // 10, dtype=torch.uint8), src=0)
    one, longer, two = fingerprints(rank).values()

    assert next(iter(one.collectives.values()))[1].dtype == "pickle"
    assert differences(one, longer) == ["1 broadcast of 1 B became 1 of 100 B", "9 B sent per rank became 108 B"]
    assert differences(one, two)[0] == "2 broadcast of 8 B int64 and pickle were added"


def test_what_is_described_was_entered_on_the_clock_that_the_ranks_of_a_host_share(rank: RankContext) -> None:
    began = time.monotonic()
    for _ in rank.timed("step", warmup=1, iterations=1):
        dist.all_reduce(torch.ones(1))
        dist.all_reduce(torch.ones(1))
    found = [began, *rank.watch.times["step"], time.monotonic()]

    assert found == pytest.approx(sorted(found), abs=1e-3)
