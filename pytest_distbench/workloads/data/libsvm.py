"""The epsilon set in libsvm's text format, streamed into a memory-mapped cache: 400 000 x 2000 in bounded memory.

Format: https://www.csie.ntu.edu.tw/~cjlin/libsvm, one row a line: ``label index:value index:value ...``, indices from
1, ascending; what follows a ``#`` is a comment. Labels are -1 and +1, here 0. and 1. Source:
https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/binary.html#epsilon
"""

from __future__ import annotations

import bz2
import json
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from filelock import FileLock

from pytest_distbench.errors import show
from pytest_distbench.workloads.data import CUT, Labelled, Parts, damaged, require, written_whole

FEATURES = 2000
TRAIN = "epsilon_normalized"
TEST = "epsilon_normalized.t"
PACKED = ".bz2"  # what may follow these names, where the text is compressed

_SCHEMA = 2
_HEADER_BYTES = 4096
_ROWS_AT_ONCE = 256
_COLON_TO_SPACE = bytes.maketrans(b":", b" ")
_NO_SEPARATORS = bytes(set(range(256)) - set(b" :"))
_LABELS = {b"+1": 1.0, b"1": 1.0, b"-1": 0.0}


def load(folder: Path, *, features: int = FEATURES) -> Parts:
    """Load both files of the set from caches, which are made next to them if they are missing or older than the text.

    Features are (N, F), float32, and stay in a file until they are used; labels float32, 0. or 1.
    """
    return Parts(*(_cached(_text_of(folder, name), features) for name in (TRAIN, TEST)))


def count(folder: Path, *, features: int = FEATURES) -> dict[str, int]:
    """Number of rows of each part, after all were read; a cache that differs from its text is damaged."""
    counts = {}
    for name, title in ((TRAIN, "training rows"), (TEST, "test rows")):
        text = _text_of(folder, name)
        cache = cache_of(text)
        known = _open(cache, text, features)
        rows = 0
        for values, labels in _read(text, features):
            if known is not None:
                part = slice(rows, rows + len(labels))
                same = (known.inputs[part].numpy() == values).all(1) & (known.labels[part].numpy() == labels)
                if not same.all():
                    place = f"{cache}, row {rows + int(same.argmin())}"
                    raise damaged(place, wanted=f"the row of {text.name}", found="another", hint="delete the cache")
            rows += len(labels)
        counts[title] = rows
    return counts


def cache_of(text: Path) -> Path:
    """Path of a text's cache."""
    return text.with_name(f"{text.name}.rows")


def _text_of(folder: Path, name: str) -> Path:
    plain, packed = folder / name, folder / f"{name}{PACKED}"
    return require(packed if packed.exists() and not plain.exists() else plain)


def _cached(text: Path, features: int) -> Labelled:
    cache = cache_of(text)
    try:
        found = _open(cache, text, features)
        if found is None:
            with FileLock(f"{cache}.lock"):  # of several ranks that begin at once, one reads the text
                found = _open(cache, text, features)
                if found is None:
                    all_labels = []
                    with written_whole(cache) as file:
                        file.write(bytes(_HEADER_BYTES))
                        for values, labels in _read(text, features):
                            values.tofile(file)
                            all_labels.append(labels.copy())  # the next rows lie where these did
                        labels = np.concatenate(all_labels)
                        labels.tofile(file)
                        file.seek(0)
                        file.write(json.dumps(_header(text, len(labels), features)).encode())
            found = found or _open(cache, text, features)
    except OSError as error:
        wanted = "a folder that the cache of this text can be written to"
        raise damaged(cache, wanted=wanted, found=str(error)) from None
    if found is None:
        raise damaged(text, wanted="a text that stays as it is while it is read", found="that it changed meanwhile")
    return found


def _header(text: Path, rows: int, features: int) -> list[int]:
    status = text.stat()
    return [_SCHEMA, status.st_size, status.st_mtime_ns, features, rows]


def _open(cache: Path, text: Path, features: int) -> Labelled | None:
    try:
        with cache.open("rb") as file:
            header = json.loads(file.read(_HEADER_BYTES).rstrip(b"\0"))
            size = os.fstat(file.fileno()).st_size
    except (FileNotFoundError, ValueError):
        return None
    rows = header[-1] if isinstance(header, list) and header and isinstance(header[-1], int) else 0
    if header != _header(text, rows, features) or size != _HEADER_BYTES + 4 * rows * (features + 1):
        return None
    # mode c: torch wants memory that may be written to; what is written stays in this process
    numbers = np.memmap(cache, np.float32, "c", _HEADER_BYTES)
    known = torch.from_numpy(numbers[: rows * features]).view(rows, features)
    return Labelled(known, torch.from_numpy(numbers[rows * features :]))


def _read(text: Path, features: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Read some rows at a time: features (n, F), labels (n,). The next rows overwrite them."""
    dense = [b"%d" % index for index in range(1, features + 1)]
    values = np.zeros((_ROWS_AT_ONCE, features), np.float32)
    labels = np.zeros(_ROWS_AT_ONCE, np.float32)
    filled = rows = 0
    for number, line in _lines(text):
        row = line.split(b"#", 1)[0].strip()
        if not row:
            continue
        if b"  " in row or b"\t" in row:
            row = b" ".join(row.split())
        try:
            labels[filled] = _LABELS[row.split(None, 1)[0]]
            _fill(values[filled], row, dense)
        except (KeyError, ValueError, OverflowError):
            wanted = f"a label -1 or +1, and finite numbers at indices that rise from 1 to {features}: -1 1:0.5 3:2"
            found = show(row.decode("latin1"), longest=60)
            raise damaged(f"{text}, line {number}", wanted=wanted, found=found) from None
        filled, rows = filled + 1, rows + 1
        if filled == _ROWS_AT_ONCE:
            yield values, labels
            filled = 0
            values[:] = 0
    if not rows:
        raise damaged(text, wanted="rows", found="none")
    if filled:
        yield values[:filled], labels[:filled]


def _lines(text: Path) -> Iterator[tuple[int, bytes]]:
    number = 0
    with bz2.open(text) if text.suffix == PACKED else text.open("rb") as file:
        try:
            for number, line in enumerate(iter(file.readline, b""), 1):
                if not line.endswith(b"\n"):
                    place = f"{text}, line {number}"
                    raise damaged(place, wanted="a line that ends", found="the end of the file", hint=CUT)
                yield number, line
        except EOFError:
            place = f"{text}, line {number + 1}"
            raise damaged(place, wanted="the rest of the bz2 stream", found="the end of the file", hint=CUT) from None
        except OSError as error:
            raise damaged(f"{text}, line {number + 1}", wanted="a bz2 stream", found=str(error)) from None


def _fill(values: np.ndarray, row: bytes, dense: list[bytes]) -> None:
    tokens = row.translate(_COLON_TO_SPACE).split()
    pairs = len(tokens) // 2
    if row.translate(None, _NO_SEPARATORS) != b" :" * pairs or len(tokens) % 2 == 0 or b"_" in row:
        raise ValueError
    with np.errstate(over="ignore"):
        found = np.array(list(map(float, tokens[2::2])), np.float32)
    if not np.isfinite(found).all():
        raise ValueError
    if tokens[1::2] == dense:
        values[:] = found
        return
    indices = np.array(list(map(int, tokens[1::2])), np.int64) - 1
    if pairs and (indices[0] < 0 or indices[-1] >= len(values) or (np.diff(indices) <= 0).any()):
        raise ValueError
    values[indices] = found


_FACTORS = 12
_STRONGEST = 8
"""Strength of the strongest factor, the weakest having 1: weak ones count as much, and are learnt last."""
_BLOCK_ROWS = 64
_GENERATED = {TRAIN: 600, TEST: 300}


def generate(folder: Path, seed: int) -> None:
    """Write a small set in this format: rows of unit norm; each feature has one of 12 factors, which give the label.

    The features of a factor are neighbours, so half of the features know half of the factors.
    """
    chance = np.random.default_rng(seed)
    factor = np.arange(FEATURES) * _FACTORS // FEATURES
    strength = np.geomspace(1, _STRONGEST, _FACTORS)[chance.permutation(_FACTORS)]
    loading = chance.normal(size=FEATURES) * strength[factor]
    line = "%s " + " ".join(f"{index}:%.3g" for index in range(1, FEATURES + 1)) + "\n"
    for name, rows in _GENERATED.items():
        latent = chance.normal(size=(rows, _FACTORS))
        labels = np.where(latent.sum(1) > 0, "+1", "-1")
        with (folder / name).open("w") as file:
            for start in range(0, rows, _BLOCK_ROWS):  # all at once would be the peak of the rank's memory
                block = latent[start : start + _BLOCK_ROWS]
                features = block[:, factor] * loading + chance.normal(size=(len(block), FEATURES))
                features /= np.linalg.norm(features, axis=1, keepdims=True)
                for label, row in zip(labels[start:], features.tolist(), strict=False):
                    file.write(line % (label, *row))
