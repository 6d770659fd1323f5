"""CIFAR-10's binary files: how their records are read, checked and augmented, and a generator that writes such files.

Format: https://www.cs.toronto.edu/~kriz/cifar.html, "Binary version": ``data_batch_1.bin`` to ``data_batch_5.bin``,
each 10 000 records of 3073 bytes: a label from 0 to 9, then 1024 bytes of red, green and blue each, row by row.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
import torch.nn.functional as F  # noqa: N812 the field's name for it

from pytest_distbench.errors import RecordingError

SHAPE = (3, 32, 32)
CLASSES = 10
RECORD_BYTES = 1 + 3 * 32 * 32
FILES = tuple(f"data_batch_{number}.bin" for number in range(1, 6))
"""Names of the training set's files, in its order."""
FILE_RECORDS = 10_000
FOLDER = "cifar-10-batches-bin"
"""What the archive of the data set unpacks to."""

_PADDING = 4
_MEAN = torch.tensor([0.4914, 0.4822, 0.4465]).view(3, 1, 1)
_STDEV = torch.tensor([0.2470, 0.2435, 0.2616]).view(3, 1, 1)
"""Of the training set's pixels, by channel, where white is 1."""


def count_records(sizes: Mapping[str, int], where: str) -> dict[str, int]:
    """How many records each file of a training set has.

    Args:
        sizes: bytes of every file that lies there, by name.
        where: for errors.

    Raises:
        RecordingError: no file of a training set is there, or one does not hold whole records.
    """
    found = {name: sizes[name] for name in FILES if name in sizes}
    if not found:
        there = ", ".join(sorted(sizes)[:5]) or "no file"
        raise RecordingError(
            f"{where}: wanted the training set of CIFAR-10, {FILES[0]} to {FILES[-1]}, there or in {FOLDER}/; found "
            f"{there}. Unpack cifar-10-binary.tar.gz of https://www.cs.toronto.edu/~kriz/cifar.html there"
        )
    for name, num_bytes in found.items():
        if num_bytes % RECORD_BYTES or not num_bytes:
            raise RecordingError(
                f"{where}/{name}: wanted whole records of {RECORD_BYTES} bytes, found {num_bytes} bytes, "
                f"{num_bytes % RECORD_BYTES} more than {num_bytes // RECORD_BYTES} records have: the file was cut off, "
                "or it is not the binary version"
            )
    return {name: num_bytes // RECORD_BYTES for name, num_bytes in found.items()}


def decode(record: bytes, where: str) -> tuple[torch.Tensor, int]:
    """An image (3, 32, 32), uint8, and its label, 0 to 9.

    Raises:
        RecordingError: the record is cut off, or its label is above 9.
    """
    if len(record) != RECORD_BYTES:
        raise RecordingError(
            f"{where}: wanted a record of {RECORD_BYTES} bytes, found {len(record)}: the file became shorter, or what "
            "stores it gives less than it was asked for"
        )
    if record[0] >= CLASSES:
        raise RecordingError(
            f"{where}: wanted a label from 0 to {CLASSES - 1}, found {record[0]}: the file is damaged, or it is no "
            "CIFAR-10 (records of CIFAR-100 have two labels)"
        )
    return torch.frombuffer(bytearray(record), dtype=torch.uint8, offset=1).view(SHAPE), record[0]


def augment(image: torch.Tensor) -> torch.Tensor:
    """A random crop of the image with four more pixels on each side, or of its mirror image, normalised: float32.

    Source: He et al., arXiv 1512.03385, section 4.2. Chance is torch's own generator of the process.
    """
    left, top = torch.randint(0, 2 * _PADDING + 1, (2,)).tolist()
    _, height, width = SHAPE
    crop = F.pad(image, (_PADDING,) * 4)[:, top : top + height, left : left + width]
    if torch.rand(()) < 0.5:
        crop = crop.flip(2)
    return (crop.float() / 255 - _MEAN) / _STDEV


def generate(samples: int, seed: int) -> Iterator[tuple[str, bytes]]:
    """Files of random pixels and labels in this format, by name: the same ones for the same seed.

    Args:
        samples: 1 to 50 000, as many as the training set has.
        seed: of torch's generator.
    """
    chance = torch.Generator().manual_seed(seed)
    for name, first in zip(FILES, range(0, samples, FILE_RECORDS), strict=False):
        count = min(FILE_RECORDS, samples - first)
        records = torch.randint(0, 256, (count, RECORD_BYTES), dtype=torch.uint8, generator=chance)
        records[:, 0] %= CLASSES
        yield name, records.numpy().tobytes()
