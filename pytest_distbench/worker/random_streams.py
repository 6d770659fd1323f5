"""RandomStreams: the random state of a rank, as a part of a training that survives a change of membership."""

from __future__ import annotations

import random
import sys
from collections.abc import Mapping
from typing import Any

import torch


class RandomStreams:
    """Keeps torch's, Python's and numpy's random streams of this process, CUDA's and given generators.

    Each rank has streams of its own, and gets its own back. A rank that there was not at the checkpoint keeps its own.
    """

    per_rank = True

    def __init__(self, generators: Mapping[str, torch.Generator]) -> None:
        self._generators = generators

    def state_dict(self) -> dict[str, Any]:
        """Of all streams, as they stand."""
        version, internal, spare = random.getstate()
        state: dict[str, Any] = {
            "torch": torch.get_rng_state(),
            "python": [version, list(internal), spare],
            "generators": {name: generator.get_state() for name, generator in self._generators.items()},
        }
        numpy = sys.modules.get("numpy.random")
        if numpy is not None:
            kind, keys, position, has_spare, spare = numpy.get_state()
            state["numpy"] = [kind, torch.from_numpy(keys.astype("int64")), position, has_spare, spare]
        if torch.cuda.is_initialized():
            state["cuda"] = torch.cuda.get_rng_state_all()
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Put them back. A stream that this process does not have is passed over."""
        torch.set_rng_state(state["torch"])
        version, internal, spare = state["python"]
        random.setstate((version, tuple(internal), spare))
        numpy = sys.modules.get("numpy.random")
        if numpy is not None and "numpy" in state:
            kind, keys, position, has_spare, spare = state["numpy"]
            numpy.set_state((kind, keys.numpy().astype("uint32"), position, has_spare, spare))
        if "cuda" in state:
            torch.cuda.set_rng_state_all(state["cuda"])
        for name, generator in self._generators.items():
            generator.set_state(state["generators"][name])
