r"""Pairs of sentences as token ids in ``.bin`` and ``.idx`` files, and WMT17 as it is published: English to German.

Format of an index, numbers of 8 bytes, little endian: ``TNTIDX\0\0``, version 1, the code of the element type and its
bytes, the number of sentences N and of dimensions, N + 1 offsets into the dimensions, N + 1 offsets into the elements
of the ``.bin``, and the dimensions: the tokens of each sentence. Its last token is ``<EOS>_``. Ids count from 1 and are
the lines of the dictionary, which has a token a line in single quotes, ``<pad>_`` and ``<EOS>_`` first; a line
``<lua_index_compat>`` may stand before them.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from pytest_distbench.errors import show
from pytest_distbench.workloads.data import CUT, damaged, lines_of, require
from pytest_distbench.workloads.data.parallel_text import (
    LANGUAGES,
    Pairs,
    Sentences,
    Split,
    Vocabulary,
    Word,
    join_subtokens,
    made_pairs,
    made_words,
)

MAGIC = b"TNTIDX\0\0"
TEXTS: dict[Split, str] = {"train": "train.en-de", "test": "test.en-de"}
DICTIONARIES = tuple(f"dict.{language}.txt" for language in LANGUAGES)

_TYPES = {1: np.uint8, 2: np.int8, 3: np.int16, 4: np.int32, 5: np.int64}
"""Of elements, by code; 6 and 7 are fractions, which no ids are."""
_FIRST = ("<pad>_", "<EOS>_")
_END = 2
"""Id of the end of a sentence, in a file."""
_LUA = "<lua_index_compat>"
_SHIFT = 1
"""From an id of a file to ours, which have four special tokens where a file has three."""
_AT_ONCE = 1 << 22


def load(folder: Path, split: Split) -> Pairs:
    """The pairs of a part of WMT17, and their vocabulary. Tokens stay in their file until they are used."""
    vocabulary = load_vocabulary(folder)
    known = len(vocabulary.tokens) - _SHIFT
    stems = [folder / f"{TEXTS[split]}.{language}" for language in LANGUAGES]
    source, target = (_read(stem, known) for stem in stems)
    if len(source) != len(target):
        place, other = (f"{stem}.idx" for stem in reversed(stems))
        raise damaged(place, wanted=f"{len(source)} sentences, as in {other}", found=str(len(target)))
    return Pairs(source, target, vocabulary)


def load_vocabulary(folder: Path) -> Vocabulary:
    """The tokens of the two dictionaries, which are equal."""
    first, second = (_tokens(folder / name) for name in DICTIONARIES)
    if first != second:
        raise damaged(folder / DICTIONARIES[1], wanted=f"what {DICTIONARIES[0]} has", found="another")
    return Vocabulary(first[len(_FIRST) :], join_subtokens)


def count(folder: Path) -> dict[str, int]:
    """Pairs of each part, all of which were read."""
    parts: dict[str, Split] = {"training pairs": "train", "test pairs": "test"}
    return {title: len(load(folder, split)) for title, split in parts.items()}


def _tokens(path: Path) -> list[str]:
    found: dict[str, int] = {}
    for number, line in lines_of(path):
        token = line.strip()
        if len(token) < 3 or token[0] != "'" or token[-1] != "'" or token[1:-1] in found:
            wanted = "a token in single quotes that is in no other line"
            raise damaged(f"{path}, line {number}", wanted=wanted, found=show(line, longest=60))
        if token[1:-1] == _LUA and number == 1:
            continue
        found[token[1:-1]] = number
        if len(found) <= len(_FIRST) and token[1:-1] != _FIRST[len(found) - 1]:
            raise damaged(f"{path}, line {number}", wanted=f"'{_FIRST[len(found) - 1]}'", found=show(line, longest=60))
    return list(found)


def _read(stem: Path, known: int) -> Sentences:
    """The sentences of a pair of files.

    Args:
        stem: their names without the end.
        known: ids of the file are below it.
    """
    index, content = require(Path(f"{stem}.idx")), require(Path(f"{stem}.bin"))
    kind, starts = _read_index(index)
    if content.stat().st_size != starts[-1] * kind.itemsize:
        wanted, found = (f"{size} bytes" for size in (starts[-1] * kind.itemsize, content.stat().st_size))
        raise damaged(content, wanted=f"{wanted}, as {index.name} says", found=found)
    flat = np.memmap(content, kind, "r")
    ends = starts[1:] - 1
    if (wrong := flat[ends] != _END).any():
        number = int(wrong.argmax())
        found = f"{flat[ends[number]]} at byte {ends[number] * kind.itemsize}"
        raise damaged(f"{content}, sentence {number}", wanted=f"the id {_END} at its end", found=found)
    for begin in range(0, len(flat), _AT_ONCE):
        part = flat[begin : begin + _AT_ONCE]
        wrong = (part <= _END) | (part >= known)
        inside = ends[(ends >= begin) & (ends < begin + len(part))]
        wrong[inside - begin] = False
        if wrong.any():
            at = begin + int(wrong.argmax())
            number = int(np.searchsorted(ends, at))
            place = f"{content}, sentence {number}, byte {at * kind.itemsize}"
            raise damaged(place, wanted=f"an id from {_END + 1} to {known - 1}", found=str(flat[at]))
    return Sentences(flat, starts[:-1], ends, _SHIFT)


def _read_index(path: Path) -> tuple[np.dtype, np.ndarray]:
    """The type of the elements, and where each sentence starts, with the end of the last (N + 1,)."""
    content = path.read_bytes()
    if content[:8] != MAGIC:
        raise damaged(f"{path}, byte 0", wanted=f"the magic {MAGIC!r}", found=repr(content[:8]))
    if len(content) < 48:
        raise damaged(f"{path}, byte {len(content)}", wanted="a header of 48 bytes", found="the end", hint=CUT)
    version, code, element_bytes, sentences, dimensions = struct.unpack("<5Q", content[8:48])
    is_known = code in _TYPES and np.dtype(_TYPES[code]).itemsize == element_bytes
    if version != 1 or not is_known or dimensions != sentences or not sentences:
        wanted = "version 1, a type of whole numbers with its bytes, and as many dimensions as sentences"
        found = f"{version}, {code}, {element_bytes}, {sentences}, {dimensions}"
        raise damaged(f"{path}, byte 8", wanted=wanted, found=found)
    if len(content) != (wanted_bytes := 48 + 8 * (3 * sentences + 2)):
        found = f"{len(content)} bytes"
        hint = CUT if len(content) < wanted_bytes else ""
        raise damaged(path, wanted=f"{wanted_bytes} bytes for {sentences} sentences", found=found, hint=hint)
    numbers = np.frombuffer(content, "<i8", offset=48)
    of_dimensions, offsets, sizes = np.split(numbers, [sentences + 1, 2 * (sentences + 1)])
    for name, numbers, right in (
        ("offset of the dimensions of sentence", of_dimensions, np.arange(sentences + 1)),
        ("offset of sentence", offsets, np.concatenate([[0], sizes.cumsum()])),
        ("size of sentence", sizes, np.maximum(sizes, 1)),
    ):
        if (differs := numbers != right).any():
            number = int(differs.argmax())
            raise damaged(f"{path}, {name} {number}", wanted=str(right[number]), found=str(numbers[number]))
    return np.dtype(_TYPES[code]), offsets


# Generated


def generate(folder: Path, seed: int) -> None:
    """A small set in this format: the sentences of the generated WMT16, in subtokens."""
    pieces = dict.fromkeys(piece for language in made_words() for word in language for piece in _subtokens(word))
    tokens = [*_FIRST, *pieces]
    ids = {token: number for number, token in enumerate(tokens, 1)}
    for name in DICTIONARIES:
        (folder / name).write_text("".join(f"'{token}'\n" for token in tokens))
    for split, name in TEXTS.items():
        for language, sentences in zip(LANGUAGES, zip(*made_pairs(split, seed), strict=True), strict=True):
            coded = [[ids[piece] for word in one for piece in _subtokens(word)] + [_END] for one in sentences]
            write(folder / f"{name}.{language}", coded)


def write(stem: Path, sentences: Sequence[Sequence[int]]) -> None:
    """Write ids, those of ends included, as a pair of files."""
    sizes = np.array([len(one) for one in sentences], "<i8")
    offsets = np.concatenate([[0], sizes.cumsum()])
    header = MAGIC + struct.pack("<5Q", 1, 4, 4, len(sizes), len(sizes))
    rest = np.concatenate([np.arange(len(sizes) + 1), offsets, sizes])
    Path(f"{stem}.idx").write_bytes(header + rest.astype("<i8").tobytes())
    Path(f"{stem}.bin").write_bytes(np.concatenate([np.array(one, "<i4") for one in sentences]).tobytes())


def _subtokens(word: Word) -> list[str]:
    return [*word[:-1], f"{word[-1]}_"]
