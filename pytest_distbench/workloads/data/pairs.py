r"""Pairs of sentences, English and German, as they are published: WMT16 in text, WMT17 in ``.bin`` and ``.idx`` files.

Text: a sentence a line, tokens between spaces, line n of one file translates line n of the other; the vocabulary has a
token a line, pieces of byte pair encoding.

Index, numbers of 8 bytes, little endian: ``TNTIDX\0\0``, version 1, the code of the element type and its bytes, the
number of sentences N and of dimensions, N + 1 offsets into the dimensions, N + 1 offsets into the elements of the
``.bin``, and the dimensions: the tokens of each sentence. Its last token is ``<EOS>_``. Ids count from 1 and are the
lines of the dictionary, which has a token a line in single quotes, ``<pad>_`` and ``<EOS>_`` first; a line
``<lua_index_compat>`` may stand before them.
"""

from __future__ import annotations

import re
import struct
import unicodedata
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Literal

import numpy as np

from pytest_distbench.errors import show
from pytest_distbench.workloads.data import CUT, damaged, lines_of, require

SPECIAL = ("<pad>", "<unk>", "<s>", "</s>")
PAD, UNK, BOS, EOS = range(4)

_MULTIPLE = 8  # matrix units of GPUs want sizes that are multiples of it, in half precision


class Vocabulary:
    """Ids of tokens: 0 to 3 are padding, unknown, begin and end of a sentence, then come those of a file.

    ``join`` makes the text of a sentence from its tokens.
    """

    def __init__(self, tokens: Iterable[str], join: Callable[[Sequence[str]], str]) -> None:
        self.tokens = [*SPECIAL, *tokens]
        self.ids = {token: number for number, token in enumerate(self.tokens)}
        self._join = join

    def __len__(self) -> int:
        """Rows of an embedding: the tokens, and unused ones up to a multiple of 8."""
        return -(-len(self.tokens) // _MULTIPLE) * _MULTIPLE

    def encode(self, tokens: Iterable[str]) -> list[int]:
        """Ids of tokens, or the id of the unknown for those that are not in the file."""
        known = self.ids
        return [known.get(token, UNK) for token in tokens]

    def decode(self, ids: Iterable[int]) -> str:
        """Text of a sentence up to its end, without padding and special tokens."""
        tokens = []
        for number in ids:
            if number == EOS:
                break
            if number not in (PAD, BOS):
                tokens.append(self.tokens[number if number < len(self.tokens) else UNK])
        return self._join(tokens)


def join_bpe(tokens: Sequence[str]) -> str:
    """Join pieces of byte pair encoding: one that ends in ``@@`` continues in the next."""
    return " ".join(tokens).replace("@@ ", "").removesuffix("@@")


_ESCAPED = re.compile(r"\\u|\\\\|\\([0-9]+);")


def join_subtokens(tokens: Sequence[str]) -> str:
    r"""Text of tensor2tensor's subtokens: ``_`` ends a token; a space joins two that begin with a letter or digit.

    In them ``\u`` is an underscore, ``\\`` a backslash, and ``\8364;`` the character of that number.
    """
    found = [_ESCAPED.sub(_unescape, token) for token in "".join(tokens).split("_") if token]
    text = ""
    for before, token in zip(["", *found], found, strict=False):
        text += " " * (_is_word(before) and _is_word(token)) + token
    return text


def _unescape(escaped: re.Match[str]) -> str:
    if escaped[1] is None:
        return "_" if escaped[0] == r"\u" else "\\"
    return chr(int(escaped[1])) if int(escaped[1]) < 0x110000 else "\N{GETA MARK}"


def _is_word(token: str) -> bool:
    return bool(token) and unicodedata.category(token[0])[0] in "LN"


Split = Literal["train", "test"]

LANGUAGES = ("en", "de")
TEXTS: dict[Split, str] = {"train": "train.tok.clean.bpe.32000", "test": "newstest2014.tok.bpe.32000"}
VOCABULARY = "vocab.bpe.32000"


class Sentences(Sequence[list[int]]):
    """Token ids of N sentences, one after the other in one array; ``shift`` is added to what the array holds.

    Attributes:
        lengths: number of tokens of each sentence, (N,).
    """

    def __init__(self, flat: np.ndarray, starts: np.ndarray, ends: np.ndarray, shift: int = 0) -> None:
        self._flat, self._starts, self._ends, self._shift = flat, starts, ends, shift
        self.lengths = ends - starts

    def __len__(self) -> int:
        return len(self._starts)

    def __getitem__(self, index: int) -> list[int]:  # type: ignore[override] # of slices nobody needs any
        return (self._flat[self._starts[index] : self._ends[index]].astype(np.int64) + self._shift).tolist()

    def chosen(self, which: np.ndarray) -> Sentences:
        """Return the sentences with these numbers, or where a mask is true."""
        return Sentences(self._flat, self._starts[which], self._ends[which], self._shift)


class Pairs(Sequence[tuple[list[int], list[int]]]):
    """Sentences and their translations, as token ids without special ones, and the vocabulary of both."""

    def __init__(self, source: Sentences, target: Sentences, vocabulary: Vocabulary) -> None:
        self.source, self.target, self.vocabulary = source, target, vocabulary

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: int) -> tuple[list[int], list[int]]:  # type: ignore[override] # as of Sentences
        return self.source[index], self.target[index]

    def up_to(self, longest: int) -> Pairs:
        """Return the pairs in which no sentence has more than ``longest`` tokens."""
        which = (self.source.lengths <= longest) & (self.target.lengths <= longest)
        return Pairs(self.source.chosen(which), self.target.chosen(which), self.vocabulary)


def load_text(folder: Path, split: Split) -> Pairs:
    """Load the pairs of a part of WMT16 in text, and their vocabulary.

    Raises:
        DataError: a file is missing or damaged, or the two have different numbers of lines.
    """
    seen: dict[str, int] = {}
    path = folder / VOCABULARY
    for number, token in lines_of(path):
        if not token or " " in token or token in seen:
            found = f"{show(token)}, as in line {seen[token]}" if token in seen else show(token, longest=60)
            raise damaged(f"{path}, line {number}", wanted="one token that is in no other line", found=found)
        seen[token] = number
    vocabulary = Vocabulary(seen, join_bpe)
    files = [folder / f"{TEXTS[split]}.{language}" for language in LANGUAGES]
    flat = [array("i"), array("i")]
    ends = [array("q"), array("q")]
    for number, lines in enumerate(zip_longest(*map(lines_of, files)), 1):
        for side, numbered in enumerate(lines):
            if numbered is None:
                place = f"{files[side]}, line {len(ends[side]) + 1}"
                raise damaged(place, wanted=f"as many lines as {files[1 - side].name} has", found="the end of the file")
            tokens = [token for token in numbered[1].split(" ") if token]
            if not tokens:
                raise damaged(f"{files[side]}, line {number}", wanted="a sentence", found="an empty line")
            flat[side].extend(vocabulary.encode(tokens))
            ends[side].append(len(flat[side]))
    source, target = (
        Sentences(np.array(tokens), np.array([0, *ends[:-1]]), np.array(ends))
        for tokens, ends in zip(flat, ends, strict=True)
    )
    return Pairs(source, target, vocabulary)


MAGIC = b"TNTIDX\0\0"
STEMS: dict[Split, str] = {"train": "train.en-de", "test": "test.en-de"}
DICTIONARIES = tuple(f"dict.{language}.txt" for language in LANGUAGES)

_TYPES = {1: np.uint8, 2: np.int8, 3: np.int16, 4: np.int32, 5: np.int64}
"""dtypes of elements by their code; 6 and 7 are floating, which no ids are."""
_FIRST = ("<pad>_", "<EOS>_")
_END = 2  # id of the end of a sentence, in a file
_LUA = "<lua_index_compat>"
_SHIFT = 1  # from an id of a file to ours, which have four special tokens where a file has three
_AT_ONCE = 1 << 22


def load_indexed(folder: Path, split: Split) -> Pairs:
    """Load a part of WMT17 from index files, and its vocabulary. Tokens stay in their file until they are used."""
    first, second = (_tokens(folder / name) for name in DICTIONARIES)
    if first != second:
        raise damaged(folder / DICTIONARIES[1], wanted=f"what {DICTIONARIES[0]} has", found="another")
    vocabulary = Vocabulary(first[len(_FIRST) :], join_subtokens)
    known = len(vocabulary.tokens) - _SHIFT
    stems = [folder / f"{STEMS[split]}.{language}" for language in LANGUAGES]
    source, target = (_read(stem, known) for stem in stems)
    if len(source) != len(target):
        place, other = (f"{stem}.idx" for stem in reversed(stems))
        raise damaged(place, wanted=f"{len(source)} sentences, as in {other}", found=str(len(target)))
    return Pairs(source, target, vocabulary)


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
    """Return the dtype of the elements, and where each sentence starts, with the end of the last (N + 1,)."""
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


def count(folder: Path, load: Callable[[Path, Split], Pairs]) -> dict[str, int]:
    """Number of pairs of each part, after all were read."""
    parts: dict[str, Split] = {"training pairs": "train", "test pairs": "test"}
    return {title: len(load(folder, split)) for title, split in parts.items()}


_SYLLABLES = [consonant + vowel for consonant in "bdfgklmnprstvz" for vowel in "aeiou"]
_WORDS = 24
_GENERATED: dict[Split, int] = {"train": 8192, "test": 256}
Word = tuple[str, ...]  # its pieces: one, or two


def made_words() -> tuple[list[Word], list[Word]]:
    """Make 24 words in each of two languages, of two syllables each; every fourth is in two pieces."""
    made: list[Word] = []
    for number in range(2 * _WORDS):
        first, second = (_SYLLABLES[at % len(_SYLLABLES)] for at in (number, 3 * number + number // len(_SYLLABLES)))
        made.append((first, second) if number % 4 == 0 else (first + second,))
    return made[:_WORDS], made[_WORDS:]


def made_pairs(split: Split, seed: int) -> Iterator[tuple[list[Word], list[Word]]]:
    """Make sentences of 3 to 7 words, and their translation: word by word, from the last to the first."""
    words, translations = made_words()
    chance = np.random.default_rng([seed, split == "test"])
    for length in chance.integers(3, 8, _GENERATED[split]).tolist():
        chosen = chance.integers(0, _WORDS, length).tolist()
        yield [words[number] for number in chosen], [translations[number] for number in reversed(chosen)]


def _sides(names: dict[Split, str], seed: int) -> Iterator[tuple[str, Iterable[list[Word]]]]:
    for split, name in names.items():
        for language, sentences in zip(LANGUAGES, zip(*made_pairs(split, seed), strict=True), strict=True):
            yield f"{name}.{language}", sentences


def generate_text(folder: Path, seed: int) -> None:
    """Write a small set in text, of words that are made of syllables."""
    pieces = dict.fromkeys(piece for language in made_words() for word in language for piece in _bpe(word))
    (folder / VOCABULARY).write_text("".join(f"{piece}\n" for piece in pieces))
    for name, sentences in _sides(TEXTS, seed):
        lines = (" ".join(piece for word in sentence for piece in _bpe(word)) for sentence in sentences)
        (folder / name).write_text("".join(f"{line}\n" for line in lines))


def _bpe(word: Word) -> list[str]:
    return [f"{piece}@@" for piece in word[:-1]] + [word[-1]]


def generate_indexed(folder: Path, seed: int) -> None:
    """Write the same sentences in index files, in subtokens."""
    pieces = dict.fromkeys(piece for language in made_words() for word in language for piece in _subtokens(word))
    tokens = [*_FIRST, *pieces]
    ids = {token: number for number, token in enumerate(tokens, 1)}
    for name in DICTIONARIES:
        (folder / name).write_text("".join(f"'{token}'\n" for token in tokens))
    for name, sentences in _sides(STEMS, seed):
        coded = [[ids[piece] for word in one for piece in _subtokens(word)] + [_END] for one in sentences]
        write_indexed(folder / name, coded)


def write_indexed(stem: Path, sentences: Sequence[Sequence[int]]) -> None:
    """Write ids, with those of sentence ends, as a pair of files."""
    sizes = np.array([len(one) for one in sentences], "<i8")
    offsets = np.concatenate([[0], sizes.cumsum()])
    header = MAGIC + struct.pack("<5Q", 1, 4, 4, len(sizes), len(sizes))
    rest = np.concatenate([np.arange(len(sizes) + 1), offsets, sizes])
    Path(f"{stem}.idx").write_bytes(header + rest.astype("<i8").tobytes())
    Path(f"{stem}.bin").write_bytes(np.concatenate([np.array(one, "<i4") for one in sentences]).tobytes())


def _subtokens(word: Word) -> list[str]:
    return [*word[:-1], f"{word[-1]}_"]
