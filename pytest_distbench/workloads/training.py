"""Helpers for distributed trainings: deterministic set-up, disjoint and complete shards, counts over all ranks.

Checkpoints of a training with a fixed number of ranks are here too: it continues bit for bit.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from pytest_distbench.errors import RecordingError, look_up
from pytest_distbench.records.metric import Scalar
from pytest_distbench.records.wanted import SEEDS
from pytest_distbench.worker import checkpoints
from pytest_distbench.worker.checkpoints import next_count, permutation, share
from pytest_distbench.worker.notebook import check_whole
from pytest_distbench.worker.process import forbid_tf32
from pytest_distbench.workloads.models import count

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from pytest_distbench.worker.context import RankContext


P = TypeVar("P", bound="DataclassInstance")


def preset_of(rank: RankContext, presets: Mapping[str, P]) -> P:
    """Return the row of a table that ``rank.params["preset"]`` names, its fields overridden by other parameters.

    ``{"preset": "small", "rate": 0.05}`` is the row *small* at another rate.

    Args:
        rank: this process, with the parameters of the test.
        presets: dataclasses by name.

    Raises:
        ConfigurationError: there is no such row.
    """
    row = look_up(presets, rank.params.get("preset"), "preset")
    return replace(row, **{one.name: rank.params[one.name] for one in fields(row) if one.name in rank.params})


def record_setup(
    rank: RankContext,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    preset: DataclassInstance | None = None,
    **others: Scalar,
) -> None:
    """Record what is trained, and how: the table ``setup`` of a run has it.

    ``parameters`` and ``tensors``, those that are trained, have to stay what they are.

    Args:
        rank: this process in its group.
        model: the model; its class is recorded as the name.
        optimizer: the optimizer; its initial rate and its options that are not torch's defaults are recorded.
        preset: the row of the training's table of presets, or None.
        others: what else defines the training, in words or numbers: ``schedule="halved on a plateau"``.
    """
    parameters, tensors = count(model)
    usual = inspect.signature(type(optimizer)).parameters
    own = {
        name: value
        for name, value in optimizer.defaults.items()
        if name == "lr" or (name in usual and value != usual[name].default)
    }
    described = f"{type(optimizer).__name__}({', '.join(f'{name}={value!r}' for name, value in own.items())})"
    facts: dict[str, Scalar] = {"model": type(model).__name__, "optimizer": described, **others}
    for one in () if preset is None else fields(preset):
        value = getattr(preset, one.name)
        facts[one.name] = value if isinstance(value, Scalar) else str(value)
    rank.record("parameters", parameters, better="exact", facts=facts)
    rank.record("tensors", tensors, better="exact")


def make_deterministic(seed: int) -> None:
    """Seed torch and choose deterministic algorithms: the same software then repeats a training bit for bit.

    On CUDA that takes a fixed workspace for cuBLAS, which it reads when it is first used, unless the user has chosen
    one; and no TF32: float32 is what it says on every card.

    Raises:
        RecordingError: the seed is no whole number that ``torch.manual_seed`` takes.
    """
    seed = check_whole("make_deterministic(...)", "seed", seed, least=SEEDS.start, most=SEEDS.stop - 1)
    torch.manual_seed(seed)
    torch.use_deterministic_algorithms(mode=True)
    torch.backends.cudnn.benchmark = False
    forbid_tf32()
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")


def sharded_batches(
    rank: RankContext,
    *,
    samples: int,
    batch: int,
    start: int = 0,
    drop_last: bool = False,
    device: torch.device | str | None = None,
) -> Iterator[torch.Tensor]:
    """Give index batches for ever: each epoch one permutation, of which every rank has a disjoint shard.

    The shards of an epoch are complete: each sample is in one batch of one rank. All ranks take equally many steps; in
    the last one of an epoch a rank has what is left, up to one sample more or less than the others have. On the backend
    ``fake``, where a few samples may have to do for many ranks, a rank gets them all.

    Args:
        rank: this process in its group; its seed orders the samples.
        samples: number of samples in the whole training set.
        batch: samples per rank and step.
        start: steps that were taken before: a training that goes on gets the batch it would have got next.
        drop_last: leave out of each epoch what does not fill a batch on all ranks, so that all steps cost the same.
        device: device of the indices, which should be that of the samples, by default the rank's. They are sent once
            an epoch: samples on a GPU that are indexed by the CPU wait for the GPU at every step.

    Returns:
        Batches (n,) of indices, int64: of ``batch`` each, but for the last one of an epoch.

    Raises:
        RecordingError: no whole numbers of at least 1 (``start``: 0), or a shard holds less than one batch.
    """
    start = check_whole("sharded_batches(...)", "start", start, least=0)
    counts = _step_counts(rank, samples, batch, "sharded_batches(...)")
    if drop_last:
        step = batch * (1 if rank.only_structure else rank.world_size)
        counts = [step] * (samples // step)
    return _batches(rank, samples, counts, start, rank.device if device is None else device)


def epoch_steps(rank: RankContext, *, samples: int, batch: int) -> int:
    """How many batches :func:`sharded_batches` gives in an epoch.

    Raises:
        RecordingError: as there.
    """
    return len(_step_counts(rank, samples, batch, "epoch_steps(...)"))


def _step_counts(rank: RankContext, samples: int, batch: int, call: str) -> list[int]:
    samples = check_whole(call, "samples", samples, least=1)
    batch = check_whole(call, "batch", batch, least=1)
    world_size = 1 if rank.only_structure else rank.world_size
    if samples < batch * world_size:
        raise RecordingError(
            f"{call}: {samples} samples over {rank.world_size} ranks leave {samples // world_size} each, less than a "
            f"batch of {batch}"
        )
    counts: list[int] = []
    left = samples
    while left > 0:
        counts.append(next_count(left, batch=batch, world_size=world_size, most=world_size))
        left -= counts[-1]
    return counts


def _batches(
    rank: RankContext, samples: int, counts: list[int], start: int, device: torch.device | str
) -> Iterator[torch.Tensor]:
    of, among = (0, 1) if rank.only_structure else (rank.rank, rank.world_size)
    epoch, first = divmod(start, len(counts))
    while True:
        order = permutation(samples, seed=rank.seed, epoch=epoch)[: sum(counts)].to(device)
        yield from (share(step, rank=of, world_size=among) for step in order.split(counts)[first:])
        epoch, first = epoch + 1, 0


Measure = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""Maps scores (N, ...) and labels (N,) to a sum over the samples."""


def mean_over_ranks(
    rank: RankContext,
    model: torch.nn.Module,
    inputs: torch.Tensor,
    labels: torch.Tensor,
    *measures: Measure,
    batch: int = 1000,
) -> list[float]:
    """Means over the whole test set: each rank evaluates its share, in batches. A collective call.

    The sums that the measures return are added over batches and ranks, and divided by the number of samples.

    Args:
        rank: this process in its group; batches are sent to its device.
        model: maps ``inputs`` (N, ...) to scores (N, ...); it is in evaluation mode meanwhile.
        inputs: the whole set, equal on all ranks.
        labels: (N, ...).
        measures: functions of scores and labels that return a sum over samples, as :func:`right_of` makes them.
        batch: number of inputs that are evaluated at once.

    Returns:
        One mean for each measure.

    Raises:
        RecordingError: inputs and labels are not equally many, or fewer than the ranks.
    """
    call = "mean_over_ranks(...)"
    _check_samples(call, rank, inputs, labels)
    was_training = model.training
    model.eval()
    sums = [0.0] * len(measures)
    with torch.no_grad():
        mine = range(rank.rank, len(labels), rank.world_size)
        for first in range(0, len(mine), batch):
            part = mine[first : first + batch]
            chosen = slice(part.start, part.stop, part.step)
            own = labels[chosen].to(rank.device)
            scores = model(inputs[chosen].to(rank.device))
            sums = [so_far + float(measure(scores, own)) for so_far, measure in zip(sums, measures, strict=True)]
    model.train(was_training)
    return [rank.sum_over_ranks(own) / len(labels) for own in sums]


def right_of(top: int = 1) -> Measure:
    """Make a measure that counts right answers: labels among the ``top`` highest scores, or on a logit's right side."""

    def count(scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        if scores.dim() == 1:
            return ((scores > 0).to(labels.dtype) == labels).sum()
        if top > 1 and top >= scores.shape[1]:
            raise RecordingError(f"top={top} of {scores.shape[1]} classes: every answer would be right")
        return (scores.topk(top, dim=1).indices == labels.unsqueeze(1)).sum()

    return count


def accuracy_over_ranks(
    rank: RankContext, model: torch.nn.Module, inputs: torch.Tensor, labels: torch.Tensor, *, top: int = 1
) -> float:
    """Top-k accuracy, 0 to 1: each rank evaluates its share of the samples. A collective call.

    Right answers are counted, and the counts are summed over ranks and divided by the number of samples.

    Args:
        rank: this process in its group.
        model: maps ``inputs`` (N, ...) to scores (N, classes), or to one logit (N,) for two classes.
        inputs: the whole set, equal on all ranks.
        labels: (N,), integers, or 0. and 1. for one logit.
        top: a sample is right whose label is among so many of the highest scores.

    Raises:
        RecordingError: inputs and labels are not equally many, or fewer than the ranks;
            there are not so many classes.
    """
    call = "accuracy_over_ranks(...)"
    top = check_whole(call, "top", top, least=1)
    _check_samples(call, rank, inputs, labels)
    if labels.dim() != 1:
        raise RecordingError(f"{call}: wanted labels (N,), found shape {list(labels.shape)}")
    [accuracy] = mean_over_ranks(rank, model, inputs, labels, right_of(top))
    return accuracy


def _check_samples(call: str, rank: RankContext, inputs: torch.Tensor, labels: torch.Tensor) -> None:
    if inputs.shape[:1] != labels.shape[:1] or len(labels) < rank.world_size:
        raise RecordingError(
            f"{call}: wanted inputs (N, ...) and labels (N, ...) of at least {rank.world_size} samples, "
            f"found shapes {list(inputs.shape)} and {list(labels.shape)}"
        )


FOLDER = "checkpoints"  # the parameter that names the folder


class Checkpoints:
    """Save a training, and go on from what was saved in the folder ``rank.params["checkpoints"]``. A collective object.

    ::

        checkpoints = Checkpoints(rank, model=net, optimizer=optimizer, schedule=schedule)
        batches = sharded_batches(rank, samples=50_000, batch=128, start=checkpoints.step)
        for step in goal.steps(...):
            ...
            checkpoints.save(step)

    A folder's name is one in ``rank.data_dir``, a whole path lies where all hosts see it. It keeps the newest three.
    When the object is made, the parts get the state of the newest one that is whole, and each rank that of its random
    numbers. Without that parameter nothing is saved.

    Attributes:
        step: number of steps of the loaded checkpoint, or 0.
    """

    def __init__(self, rank: RankContext, **parts: Any) -> None:
        """Go on from the newest checkpoint.

        Args:
            rank: this process; its parameter ``checkpoints`` names the folder.
            parts: objects with ``state_dict`` and ``load_state_dict``, by name.

        Raises:
            RecordingError: what was saved is of other ranks or other parts.
        """
        self.step = 0
        self._rank, self._parts = rank, parts
        given = rank.params.get(FOLDER)
        self._folder = None if given is None else rank.data_dir / Path(given)
        if self._folder is not None:
            self._folder.mkdir(parents=True, exist_ok=True)
            self.step = int(rank.agree(checkpoints.find_good(self._folder)[0]))
            if self.step:
                self._load(self._folder)

    def save(self, step: int) -> None:
        """Save the training after so many steps of this launch.

        Raises:
            RecordingError: no whole number of steps.
        """
        step = check_whole("save(...)", "step", step, least=1)
        if self._folder is None:
            return
        own = bytes(torch.get_rng_state().numpy())
        if self._rank.device.type == "cuda":
            own += bytes(torch.cuda.get_rng_state(self._rank.device).numpy())
        random = self._rank.gather(own)
        if self._rank.rank == 0:
            parts = {name: part.state_dict() for name, part in self._parts.items()}
            checkpoints.save(self._folder, self.step + step, {"parts": parts, "random": random})
        self._rank.barrier()

    def _load(self, folder: Path) -> None:
        saved = checkpoints.load(folder, self.step)
        rank, random, parts = self._rank, saved["random"], saved["parts"]
        if len(random) != rank.world_size or parts.keys() != self._parts.keys():
            raise RecordingError(
                f"{folder}: wanted a training of {rank.world_size} ranks with {', '.join(self._parts)}, found one of "
                f"{len(random)} ranks with {', '.join(parts)}"
            )
        for name, part in self._parts.items():
            part.load_state_dict(parts[name])
        mine = torch.frombuffer(bytearray(random[rank.rank]), dtype=torch.uint8)
        on_host = len(torch.get_rng_state())
        torch.set_rng_state(mine[:on_host])
        if rank.device.type == "cuda":
            torch.cuda.set_rng_state(mine[on_host:], rank.device)
