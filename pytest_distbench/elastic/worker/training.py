"""A worker of an elastic job: its process, for a slot in one generation; its training, which outlives it; and a server.

torchrun starts it by ``python -m pytest_distbench.worker elastic PLAN``, and ends it at the next change of membership.
The timeline has what it does; an error is there too, and a report is left only if the body returned.
"""

from __future__ import annotations

import importlib
import io
import math
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import torch
import torch.distributed as dist

from pytest_distbench.elastic.records import IMPORTS_VARIABLE, SERVING, SLOT_VARIABLE, ElasticJob, Job, Pool, event
from pytest_distbench.elastic.worker.ledger import Ledger, OptimizerMemory, RandomStreams, is_per_rank, objects_of
from pytest_distbench.errors import RecordingError
from pytest_distbench.records.launch import RankReport
from pytest_distbench.records.launch_files import LaunchFiles
from pytest_distbench.records.plan import LaunchPlan
from pytest_distbench.records.wire import append, read_events
from pytest_distbench.worker import bodies, checkpoints
from pytest_distbench.worker.clock import HostClock
from pytest_distbench.worker.context import RankContext
from pytest_distbench.worker.fingerprint import Watch
from pytest_distbench.worker.forked import check_fork
from pytest_distbench.worker.leaving import classify, flush_output, leave
from pytest_distbench.worker.line import RankLine
from pytest_distbench.worker.load import process_began
from pytest_distbench.worker.membership import join_group, leave_group
from pytest_distbench.worker.notebook import check_unread, check_whole, real, refuse
from pytest_distbench.worker.process import (
    MemoryPeak,
    arm_nccl,
    note_autocast,
    software,
    take_output,
    take_path,
    take_program,
    take_signals,
)

_COUNTERS = "distbench"  # part of what survives: step, epoch and place in it

_HOLD_S = 0.01
"""Seconds between two collectives of nodes that hold: one of them fails if a node is lost, as the next step's would."""


def _note(timeline: Path, what: str, slot: int, **facts: Any) -> None:
    append(timeline, event(what, t=HostClock.monotonic(), slot=slot, **facts))


class _Timeline(RankLine):
    """Connection of a worker of an elastic job, which writes its progress to the job's timeline."""

    def __init__(self, timeline: Path, slot: int) -> None:
        self._timeline = timeline
        self._slot = slot

    def progress(self, text: str) -> None:
        _note(self._timeline, "progress", self._slot, text=text)


class ElasticRank(RankContext):
    """A :class:`RankContext` of an elastic job. Its body runs from its beginning in every generation.

    Attributes:
        slot: the node that this worker is, whatever its rank is in this generation.
        generation: counts the changes of membership, from 0.
    """

    def __init__(self, plan: LaunchPlan, slot: int, generation: int) -> None:
        line = _Timeline(plan.files.timeline, slot)
        environment = {**os.environ, "LOCAL_RANK": str(slot)}  # all nodes share this host's devices
        super().__init__(plan, line, environment, watch=Watch(is_on=False))
        self.slot = slot
        self.generation = generation
        self._job = plan.expect(Job).job
        self._files = plan.files
        self._training: Training | None = None

    def note_event(self, what: str, **facts: Any) -> None:
        """Write an event of this worker to the job's timeline."""
        _note(self._files.timeline, what, self.slot, generation=self.generation, **facts)

    def training(self, *, checkpoint_every: int | None = None, **parts: Any) -> Training:
        """Take the state that must survive a change of membership, and load the newest good checkpoint.

        A collective call. Step, epoch and position in the epoch are saved too. The learning rate is restored with the
        optimizer: if it depends on the world size, set it afterwards.

        Args:
            checkpoint_every: steps between two checkpoints, by default the test's.
            parts: objects with ``state_dict`` and ``load_state_dict``, by name: a model, an optimizer, a schedule.

        Raises:
            RecordingError: a part cannot be kept, or does not take what the checkpoint has for it.
        """
        if self._training is not None:
            raise RecordingError("rank.training(...) was called before in this body: one training keeps all parts")
        every = self._job.checkpoint_every if checkpoint_every is None else checkpoint_every
        every = check_whole("training(...)", "checkpoint_every", every, least=1)
        self._training = Training(self, self._job, self._files, parts, every=every)
        return self._training

    def random_streams(self, **generators: torch.Generator) -> RandomStreams:
        """A part for ``rank.training`` that saves the random state of each rank: torch's, Python's, numpy's and CUDA's.

        Hand it over as ``rank.training(random=rank.random_streams(), ...)``.

        Args:
            generators: further ones to save, by name.
        """
        return RandomStreams(generators)


class Training:
    """A training whose processes end with their generation: it goes on where the newest good checkpoint was made.

    It trains on each sample once.

    Attributes:
        step: steps that were taken, over all generations.
        epoch: the one under way, from 0.
        position: samples of it that were trained on.
    """

    def __init__(
        self, rank: ElasticRank, job: ElasticJob, files: LaunchFiles, parts: Mapping[str, Any], *, every: int
    ) -> None:
        for name, part in parts.items():
            if name == _COUNTERS or not callable(getattr(part, "load_state_dict", None)):
                refuse("training(...)", f"{name} to have state_dict and load_state_dict", part)
        self.step = self.epoch = self.position = 0
        self._rank = rank
        self._job = job
        self._parts = parts
        self._files = files
        self._noted: dict[str, torch.Tensor | float] = {}
        self._memory = OptimizerMemory()
        self._ledger = Ledger(parts, self._memory, rank.note_event, rank=rank.rank)
        self._drawn: list[int] | None = None
        self._taken = self._since_saved = 0
        self._samples = 0
        self._end: int | None = None
        self._every = every
        self._has_begun = False
        self._holds = [change.at_step for change in job.changes] if job.hold else []
        if odd := [step for step in self._holds if step is None or step % every]:
            raise RecordingError(
                f"training(...): hold=True holds behind the checkpoint of step {odd[0]}, and with checkpoint_every="
                f"{every} there is none: wanted a number that all steps of changes are multiples of"
            )
        self._restore()

    def batches(
        self, *, samples: int, batch: int, epochs: int, device: torch.device | str | None = None
    ) -> Iterator[torch.Tensor]:
        """Indices of the samples that this rank trains on, step by step, from the current position to the end.

        Each epoch has every sample once, whatever the number of ranks. A batch may have a few samples more than
        ``batch`` at the end of an epoch.

        Args:
            samples: size of the training set, at least the maximum number of nodes.
            batch: per rank.
            epochs: number of epochs of the whole training.
            device: device of the indices, by default the rank's.

        Returns:
            Batches (n,) of indices, int64.

        Raises:
            RecordingError: an argument is not what is wanted.
        """
        call = "batches(...)"
        samples = check_whole(call, "samples", samples, least=self._job.most)
        batch = check_whole(call, "batch", batch, least=1)
        epochs = check_whole(call, "epochs", epochs, least=1)
        self._want(samples, epochs)
        return self._batches(samples, batch, epochs, self._rank.device if device is None else device)

    def _batches(self, samples: int, batch: int, epochs: int, device: torch.device | str) -> Iterator[torch.Tensor]:
        rank = self._rank
        order = sent = torch.empty(0)
        of = -1
        self._ledger.objects = objects_of(sys._getframe(1), self._parts)
        if not self._has_begun and self.epoch < (epochs if self._end is None else self._end):
            self._has_begun = True
            self._ledger.at_begin(self._place)
        while self.epoch < (epochs if self._end is None else self._end):
            if of != self.epoch:
                order, of = checkpoints.permutation(samples, seed=rank.seed, epoch=self.epoch), self.epoch
                sent = order.to(device)  # once an epoch: a step would wait for the device
            count = checkpoints.next_count(
                samples - self.position, batch=batch, world_size=rank.world_size, most=self._job.most
            )
            step = slice(self.position, self.position + count)
            mine = checkpoints.share(order[step], rank=rank.rank, world_size=rank.world_size)
            rank.note_event("batch", step=self.step + 1, epoch=self.epoch, samples=mine.tolist())
            self._ledger.watch_inputs(self._since_saved, mine.tolist())
            yield checkpoints.share(sent[step], rank=rank.rank, world_size=rank.world_size)
            rank.synchronize()
            noted, self._noted = self._noted, {}
            self._ledger.note_inputs(self.step + 1)
            drawn, self._drawn = self._drawn, None
            if drawn is not None:
                rank.note_event("drew", step=self.step + 1, samples=drawn)
            if self._taken == 0:  # the first step of a generation is none that is timed
                self._ledger.note_left_out(draws_samples=drawn is not None)
            self._take_step(count, noted, is_last=self.position + count == samples)
            self._keep()
            if self.position == 0 and self._job.ends_after is not None:
                try:  # the step after which the plan of the membership lets the training end
                    last_step: float = int(self._files.last_step.read_text())
                except FileNotFoundError:
                    last_step = math.inf
                if self.step >= rank.agree(last_step):
                    self._end_with(self.epoch)
        self._rank.barrier()  # rank 0, which hosts the group's store, must not be the first to go

    def end_after_epoch(self) -> None:
        """End the training with the current epoch, whatever the ``epochs`` of :meth:`batches`.

        For a body that has reached its goal. All ranks call it in the same step. If a body just leaves the loop
        instead, the remaining samples count as skipped.
        """
        self._end_with(self.epoch + 1)

    @property
    def _place(self) -> dict[str, int]:
        return {"step": self.step, "epoch": self.epoch, "position": self.position}

    def _end_with(self, epochs: int) -> None:
        self._end = epochs
        self._want(self._samples, epochs, is_end=True)

    def _want(self, samples: int, epochs: int, *, is_end: bool = False) -> None:
        self._samples = samples
        self._rank.note_event("wanted", samples=samples, epochs=epochs, epoch=self.epoch, is_end=is_end)

    def drew(self, samples: torch.Tensor | Sequence[int]) -> None:
        """Report the samples that this rank has trained on in this step, instead of those of :meth:`batches`.

        For a body that chooses its samples itself: skipped and repeated samples are counted from these reports.

        Args:
            samples: numbers of the samples, from 0; several calls add up.

        Raises:
            RecordingError: they are no whole numbers.
        """
        values = samples.reshape(-1).tolist() if isinstance(samples, torch.Tensor) else list(samples)
        found = [check_whole("training.drew(...)", "samples", value, least=0) for value in values]
        self._drawn = [*(self._drawn or []), *found]

    def note(
        self,
        *,
        loss: torch.Tensor | float | None = None,
        accuracy: torch.Tensor | float | None = None,
        top5: torch.Tensor | float | None = None,
    ) -> None:
        """Record numbers of this step; an epoch has the mean over the samples of the steps that recorded them.

        Args:
            loss: loss of this rank's batch.
            accuracy: accuracy on this rank's batch; or that of the epoch, in its last step alone.
            top5: top-5 accuracy, as ``accuracy``.

        Raises:
            RecordingError: one is no number, nor a tensor of one element, or not finite; of a tensor the last is
                found at the end of the step.
        """
        for name, value in {"loss": loss, "accuracy": accuracy, "top5": top5}.items():
            if value is not None:
                found = check_unread("training.note(...)", name, value)
                # a tensor is read when its step is over: to read it now would wait for its device
                is_read = not isinstance(found, torch.Tensor)
                self._noted[name] = _finite(found, name, self.step + 1) if is_read else found

    def _take_step(self, count: int, noted: Mapping[str, torch.Tensor | float], *, is_last: bool) -> None:
        self.step += 1
        self._taken += 1
        self._since_saved += 1
        self.position += count
        if is_last:
            self.epoch += 1
            self.position = 0
        updates, is_given_up = self._memory.take_updates()
        groups = next((p.param_groups for p in self._parts.values() if hasattr(p, "param_groups")), None)
        groups = groups or self._memory.param_groups
        read = {name: _finite(value, name, self.step) for name, value in noted.items()}
        self._rank.note_event(
            "stepped",
            step=self.step,
            world_size=self._rank.world_size,
            samples=count,
            loss=read.get("loss"),
            accuracy=read.get("accuracy"),
            top5=read.get("top5"),
            lr=real(groups[0].get("lr")) if groups else None,
            updates=updates,
            is_given_up=is_given_up,
        )
        if (counts := self._memory.after_step()) is not None:
            before, after = counts
            self._rank.note_event("remembered", before=before, after=after)
            self._ledger.at_first_step(self._place)

    def _keep(self) -> None:
        if self.step % self._every != 0:
            return
        self._since_saved = 0
        self._ledger.at_save(self._place)  # before it is on the disk: of what can be loaded there are always digests
        everybody = {}
        for name, part in self._parts.items():
            if is_per_rank(part):
                packed = io.BytesIO()
                torch.save(part.state_dict(), packed)
                everybody[name] = self._rank.gather(packed.getvalue())
        is_held = False  # whether a change is due here, and not made yet: a job that went back further comes here again
        if self.step in self._holds:  # settled before the checkpoint is noted, which the controller waits for
            made = sum(line.what == "changed" for line in read_events(self._files.timeline))
            is_held = self._rank.agree(made) <= self._holds.index(self.step)
        if self._rank.rank == 0:
            start = HostClock.monotonic()
            state = {_COUNTERS: self._place, **{name: part.state_dict() for name, part in self._parts.items()}}
            checkpoints.save(self._files.checkpoints, self.step, {**state, **everybody})
            self._rank.note_event("saved", step=self.step, seconds=HostClock.monotonic() - start)
        while is_held:  # until the change ends this process, or another one's and with it the collective
            self._rank.barrier()
            time.sleep(_HOLD_S)

    def _restore(self) -> None:
        rank = self._rank
        began = HostClock.monotonic()
        found, torn = checkpoints.find_good(self._files.checkpoints) if rank.rank == 0 else (0, [])
        step = int(rank.agree(found))
        if step:
            self._ledger.before_load()
            state = checkpoints.load(self._files.checkpoints, step)
            found_parts = [name for name in state if name != _COUNTERS]
            if set(found_parts) != self._parts.keys():
                raise RecordingError(
                    f"training(...): the checkpoint of step {step} has {', '.join(found_parts) or 'no part'}, and this "
                    f"generation keeps {', '.join(self._parts) or 'none'}: a body keeps the same parts in every "
                    "generation"
                )
            for name, part in self._parts.items():
                try:
                    if not is_per_rank(part):
                        part.load_state_dict(state[name])
                    elif rank.rank < len(state[name]):  # else there is nothing for it
                        packed = io.BytesIO(state[name][rank.rank])
                        part.load_state_dict(torch.load(packed, map_location="cpu", weights_only=True))
                except Exception as error:
                    raise RecordingError(
                        f"training(...): {name} does not take what the checkpoint of step {step} has for it: "
                        f"{type(error).__name__}: {error}. Is it built as in the generation before, whatever the world "
                        "size?"
                    ) from error
            self.step, self.epoch, self.position = (state[_COUNTERS][name] for name in ("step", "epoch", "position"))
            self._ledger.at_load(self._place)
        rank.note_event("loaded", began_t=began, step=step, torn=torn)


def _finite(value: torch.Tensor | float, name: str, step: int) -> float:
    number = float(value)
    if not math.isfinite(number):
        raise RecordingError(f"training.note({name}=...): the {name} is {number} at step {step}: it diverged")
    return number


RAISED = 13
"""Exit code of a worker or server that raised. A worker ends at once: unwinding takes seconds, in which peers wait."""


def main(plan_path: str) -> NoReturn:
    """Run the body of a plan as the worker that the environment names."""
    plan = LaunchPlan.read_from(plan_path)
    work = plan.expect(Job)
    slot = int(os.environ[SLOT_VARIABLE])
    context: ElasticRank | None = None
    take_output(plan.files.log(slot))
    take_signals(plan.files.stacks(slot))
    take_path(plan)
    take_program(work.body.file)
    if plan.set_threads is not None:
        torch.set_num_threads(plan.set_threads)
    for name in filter(None, os.environ.get(IMPORTS_VARIABLE, "").split(",")):
        importlib.import_module(name)
    timeline, pid = plan.files.timeline, os.getpid()
    restarts = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    _note(timeline, "started", slot, pid=pid, process_t=process_began(), restarts=restarts)
    try:
        if plan.device == "cuda":
            check_fork()
            torch.cuda.set_device(plan.devices[slot])
            arm_nccl(plan, slot)
        note_autocast()
        memory = MemoryPeak(plan)
        context = _join_generation(plan, slot)
        bodies.call(bodies.load(work.body), context)
        context.wait_for_queued()
        context.check_complete()
    except BaseException as raised:  # noqa: BLE001 whatever ends a body is reported
        _, _, error = classify(raised)
        flush_output()
        generation = None if context is None else context.generation
        _note(timeline, "raised", slot, pid=pid, generation=generation, error=error)
        os._exit(RAISED)
    RankReport(  # what the body has recorded in the last generation, as ranks of other launches leave it
        rank=context.rank,
        outcome="passed",
        phase="body",
        phases={},
        observations=context.notebook.observations,
        peak_memory_bytes=memory.num_bytes(),
        software=software(plan) if context.rank == 0 else {},
    ).write(plan.files)
    context.note_event("finished")
    flush_output()
    leave(lambda what: None)
    leave_group()
    os._exit(0)


def count_generation(folder: Path) -> int:
    """Return a generation number that this launch has not used yet. Called by rank 0 alone."""
    number = 0
    while True:
        try:
            (folder / f"generation{number}").touch(exist_ok=False)
        except FileExistsError:
            number += 1
        else:
            return number


def _join_generation(plan: LaunchPlan, slot: int) -> ElasticRank:
    timeout_s = plan.expect(Job).job.timers["collective_s"]  # without it a lost node is never noticed
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    device = torch.device("cuda", plan.devices[slot]) if plan.device == "cuda" else torch.device("cpu")
    join_group(plan.backend, rank=rank, world_size=world_size, timeout_s=timeout_s, device=device)
    number = torch.tensor([count_generation(Path(plan.directory)) if rank == 0 else 0], device=device)
    dist.broadcast(number, src=0)
    generation = int(number.item())
    found = {"pid": os.getpid(), "generation": generation, "rank": rank, "world_size": world_size}
    _note(plan.files.timeline, "joined", slot, **found)
    return ElasticRank(plan, slot, generation)


def serve(path: str, number: str) -> NoReturn:
    """Run a server of a pool in its slot: load what the plan names, report it, and wait until SIGTERM ends it."""
    plan, slot = LaunchPlan.read_from(path), int(number)
    task, timeline = plan.expect(Pool).tasks[SERVING], plan.files.pool_timeline
    take_path(plan)
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1").partition(",")[0] or 1))
    try:
        load: Callable[..., object] = bodies.load(task.body)
        _loaded = load(**task.params)  # it keeps what it returns for as long as it lives
    except Exception as error:  # noqa: BLE001 whatever it raises is reported
        message = f"{type(error).__name__}: {error}\n{traceback.format_exc(limit=-5)}"
        _note(timeline, "server_failed", slot, error=message)
        os._exit(RAISED)
    _note(timeline, "server_ready", slot)
    while True:
        signal.pause()
