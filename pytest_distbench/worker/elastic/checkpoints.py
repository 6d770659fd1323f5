"""Checkpoints of an elastic job: each file whole or known to be torn, the newest good one is what counts."""

from __future__ import annotations

import hashlib
import io
import os
import re
from pathlib import Path
from typing import Any

import torch

from pytest_distbench.errors import RecordingError

_KEPT = 3
"""The newest; a torn one has others behind it."""
_DIGEST_BYTES = hashlib.sha256().digest_size
_NAME = re.compile(r"step(\d+)\.pt")


def save(folder: Path, step: int, state: dict[str, Any]) -> None:
    """Write a checkpoint, and remove old ones. It has its name when it is on the disk, whole."""
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
    """The step of the newest checkpoint that is whole, and the names of newer ones that are not.

    The step is 0 where there is none: the training begins.
    """
    torn: list[str] = []
    for step, path in _by_step(folder):
        if _read(path) is not None:
            return step, torn
        torn.append(path.name)
    return 0, torn


def load(folder: Path, step: int) -> dict[str, Any]:
    """What the checkpoint of a step holds, on the CPU."""
    path = folder / f"step{step}.pt"
    data = _read(path)
    if data is None:
        raise RecordingError(f"{path} is gone or not whole, and was whole a moment ago: does something write there?")
    state: dict[str, Any] = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    return state


def _by_step(folder: Path) -> list[tuple[int, Path]]:
    """The newest first."""
    found = [(int(name[1]), path) for path in folder.iterdir() if (name := _NAME.fullmatch(path.name))]
    return sorted(found, reverse=True)


def _read(path: Path) -> bytes | None:
    """What a checkpoint holds; None where it is not what was written."""
    try:
        data = path.read_bytes()
    except OSError:
        return None
    digest, content = data[:_DIGEST_BYTES], data[_DIGEST_BYTES:]
    return content if content and hashlib.sha256(content).digest() == digest else None
