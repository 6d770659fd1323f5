"""ElasticRank: what the body of an elastic job is given."""

from __future__ import annotations

from typing import Any

import torch

from pytest_distbench.errors import RecordingError
from pytest_distbench.worker.arguments import check_whole
from pytest_distbench.worker.elastic.node import Node
from pytest_distbench.worker.elastic.training import Training
from pytest_distbench.worker.random_streams import RandomStreams


class ElasticRank(Node):
    """A :class:`RankContext` of an elastic job. Its body runs from its beginning in every generation.

    Attributes:
        slot: the node that this worker is, whatever its rank is in this generation.
        generation: counts the changes of membership, from 0.
    """

    _training: Training | None = None

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
        self._training = Training(self, self._job, self._files, parts, every=every)
        return self._training

    def random_streams(self, **generators: torch.Generator) -> RandomStreams:
        """A part that keeps the random state of each rank: torch's, Python's, numpy's and CUDA's.

        Hand it over as ``rank.training(random=rank.random_streams(), ...)``.

        Args:
            generators: further ones to keep, by name.
        """
        return RandomStreams(generators)
