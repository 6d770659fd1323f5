"""ElasticRank: what the body of an elastic job is given, and the training that survives a change of membership."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from pytest_distbench.errors import RecordingError, show
from pytest_distbench.records.elastic import ElasticJob
from pytest_distbench.records.plan import LaunchPlan
from pytest_distbench.records.timeline import Batch, Line, Loaded, Progress, Remembered, Saved, Stepped, append
from pytest_distbench.worker import checkpoints, sampler
from pytest_distbench.worker.arguments import check_whole, real, refuse
from pytest_distbench.worker.context import RankContext
from pytest_distbench.worker.fingerprint import Watch
from pytest_distbench.worker.memory import OptimizerMemory

_COUNTERS = "distbench"
"""Part of a checkpoint that holds step, epoch and place in it."""


class _Progress:
    """Takes the place of the line to pytest: an elastic job has its timeline."""

    def __init__(self, timeline: Path, slot: int) -> None:
        self._timeline = timeline
        self._slot = slot

    def progress(self, text: str) -> None:
        """Note a line that rank 0 wants to be shown."""
        append(self._timeline, Progress(t=time.monotonic(), slot=self._slot, text=text))

    def take_turn(self) -> None:
        """It is always this job's turn."""


class ElasticRank(RankContext):
    """A :class:`RankContext` of an elastic job. Its body runs from its beginning in every generation.

    Attributes:
        slot: the node that this worker is, whatever its rank is in this generation.
        generation: counts the changes of membership, from 0.
    """

    def __init__(self, plan: LaunchPlan, slot: int, generation: int) -> None:
        line: Any = _Progress(plan.files.timeline, slot)  # all of a line to pytest that is used
        super().__init__(plan, line, {**os.environ, "LOCAL_RANK": str(slot)})  # all nodes share this host's devices
        assert plan.elastic is not None
        self.slot = slot
        self.generation = generation
        self.watch = Watch(is_on=False)
        self._job = plan.elastic
        self._files = plan.files
        self._training: Training | None = None

    def training(self, *, checkpoint_every: int | None = None, **parts: Any) -> Training:
        """Take what must survive a change of membership, and put the newest good checkpoint into it. A collective call.

        Every part has ``state_dict`` and ``load_state_dict``: a model, an optimizer, a schedule. Step, epoch and place
        in the epoch are kept besides. The learning rate comes back with the optimizer: where it depends on the world
        size, set it afterwards.

        Args:
            checkpoint_every: steps between two checkpoints; None: as the test says.
            parts: by name.

        Raises:
            RecordingError: a part cannot be kept, or does not take what the checkpoint has for it.
        """
        if self._training is not None:
            raise RecordingError("rank.training(...) was called before in this body: one training keeps all parts")
        every = self._job.checkpoint_every if checkpoint_every is None else checkpoint_every
        every = check_whole("training(...)", "checkpoint_every", every, least=1)
        self._training = Training(self, self._job, self._files.checkpoints, parts, every, self.note)
        return self._training

    def note(self, line: Line) -> None:
        """Append a line to the timeline."""
        append(self._files.timeline, line)


class Training:
    """A training that goes on where the newest good checkpoint was made.

    Attributes:
        step: steps that were taken, over all generations.
        epoch: the one under way, from 0.
        position: samples of it that were trained on.
    """

    def __init__(
        self,
        rank: ElasticRank,
        job: ElasticJob,
        folder: Path,
        parts: Mapping[str, Any],
        checkpoint_every: int,
        note: Callable[[Line], None],
    ) -> None:
        for name, part in parts.items():
            if name == _COUNTERS or not callable(getattr(part, "load_state_dict", None)):
                refuse("training(...)", f"{name} to have state_dict and load_state_dict", part)
        self.step = self.epoch = self.position = 0
        self._rank = rank
        self._job = job
        self._folder = folder
        self._parts = parts
        self._every = checkpoint_every
        self._note = note
        self._told: dict[str, float | torch.Tensor] = {}
        self._memory = OptimizerMemory()
        self._restore()

    def batches(self, *, samples: int, batch: int, epochs: int) -> Iterator[torch.Tensor]:
        """Indices of the samples that this rank trains on, step by step, from where the training is to its end.

        Each epoch has every sample once, whatever the ranks are that share it. A batch may have a few samples more
        than ``batch`` at the end of an epoch.

        Args:
            samples: in the whole training set, as many as there may be nodes at least.
            batch: per rank.
            epochs: of the whole training.

        Returns:
            Batches (n,) of indices, int64, on the CPU.

        Raises:
            RecordingError: an argument is not what is wanted.
        """
        call = "batches(...)"
        samples = check_whole(call, "samples", samples, least=self._job.most)
        batch = check_whole(call, "batch", batch, least=1)
        epochs = check_whole(call, "epochs", epochs, least=1)
        return self._batches(samples, batch, epochs)

    def _batches(self, samples: int, batch: int, epochs: int) -> Iterator[torch.Tensor]:
        rank = self._rank
        while self.epoch < epochs:
            epoch, order = self.epoch, sampler.permutation(samples, seed=rank.seed, epoch=self.epoch)
            while self.epoch == epoch:
                count = sampler.next_count(
                    samples - self.position, batch=batch, world_size=rank.world_size, most=self._job.most
                )
                chosen = order[self.position : self.position + count]
                mine = sampler.share(chosen, rank=rank.rank, world_size=rank.world_size)
                self._note(
                    Batch(
                        t=time.monotonic(),
                        slot=rank.slot,
                        generation=rank.generation,
                        step=self.step + 1,
                        epoch=epoch,
                        samples=mine.tolist(),
                    )
                )
                yield mine
                self._take_step(count, is_last=self.position + count == samples)
        self._rank.barrier()  # rank 0, which hosts the group's store, must not be the first to go

    def note(
        self,
        *,
        loss: torch.Tensor | float | None = None,
        accuracy: torch.Tensor | float | None = None,
        top5: torch.Tensor | float | None = None,
    ) -> None:
        """Note what this step has shown; of an epoch the mean is kept, over the samples of the steps that noted it.

        Args:
            loss: of this rank's batch.
            accuracy: of this rank's batch; or that of the epoch on other data, noted in its last step alone.
            top5: the same.
        """
        given = {"loss": loss, "accuracy": accuracy, "top5": top5}
        self._told |= {
            name: value.detach() if isinstance(value, torch.Tensor) else value
            for name, value in given.items()
            if value is not None
        }

    def _take_step(self, count: int, *, is_last: bool) -> None:
        self._rank.synchronize()
        told, self._told = self._told, {}
        self.step += 1
        self.position += count
        if is_last:
            self.epoch += 1
            self.position = 0
        self._note(
            Stepped(
                t=time.monotonic(),
                slot=self._rank.slot,
                generation=self._rank.generation,
                step=self.step,
                world_size=self._rank.world_size,
                samples=count,
                loss=_finite(told, "loss", self.step),
                accuracy=_finite(told, "accuracy", self.step),
                top5=_finite(told, "top5", self.step),
                lr=self._learning_rate(),
            )
        )
        if (counts := self._memory.after_step()) is not None:
            before, after = counts
            slot, generation = self._rank.slot, self._rank.generation
            self._note(Remembered(t=time.monotonic(), slot=slot, generation=generation, before=before, after=after))
        if self.step % self._every == 0 and self._rank.rank == 0:
            self._save()

    def _save(self) -> None:
        start = time.monotonic()
        counters = {"step": self.step, "epoch": self.epoch, "position": self.position}
        checkpoints.save(
            self._folder, self.step, {_COUNTERS: counters, **{n: part.state_dict() for n, part in self._parts.items()}}
        )
        now = time.monotonic()
        self._note(
            Saved(t=now, slot=self._rank.slot, generation=self._rank.generation, step=self.step, seconds=now - start)
        )

    def _restore(self) -> None:
        """All ranks load the checkpoint that rank 0 has found good."""
        rank = self._rank
        began = time.monotonic()
        found, torn = checkpoints.find_good(self._folder) if rank.rank == 0 else (0, [])
        step = int(rank.agree(found))
        if step:
            self._take(checkpoints.load(self._folder, step), step)
        self._note(
            Loaded(
                t=time.monotonic(),
                slot=rank.slot,
                generation=rank.generation,
                began_t=began,
                step=step,
                torn=torn,
            )
        )

    def _take(self, state: dict[str, Any], step: int) -> None:
        counters = state.pop(_COUNTERS)
        if state.keys() != self._parts.keys():
            raise RecordingError(
                f"training(...): the checkpoint of step {step} has {', '.join(state) or 'no part'}, and this "
                f"generation keeps {', '.join(self._parts) or 'none'}: a body keeps the same parts in every generation"
            )
        for name, part in self._parts.items():
            try:
                part.load_state_dict(state[name])
            except Exception as error:
                raise RecordingError(
                    f"training(...): {name} does not take what the checkpoint of step {step} has for it: "
                    f"{type(error).__name__}: {error}. Is it built as in the generation before, whatever the "
                    "world size?"
                ) from error
        self.step, self.epoch, self.position = counters["step"], counters["epoch"], counters["position"]

    def _learning_rate(self) -> float | None:
        groups = next((p.param_groups for p in self._parts.values() if hasattr(p, "param_groups")), None)
        groups = groups or self._memory.param_groups
        return real(groups[0].get("lr")) if groups else None


def _finite(told: Mapping[str, torch.Tensor | float], name: str, step: int) -> float | None:
    """What was noted under a name; None: nothing was.

    Raises:
        RecordingError: it is no number, or not finite.
    """
    if name not in told:
        return None
    number = real(told[name])
    if number is None:
        raise RecordingError(f"training.note({name}={show(told[name])}): wanted a number, or a tensor of one element")
    if not math.isfinite(number):
        raise RecordingError(f"training.note({name}=...): the {name} is {number} at step {step}: it diverged")
    return number
