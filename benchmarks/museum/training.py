"""A healthy elastic training, and the published bugs that are planted in it.

It keeps what a training keeps: weights, Adam's moments and steps, the schedule of the learning rate, an average of the
weights, a loader's place in its epoch, and the random streams of each rank, for dropout. An exhibit wraps the load of
the checkpoint: what it does before its ``yield`` happens before the load, what it does behind it happens between the
load and the first step, which is where the code that the bug was found in did it. Where each was published is in
``benchmarks/museum.py``.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

if TYPE_CHECKING:
    from pytest_distbench import ElasticRank

SAMPLES = 384
BATCH = 8
"""Per rank: an epoch has 24 steps on two nodes."""
LR = 0.004
DECAY = 0.999
"""Of the learning rate, per step."""
STEP_S = 0.01
"""That a step rests, so that the controller has the time to change the membership where the plan says."""


class Loader:
    """Chooses the samples: a permutation per epoch, which all ranks share. Epoch and place in it survive changes."""

    def __init__(self, rank: ElasticRank) -> None:
        self.rank = rank
        self.epoch = self.position = 0

    def order(self, epoch: int) -> torch.Tensor:
        """Of an epoch's samples."""
        return torch.randperm(SAMPLES, generator=torch.Generator().manual_seed(1000 * self.rank.seed + epoch))

    def share(self, chosen: torch.Tensor) -> torch.Tensor:
        """This rank's part of a step's samples."""
        return chosen[self.rank.rank :: self.rank.world_size]

    def next(self) -> torch.Tensor:
        """This rank's samples of the next step."""
        if self.position >= SAMPLES:
            self.epoch, self.position = self.epoch + 1, 0
        begin, self.position = self.position, self.position + BATCH * self.rank.world_size
        return self.share(self.order(self.epoch)[begin : self.position])

    def state_dict(self) -> dict[str, int]:
        return {"epoch": self.epoch, "position": self.position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.epoch, self.position = state["epoch"], state["position"]


class Scale(torch.nn.Module):
    """Weighs the inputs by a table that no checkpoint keeps, as models keep the frequencies of rotary embeddings."""

    table: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.linspace(0.5, 1.5, 16), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.table


@dataclass
class Parts:
    """What an exhibit can reach.

    Attributes:
        rank: in this generation.
        model: the network.
        optimizer: Adam.
        schedule: of its learning rate.
        average: of the weights, as it is evaluated.
        loader: of the samples.
        training: as ``rank.training`` has returned it; None: before the load.
    """

    rank: ElasticRank
    model: torch.nn.Module
    optimizer: torch.optim.Adam
    schedule: torch.optim.lr_scheduler.LambdaLR
    average: AveragedModel
    loader: Loader
    training: Any = None

    @property
    def has_resumed(self) -> bool:
        """Whether a checkpoint was loaded."""
        return bool(self.training.step > 0)


def train(rank: ElasticRank, exhibit: str, epochs: int, lr_per_node: bool) -> None:  # noqa: FBT001 a parameter by name
    """Train for so many epochs, whoever comes and goes.

    Args:
        rank: in this generation.
        exhibit: a key of :data:`PLANTED`.
        epochs: over all generations.
        lr_per_node: the learning rate follows the number of nodes, as docs/elastic.md advises.
    """
    made = torch.Generator().manual_seed(rank.seed)
    x = torch.randn(SAMPLES, 16, generator=made)
    labels = (x @ torch.randn(16, 4, generator=made)).argmax(1)
    torch.manual_seed(rank.seed)
    model = torch.nn.Sequential(
        Scale(),
        torch.nn.Linear(16, 32),
        torch.nn.BatchNorm1d(32),
        torch.nn.ReLU(),
        torch.nn.Dropout(0.1),
        torch.nn.Linear(32, 4),
    )
    torch.manual_seed(own_seed(rank))
    optimizer = torch.optim.Adam(model.parameters(), lr=LR)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: DECAY**step)
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))  # type: ignore[no-untyped-call] # as torch has it
    loader = Loader(rank)
    parts = Parts(rank, model, optimizer, schedule, average, loader)

    with PLANTED[exhibit](parts):
        parts.training = training = rank.training(
            model=model,
            optimizer=optimizer,
            schedule=schedule,
            average=average,
            loader=loader,
            random=rank.random_streams(),
        )

    if lr_per_node:
        schedule.base_lrs = [LR * rank.world_size]
        for group in optimizer.param_groups:
            group["lr"] = LR * rank.world_size * DECAY**schedule.last_epoch
    parallel = DistributedDataParallel(model)
    for _ in training.batches(samples=SAMPLES, batch=BATCH, epochs=epochs):
        chosen = loader.next()
        training.drew(chosen)
        loss = torch.nn.functional.cross_entropy(parallel(x[chosen]), labels[chosen])
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call] # as torch has it
        optimizer.step()
        schedule.step()
        average.update_parameters(model)
        training.note(loss=loss)
        time.sleep(STEP_S)


def own_seed(rank: ElasticRank) -> int:
    """From the model's first weights on each rank draws for itself."""
    return 1000 * rank.seed + 1 + rank.rank


PLANTED: dict[str, Callable[[Parts], contextlib.AbstractContextManager[None]]] = {}
"""Exhibit -> what it does around the load of a checkpoint."""

Plant = Callable[[Parts], Iterator[None]]


def planted(name: str) -> Callable[[Plant], Plant]:
    """Make a generator an exhibit."""

    def put(plant: Plant) -> Plant:
        PLANTED[name] = contextlib.contextmanager(plant)
        return plant

    return put


@planted("")
def nothing(_parts: Parts) -> Iterator[None]:
    """A healthy training."""
    yield


@planted("rng of another rank")
def rng_of_another_rank(parts: Parts) -> Iterator[None]:
    """Only rank 0's stream counts as written, and everybody takes it."""
    yield
    if parts.has_resumed:
        state = torch.get_rng_state()
        dist.broadcast(state, src=0)
        torch.set_rng_state(state)


@planted("rng drawn once more")
def rng_drawn_once_more(parts: Parts) -> Iterator[None]:
    """The iterator of a data loader draws its base seed from the stream that was just restored."""
    yield
    if parts.has_resumed:
        torch.empty((), dtype=torch.int64).random_()


@planted("rng seeded again")
def rng_seeded_anew(parts: Parts) -> Iterator[None]:
    """Something that is set up behind the load seeds the process again."""
    yield
    if parts.has_resumed:
        torch.manual_seed(own_seed(parts.rank))


@planted("samples seen twice")
def samples_seen_twice(parts: Parts) -> Iterator[None]:
    """The number of batches that were taken is corrected once too often for the number of ranks."""
    yield
    if parts.has_resumed:
        parts.loader.position -= BATCH * parts.rank.world_size


@planted("samples lost from 1 to 2")
def samples_lost(parts: Parts) -> Iterator[None]:
    """The batches that one rank had taken count as taken by each of the ranks there are now."""
    yield
    if parts.has_resumed:
        parts.loader.position *= parts.rank.world_size


@planted("data ahead of the model")
def data_ahead(parts: Parts) -> Iterator[None]:
    """The loader's own checkpoint is of the step behind the model's."""
    yield
    if parts.has_resumed:
        parts.loader.next()


@planted("epoch 0 order")
def epoch_0_order(parts: Parts) -> Iterator[None]:
    """The loader's iterator is made before the sampler is told its epoch."""
    yield
    order, resumed = parts.loader.order, parts.training.epoch
    if parts.has_resumed:
        parts.loader.order = lambda epoch: order(0 if epoch == resumed else epoch)  # type: ignore[method-assign]


@planted("duplicate in a batch")
def duplicate_in_a_batch(parts: Parts) -> Iterator[None]:
    """The last rank is elsewhere in its order than the others: one of its samples is one of rank 0's, too."""
    yield
    share = parts.loader.share

    def wrong(chosen: torch.Tensor) -> torch.Tensor:
        return torch.cat([chosen[:1], share(chosen)[1:]])

    if parts.has_resumed and parts.rank.rank > 0:
        parts.loader.share = wrong  # type: ignore[method-assign]


@planted("offset in each epoch")
def offset_in_each_epoch(parts: Parts) -> Iterator[None]:
    """The place that was resumed at is skipped to in each later epoch too, and its tail is trained on again."""
    yield
    order, resumed, offset = parts.loader.order, parts.loader.epoch, parts.loader.position

    def wrong(epoch: int) -> torch.Tensor:
        right = order(epoch)
        tail = right[offset:]
        return right if epoch == resumed else tail.repeat(SAMPLES // len(tail) + 1)[:SAMPLES]

    if parts.has_resumed:
        parts.loader.order = wrong  # type: ignore[method-assign]


@planted("next epoch skipped")
def next_epoch_skipped(parts: Parts) -> Iterator[None]:
    """A checkpoint at an epoch's end counts as one of the epoch that follows, whose batches are skipped."""
    yield
    if parts.has_resumed and parts.training.position == 0:
        parts.training.epoch += 1


@planted("moments zeroed")
def moments_zeroed(parts: Parts) -> Iterator[None]:
    """A new optimizer has no moments yet that the checkpoint's could be put into."""
    yield
    if parts.has_resumed:
        for state in parts.optimizer.state.values():
            state["exp_avg"].zero_()
            state["exp_avg_sq"].zero_()


@planted("adam step dropped")
def adam_step_dropped(parts: Parts) -> Iterator[None]:
    """Moments come back, and the number of steps that corrects their bias does not."""
    yield
    if parts.has_resumed:
        for state in parts.optimizer.state.values():
            state["step"].zero_()


@planted("adam step of one rank")
def adam_step_of_one_rank(parts: Parts) -> Iterator[None]:
    """A rank takes the count of steps from one that had none of these parameters, and never counted them."""
    yield
    if parts.has_resumed and parts.rank.rank > 0:
        list(parts.optimizer.state.values())[-1]["step"].fill_(1)


@planted("stale lr of a joiner")
def stale_lr_of_a_joiner(parts: Parts) -> Iterator[None]:
    """A newcomer's schedule is restored, and its optimizer has the rate of a cached state."""
    yield
    if parts.has_resumed and parts.rank.rank > 0:
        for group in parts.optimizer.param_groups:
            group["lr"] = LR


@planted("lr schedule by epoch")
def lr_schedule_by_epoch(parts: Parts) -> Iterator[None]:
    """The schedule counts steps, and goes on from the number of the epoch."""
    yield
    if parts.has_resumed:
        parts.schedule.last_epoch = parts.training.epoch
        for group in parts.optimizer.param_groups:
            group["lr"] = LR * DECAY**parts.training.epoch


@planted("older checkpoint at retry")
def older_checkpoint(parts: Parts) -> Iterator[None]:
    """What the newest checkpoint is was cached at the first retry."""
    from pytest_distbench.worker import checkpoints

    find_good, cached = checkpoints.find_good, parts.rank.data_dir / "newest"
    if cached.exists():
        step = int(cached.read_text())
        checkpoints.find_good = lambda folder: (step, [])
    yield
    checkpoints.find_good = find_good
    if parts.rank.rank == 0 and parts.has_resumed:
        cached.write_text(str(parts.training.step))


@planted("corrupt replica")
def corrupt_replica(parts: Parts) -> Iterator[None]:
    """One rank goes on from a copy of the checkpoint in which a bit of a moment is another one."""
    yield
    if parts.has_resumed and parts.rank.rank > 0:
        moment = next(iter(parts.optimizer.state.values()))["exp_avg"].view(-1)[:1]
        moment.view(torch.int32).bitwise_xor_(1 << 20)


@planted("average in place of weights")
def average_in_place_of_weights(parts: Parts) -> Iterator[None]:
    """The checkpoint was written while the model held the running average of its weights, as for an evaluation."""
    yield
    if parts.has_resumed:
        parts.model.load_state_dict(parts.average.module.state_dict())


@planted("buffers not built")
def buffers_not_built(parts: Parts) -> Iterator[None]:
    """The model is given memory behind its making, and what no checkpoint holds stays as that memory was."""
    yield
    if parts.has_resumed:
        parts.model.get_buffer("0.table").zero_()
