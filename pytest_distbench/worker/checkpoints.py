"""Checkpoints that are complete or known to be damaged, and a sample order that is the same for any number of ranks."""

from __future__ import annotations

import hashlib
import io
import os
import re
from pathlib import Path
from typing import Any

import torch

from pytest_distbench.errors import RecordingError


def permutation(samples: int, *, seed: int, epoch: int) -> torch.Tensor:
    """The order of an epoch's samples (samples,), the same in every rank of every generation."""
    own = (1000 * seed + epoch) % 2**64  # as torch takes negative ones, too
    return torch.randperm(samples, generator=torch.Generator().manual_seed(own))


def next_count(left: int, *, batch: int, world_size: int, most: int) -> int:
    """Samples of the next step over all ranks: ``batch`` each, or all ``left`` if fewer than ``most`` would remain.

    So every rank has a sample in every step, for any number of ranks in the next step.
    """
    count = batch * world_size
    return left if left - count < most else count


def share(chosen: torch.Tensor, *, rank: int, world_size: int) -> torch.Tensor:
    """A rank's part of a step's samples; the parts of two ranks differ by at most one sample."""
    return chosen[rank::world_size]


_KEPT = 3
_DIGEST_BYTES = hashlib.sha256().digest_size
_NAME = re.compile(r"step(\d+)\.pt")


def save(folder: Path, step: int, state: dict[str, Any]) -> None:
    """Write a checkpoint and remove old ones. It gets its name once it is completely on disk."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    data = buffer.getbuffer()
    target = folder / f"step{step}.pt"
    draft = target.with_suffix(".tmp")
    with open(draft, "wb") as file:
        file.write(hashlib.sha256(data).digest())
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(target)
    for _, path in _by_step(folder)[_KEPT:]:
        path.unlink(missing_ok=True)


def find_good(folder: Path) -> tuple[int, list[str]]:
    """Step of the newest complete checkpoint, or 0 if there is none, and the names of newer ones that are damaged."""
    torn: list[str] = []
    for step, path in _by_step(folder):
        if _read(path) is not None:
            return step, torn
        torn.append(path.name)
    return 0, torn


def load(folder: Path, step: int) -> dict[str, Any]:
    path = folder / f"step{step}.pt"
    data = _read(path)
    if data is None:
        raise RecordingError(f"{path} is gone or not whole, and was whole a moment ago: does something write there?")
    state: dict[str, Any] = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    return state


def _by_step(folder: Path) -> list[tuple[int, Path]]:
    found = [(int(name[1]), path) for path in folder.iterdir() if (name := _NAME.fullmatch(path.name))]
    return sorted(found, reverse=True)


def _read(path: Path) -> bytes | None:
    try:
        data = path.read_bytes()
    except OSError:
        return None
    digest, content = data[:_DIGEST_BYTES], data[_DIGEST_BYTES:]
    return content if content and hashlib.sha256(content).digest() == digest else None
