"""CIFAR-10: its two layouts, binary and pickled, read and checked; one record at a time for loaders of images.

Format: https://www.cs.toronto.edu/~kriz/cifar.html. "Binary version": ``data_batch_1.bin`` to ``data_batch_5.bin`` and
``test_batch.bin``, each 10 000 records of 3073 bytes: a label from 0 to 9, then 1024 bytes of red, green and blue each,
row by row. "Python version": files of these names without ``.bin``, each a pickled dictionary of an array ``data``
(10 000, 3072) and a list ``labels``.

No code of a pickle runs: of all that it can call, only uint8 arrays are made, and arguments for numpy are kept as data
and checked, so no state of a hostile file reaches numpy's code.
"""

from __future__ import annotations

import io
import math
import pickle
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 the field's name for it

from pytest_distbench.errors import DataError
from pytest_distbench.workloads.data import CUT, Labelled, Parts, damaged, require


def unpickle_arrays(path: Path) -> dict[str, Any]:
    """Read a pickled dictionary of arrays (uint8), numbers, texts and lists of them; keys in bytes become texts."""
    content = path.read_bytes()
    stream = io.BytesIO(content)
    reader = _Arrays(stream)
    try:
        found = reader.load()
        if not isinstance(found, dict):
            raise _RefusedError(f"a {type(found).__name__}")  # noqa: TRY301 one way to say what is wrong
        made = {_text(key): value.array() if isinstance(value, _Array) else value for key, value in found.items()}
    except Exception as error:  # noqa: BLE001 a damaged pickle raises whatever its bytes lead to
        found, hint = f"{type(error).__name__}: {error}", CUT if stream.tell() >= len(content) else ""
        if isinstance(error, _RefusedError):
            found, hint = str(error), "CIFAR-10 needs nothing else; do not load this file by other means"
        place = f"{path}, byte {stream.tell()}"
        raise damaged(place, wanted="a pickled dictionary of arrays and lists", found=found, hint=hint) from None
    if rest := len(content) - stream.tell():
        raise damaged(f"{path}, byte {stream.tell()}", wanted="the end of the file", found=f"{rest} more bytes")
    return made


class _RefusedError(Exception):
    """The pickle calls a name that is not allowed."""


class _Array:
    """An array that is being unpickled, with numpy's state of it as data."""

    def __init__(self) -> None:
        self.state: Any = None

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def array(self) -> np.ndarray:
        _, shape, kind, is_fortran, content = self.state
        if not isinstance(kind, _Kind) or kind != "u1":
            raise _RefusedError("an array of other numbers than uint8")
        if is_fortran or not isinstance(content, bytes) or any(type(size) is not int or size < 0 for size in shape):
            raise _RefusedError("an array that is not stored row by row")
        if math.prod(shape) != len(content):
            raise _RefusedError(f"an array {list(shape)} of {len(content)} bytes")
        return np.frombuffer(content, np.uint8).reshape(shape)


class _Kind(str):
    """Name of an array's dtype. Its state would be the byte order, which a single byte does not have."""

    def __setstate__(self, state: object) -> None: ...


class _Arrays(pickle.Unpickler):
    """An unpickler that replaces numpy's functions by its own, and refuses every other name."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, encoding="bytes")
        self._known = {
            ("numpy.core.multiarray", "_reconstruct"): self._reconstruct,
            ("numpy._core.multiarray", "_reconstruct"): self._reconstruct,
            ("numpy", "ndarray"): self._refuse_call,
            ("numpy", "dtype"): lambda name, *_: _Kind(_text(name)),
            ("_codecs", "encode"): self._encode,
        }

    def find_class(self, module: str, name: str) -> Any:
        try:
            return self._known[module, name]
        except KeyError:
            raise _RefusedError(f"{module}.{name}") from None

    def persistent_load(self, pid: object) -> Any:  # noqa: ARG002 as the base has it
        raise _RefusedError("a reference to an object elsewhere")

    def _reconstruct(self, kind: object, *_: object) -> _Array:
        if kind != self._refuse_call:
            raise _RefusedError("an array of another class")
        return _Array()

    def _encode(self, text: object, encoding: object) -> bytes:
        if not isinstance(text, str) or encoding not in ("latin1", b"latin1"):
            raise _RefusedError("a call of _codecs.encode with something else than bytes")
        return text.encode("latin1")

    def _refuse_call(self, *_: object) -> None:
        raise _RefusedError("numpy.ndarray called as a function")


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


SHAPE = (3, 32, 32)
CLASSES = 10
RECORD_BYTES = 1 + 3 * 32 * 32
TRAINING = tuple(f"data_batch_{number}" for number in range(1, 6))
TEST = "test_batch"
FILES = tuple(f"{name}.bin" for name in TRAINING)  # names of the binary training set's files, in its order
FILE_RECORDS = 10_000
FOLDER = "cifar-10-batches-bin"
PICKLED_FOLDER = "cifar-10-batches-py"  # what the archives of the data set unpack to

_NO_CIFAR10 = "the file is damaged, or it is no CIFAR-10 (records of CIFAR-100 have two labels)"
_PADDING = 4
_MEAN = torch.tensor([0.4914, 0.4822, 0.4465]).view(3, 1, 1)
_STDEV = torch.tensor([0.2470, 0.2435, 0.2616]).view(3, 1, 1)
"""Standard deviation of the training set's pixels, by channel, with white as 1."""


def load(folder: Path) -> Parts:
    """Load the whole set, from the binary files if they exist, else from the pickled ones.

    Images are (N, 3, 32, 32), uint8, and labels int64, 0 to 9.
    """
    read = _read_binary if (folder / FILES[0]).exists() else _read_pickled
    batches = [read(folder, name) for name in (*TRAINING, TEST)]
    return Parts(_join(batches[:-1]), _join(batches[-1:]))


def count(folder: Path) -> dict[str, int]:
    """Number of images of each part, after all were read."""
    found = load(folder)
    return {"training images": len(found.train.labels), "test images": len(found.test.labels)}


def _join(batches: list[tuple[np.ndarray, np.ndarray]]) -> Labelled:
    pixels, labels = (np.concatenate(parts) for parts in zip(*batches, strict=True))
    return Labelled(torch.from_numpy(pixels).view(-1, *SHAPE), torch.from_numpy(labels))


def _read_binary(folder: Path, name: str) -> tuple[np.ndarray, np.ndarray]:
    path = require(folder / f"{name}.bin")
    count_records({path.name: path.stat().st_size}, str(folder), (path.name,))
    records = np.fromfile(path, np.uint8).reshape(-1, RECORD_BYTES)
    return records[:, 1:], _checked(records[:, 0].astype(np.int64), str(path), "record")


def _read_pickled(folder: Path, name: str) -> tuple[np.ndarray, np.ndarray]:
    path = require(folder / name)
    content = unpickle_arrays(path)
    pixels, labels = content.get("data"), content.get("labels")
    if (
        not (isinstance(pixels, np.ndarray) and isinstance(labels, list) and len(pixels) == len(labels) > 0)
        or pixels.shape[1:] != (RECORD_BYTES - 1,)
        or any(type(label) is not int for label in labels)
    ):
        wanted = f"as many rows of {RECORD_BYTES - 1} bytes in 'data' as whole numbers in 'labels', at least one"
        raise damaged(path, wanted=wanted, found=f"{type(pixels).__name__} and {type(labels).__name__}")
    return pixels, _checked(np.array(labels, dtype=object), str(path), "label").astype(np.int64)


def _checked(labels: np.ndarray, path: str, what: str) -> np.ndarray:
    outside = (labels < 0) | (labels >= CLASSES)
    if outside.any():
        number = int(outside.argmax())
        wanted = f"a label from 0 to {CLASSES - 1}"
        raise damaged(f"{path}, {what} {number}", wanted=wanted, found=str(labels[number]), hint=_NO_CIFAR10)
    return labels


def count_records(sizes: Mapping[str, int], where: str, files: tuple[str, ...] = FILES) -> dict[str, int]:
    """Number of records of each file, from the sizes in bytes of all files that exist."""
    found = {name: sizes[name] for name in files if name in sizes}
    if not found:
        there = ", ".join(sorted(sizes)[:5]) or "no file"
        raise DataError(
            f"{where}: wanted the training set of CIFAR-10, {FILES[0]} to {FILES[-1]}, there or in {FOLDER}/; found "
            f"{there}. Unpack cifar-10-binary.tar.gz of https://www.cs.toronto.edu/~kriz/cifar.html there"
        )
    for name, num_bytes in found.items():
        records, rest = divmod(num_bytes, RECORD_BYTES)
        if rest or not records:
            raise damaged(
                f"{where}/{name}, record {records}",
                wanted=f"whole records of {RECORD_BYTES} bytes",
                found=f"{num_bytes} bytes, {rest} more than {records} records have",
                hint=f"{CUT}, or it is not the binary version",
            )
    return {name: num_bytes // RECORD_BYTES for name, num_bytes in found.items()}


def decode(record: bytes, where: str) -> tuple[torch.Tensor, int]:
    """Return an image (3, 32, 32), uint8, and its label, 0 to 9."""
    if record[0] >= CLASSES:
        raise damaged(where, wanted=f"a label from 0 to {CLASSES - 1}", found=str(record[0]), hint=_NO_CIFAR10)
    return torch.frombuffer(bytearray(record), dtype=torch.uint8, offset=1).view(SHAPE), record[0]


def augment(image: torch.Tensor) -> torch.Tensor:
    """Return a random crop of the image, padded by four pixels, or of its mirror image, normalised: float32.

    Source: He et al., arXiv 1512.03385, section 4.2. Chance is torch's own generator of the process.
    """
    left, top = torch.randint(0, 2 * _PADDING + 1, (2,)).tolist()
    _, height, width = SHAPE
    crop = F.pad(image, (_PADDING,) * 4)[:, top : top + height, left : left + width]
    if torch.rand(()) < 0.5:
        crop = crop.flip(2)
    return (crop.float() / 255 - _MEAN) / _STDEV


def generate_noise(samples: int, seed: int) -> Iterator[tuple[str, bytes]]:
    """Make training files of random pixels and labels, by name, from a seed. At most 50 000 samples."""
    chance = torch.Generator().manual_seed(seed)
    for name, first in zip(FILES, range(0, samples, FILE_RECORDS), strict=False):
        count = min(FILE_RECORDS, samples - first)
        records = torch.randint(0, 256, (count, RECORD_BYTES), dtype=torch.uint8, generator=chance)
        records[:, 0] %= CLASSES
        yield name, records.numpy().tobytes()


def generate(folder: Path, seed: int) -> None:
    """Write a whole set in the binary layout: the 1797 handwritten digits that scikit-learn ships, 1437 to train on.

    A pixel of the 8 x 8 of a digit is drawn as 4 x 4 equal pixels, in three equal channels.
    """
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        wanted = "generating CIFAR-10 draws the digits of scikit-learn: pip install pytest-distbench[suites]"
        raise DataError(wanted) from None
    digits = load_digits()
    order = torch.randperm(len(digits.target), generator=torch.Generator().manual_seed(seed)).numpy()
    grey = (digits.images[order] * (255 / 16)).round().astype(np.uint8)
    pixels = np.tile(grey.repeat(4, axis=1).repeat(4, axis=2).reshape(len(order), -1), 3)
    records = np.concatenate([digits.target[order, None].astype(np.uint8), pixels], axis=1)
    for name, part in zip(TRAINING, np.array_split(records[:1437], len(TRAINING)), strict=True):
        part.tofile(folder / f"{name}.bin")
    records[1437:].tofile(folder / f"{TEST}.bin")
