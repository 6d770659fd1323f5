"""ElasticRank: what the body of an elastic job is given."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import torch

from pytest_distbench.errors import RecordingError
from pytest_distbench.records.plan import LaunchPlan
from pytest_distbench.records.timeline import Changed, Line, Progress, append, read_timeline
from pytest_distbench.records.work import Job
from pytest_distbench.worker.arguments import check_whole
from pytest_distbench.worker.context import RankContext
from pytest_distbench.worker.elastic_training import CheckpointTraining, Training
from pytest_distbench.worker.fingerprint import Watch
from pytest_distbench.worker.line import NoLine
from pytest_distbench.worker.random_streams import RandomStreams


class _Timeline(NoLine):
    """The line of a worker of an elastic job: what it shows goes into the job's timeline."""

    def __init__(self, timeline: Path, slot: int) -> None:
        self._timeline = timeline
        self._slot = slot

    def progress(self, text: str) -> None:
        """Note a line that rank 0 wants to be shown."""
        append(self._timeline, Progress(t=time.monotonic(), slot=self._slot, text=text))


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
        files = self._files
        self._training = CheckpointTraining(
            self, self._job, parts, self.note, files.last_step, folder=files.checkpoints, every=every
        )
        return self._training

    def random_streams(self, **generators: torch.Generator) -> RandomStreams:
        """A part that keeps the random state of each rank: torch's, Python's, numpy's and CUDA's.

        Hand it over as ``rank.training(random=rank.random_streams(), ...)``.

        Args:
            generators: further ones to keep, by name.
        """
        return RandomStreams(generators)

    def changes_made(self) -> int:
        """Changes of membership that the controller has made so far."""
        return sum(isinstance(line, Changed) for line in read_timeline(self._files.timeline))

    def note(self, line: Line) -> None:
        """Append a line to the timeline."""
        append(self._files.timeline, line)
