"""Checkpoints of a training with a fixed number of ranks: it goes on bit for bit where it was saved."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch

from pytest_distbench.errors import RecordingError
from pytest_distbench.worker.arguments import check_whole, refuse
from pytest_distbench.worker.elastic import checkpoints

if TYPE_CHECKING:
    from pytest_distbench.worker.context import RankContext

FOLDER = "checkpoints"
"""The parameter that names the folder."""


class Stateful(Protocol):
    """A model, an optimizer, a schedule, or whatever else a training changes."""

    def state_dict(self) -> Any: ...

    def load_state_dict(self, state: Any) -> Any: ...


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
        step: steps that were taken before.
    """

    def __init__(self, rank: RankContext, **parts: Stateful) -> None:
        """Go on from the newest checkpoint.

        Args:
            rank: whose parameters name the folder.
            parts: what has a state, by name.

        Raises:
            RecordingError: a part has no state, or what was saved is of other ranks or other parts.
        """
        for name, part in parts.items():
            if not callable(getattr(part, "load_state_dict", None)):
                refuse("Checkpoints(...)", f"{name} to have state_dict and load_state_dict", part)
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
        random = self._rank.gather(bytes(torch.get_rng_state().numpy()) + self._of_device())
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

    def _of_device(self) -> bytes:
        """The state of the device's own random numbers."""
        is_cuda = self._rank.device.type == "cuda"
        return bytes(torch.cuda.get_rng_state(self._rank.device).numpy()) if is_cuda else b""
