"""A training under torchft, in the test's own process: a real lighthouse, and nodes that are threads of it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from support.plans import job_plan
from support.ranks import ENVIRONMENT
from support.timelines import JOB
from torch.distributed import TCPStore

from pytest_distbench.errors import RecordingError
from pytest_distbench.jobs.engines.table import ENGINES
from pytest_distbench.jobs.measures.history import History
from pytest_distbench.jobs.measures.samples import count_samples
from pytest_distbench.launch.starters.contract import NO_REVERSE_DNS
from pytest_distbench.records.record import replace
from pytest_distbench.records.timeline import Batch, Discarded, Joined, Loaded, Stepped, read_timeline

torchft = pytest.importorskip("torchft", reason="engine='torchft' needs torchft")

from torchft.coordination import LighthouseServer  # noqa: E402 it may not be there

from pytest_distbench.worker.elastic import torchft as torchft_rank  # noqa: E402 imports it
from pytest_distbench.worker.elastic.torchft import TorchftRank, TorchftTraining  # noqa: E402

Node = tuple[TorchftTraining, torch.nn.Linear, Any]
MakeNode = Callable[[int], Node]

pytestmark = pytest.mark.filterwarnings("ignore:.*'warn' .* is deprecated:DeprecationWarning")  # torchft's own


@pytest.fixture
def make_rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., TorchftRank]]:
    """Each has a store of its own, as each node has."""
    for name, value in NO_REVERSE_DNS.items():
        monkeypatch.setenv(name, value)
    timers = {**ENGINES["torchft"].all_timers({}), "heartbeat_timeout_s": 0.5, "settle_s": 20}
    job = replace(JOB, engine="torchft", timers=timers, checkpoint_every=None)
    lighthouse = LighthouseServer(
        bind="127.0.0.1:0", min_replicas=1, join_timeout_ms=100, quorum_tick_ms=10, heartbeat_timeout_ms=500
    )
    monkeypatch.setenv("TORCHFT_LIGHTHOUSE", lighthouse.address())
    stores: list[TCPStore] = []

    def make(slot: int = 0, **plan: Any) -> TorchftRank:
        stores.append(TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False))
        for name, value in {**ENVIRONMENT, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": stores[-1].port}.items():
            monkeypatch.setenv(name, str(value))
        return TorchftRank(job_plan(tmp_path, job, **plan), slot)

    yield make
    lighthouse.shutdown()


@pytest.fixture
def make_node(make_rank: Callable[..., TorchftRank]) -> Iterator[MakeNode]:
    made: list[TorchftTraining] = []

    def make(slot: int) -> Node:
        model = torch.nn.Linear(1, 1)
        torch.nn.init.constant_(model.weight, float(slot))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        training = make_rank(slot).training(model=model, optimizer=optimizer)
        made.append(training)
        return training, model, optimizer

    yield make
    for training in made:
        training.manager.shutdown()
        training._transport._server.server_close()  # torchft leaves that to the end of the process


def train(node: Node, *, epochs: int = 2, heed: Callable[[TorchftTraining], object] = lambda training: None) -> None:
    """Train to the end; ``heed`` is called in each step, between its gradients and its end."""
    training, model, inner = node
    ddp = torchft.DistributedDataParallel(training.manager, model)
    optimizer = torchft.Optimizer(training.manager, inner)
    for batch in training.batches(samples=40, batch=2, epochs=epochs):
        optimizer.zero_grad()
        loss = ddp(batch.float().unsqueeze(1) / 40).square().mean()
        loss.backward()
        heed(training)
        optimizer.step()
        training.note(loss=loss)


def history(node: Node) -> History:
    return History(read_timeline(node[0]._rank._files.timeline))


def test_a_node_alone_trains_on_every_sample_of_each_epoch_once(make_node: MakeNode) -> None:
    node = make_node(3)
    train(node)
    seen = history(node)
    [joined] = seen.of(Joined)

    assert (node[0].step, node[0].epoch, node[0].position) == (40, 2, 0)
    assert (joined.slot, joined.rank, joined.world_size, joined.step) == (3, 0, 1, 0)
    assert {step.generation for step in seen.of(Stepped)} == {joined.generation}
    assert (count_samples(seen).skipped, count_samples(seen).repeated) == (0, 0)


def test_a_step_that_does_not_count_is_told_and_its_samples_are_given_again_in_the_next_quorum(
    make_node: MakeNode,
) -> None:
    node = make_node(0)
    errors = [RuntimeError("lost a peer")]
    train(node, heed=lambda t: t.manager.report_error(errors.pop()) if t.step == 9 and errors else None)
    seen = history(node)
    [lost] = seen.of(Discarded)
    first, again = [batch for batch in seen.of(Batch) if batch.step == 10]

    assert lost.step == 10
    assert first.samples == again.samples
    assert (first.generation, again.generation) == (lost.generation, lost.generation + 1)
    assert (count_samples(seen).skipped, count_samples(seen).repeated) == (0, 0)
    assert node[0].step == 40


def test_a_training_whose_steps_never_count_ends_and_says_why(make_node: MakeNode) -> None:
    with pytest.raises(RecordingError, match="took none of 101 steps in a row, the last because of ValueError: always"):
        train(make_node(0), heed=lambda training: training.manager.report_error(ValueError("always")))


def test_a_newcomer_gets_model_optimizer_and_place_of_a_peer_and_shares_the_samples_from_there(
    make_node: MakeNode,
) -> None:
    """One of them does not take a step that the other has taken, besides: it gets it from there."""
    old = make_node(0)
    is_under_way, is_there, errors = threading.Event(), threading.Event(), [RuntimeError("lost a peer")]

    def heed(training: TorchftTraining) -> None:
        is_under_way.set()
        is_there.wait(20)
        if training._rank.world_size == 1:
            time.sleep(0.01)
        elif errors:
            training.manager.report_error(errors.pop())

    others = threading.Thread(target=train, args=(old,), kwargs={"epochs": 10, "heed": heed}, daemon=True)
    others.start()
    assert is_under_way.wait(20)
    new = make_node(1)
    is_there.set()
    train(new, epochs=10)
    others.join(20)
    seen = history(old)
    [loaded] = [line for line in seen.of(Loaded) if line.slot == 1]

    assert not others.is_alive()
    assert not errors
    assert loaded.step > 0
    assert seen.world_size(loaded.generation) == 2
    assert seen.resumed_at(loaded.generation) == loaded.step
    assert torch.equal(old[1].weight, new[1].weight)
    assert (old[0].step, old[0].epoch) == (new[0].step, new[0].epoch)
    assert (count_samples(seen).skipped, count_samples(seen).repeated) == (0, 0)


def test_a_part_that_does_not_take_what_a_peer_has_is_told(make_node: MakeNode) -> None:
    training, _, _ = make_node(0)
    state = {**training._state(), "model": torch.nn.Linear(2, 1).state_dict()}

    with pytest.raises(RecordingError, match=r"(?s)model does not take what a peer has for it: .*size mismatch"):
        training._heal(state)


def test_an_optimizer_that_is_not_torchfts_is_told(make_node: MakeNode) -> None:
    training, _, optimizer = make_node(0)

    steps = training.batches(samples=4, batch=2, epochs=1)
    next(steps)
    optimizer.step()

    with pytest.raises(RecordingError, match=r"torchft\.Optimizer\(training\.manager, optimizer\)"):
        next(steps)


def test_what_needs_a_group_of_all_ranks_is_refused_with_what_to_do(make_rank: Callable[..., TorchftRank]) -> None:
    with pytest.raises(RecordingError, match=r"sum over ranks: .*let each compute the whole number"):
        make_rank().sum_over_ranks(1.0)


def test_a_backend_that_was_never_tried_is_refused(make_rank: Callable[..., TorchftRank]) -> None:
    with pytest.raises(RecordingError, match="engine='torchft' computes on gloo, found backend nccl"):
        make_rank(backend="nccl")


def test_a_torchft_of_another_interface_is_told() -> None:
    with pytest.raises(RecordingError, match=r"takes no speed: .*2026.10.26"):
        torchft_rank._manage(speed=1)
