"""Pairs of sentences in two files of text, and WMT16 as they are published: English to German, tokenised, BPE.

Format: a sentence a line, tokens between spaces, line n of one file translates line n of the other; the vocabulary has
a token a line.
"""

from __future__ import annotations

import re
import unicodedata
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Literal

import numpy as np

from pytest_distbench.errors import show
from pytest_distbench.workloads.data import damaged, lines_of

SPECIAL = ("<pad>", "<unk>", "<s>", "</s>")
PAD, UNK, BOS, EOS = range(4)

_MULTIPLE = 8
"""Matrix units of GPUs want sizes that are multiples of it, in half precision."""


class Vocabulary:
    """Ids of tokens: those of padding, the unknown, begin and end of a sentence are 0 to 3, then those of a file.

    Args:
        tokens: of the file, in its order.
        join: makes the text of a sentence of its tokens.

    Attributes:
        tokens: by id.
    """

    def __init__(self, tokens: Iterable[str], join: Callable[[Sequence[str]], str]) -> None:
        self.tokens = [*SPECIAL, *tokens]
        self.ids = {token: number for number, token in enumerate(self.tokens)}
        self._join = join

    def __len__(self) -> int:
        """Rows of an embedding: the tokens, and unused ones up to a multiple of 8."""
        return -(-len(self.tokens) // _MULTIPLE) * _MULTIPLE

    def encode(self, tokens: Iterable[str]) -> list[int]:
        """Ids of tokens; of one that is not in the file that of the unknown."""
        known = self.ids
        return [known.get(token, UNK) for token in tokens]

    def decode(self, ids: Iterable[int]) -> str:
        """The text of a sentence up to its end, without padding and special tokens."""
        tokens = []
        for number in ids:
            if number == EOS:
                break
            if number not in (PAD, BOS):
                tokens.append(self.tokens[number if number < len(self.tokens) else UNK])
        return self._join(tokens)


def join_bpe(tokens: Sequence[str]) -> str:
    """Pieces of byte pair encoding: one that ends in ``@@`` goes on in the next."""
    return " ".join(tokens).replace("@@ ", "").removesuffix("@@")


_ESCAPED = re.compile(r"\\u|\\\\|\\([0-9]+);")


def join_subtokens(tokens: Sequence[str]) -> str:
    r"""Subtokens of tensor2tensor: ``_`` ends a token; between two that begin with a letter or digit was a space.

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
    """Token ids of sentences, one behind the other in one array.

    Args:
        flat: (tokens,), all of them.
        starts: (N,), where each begins.
        ends: (N,), where it ends.
        shift: what is added to make ids of them.

    Attributes:
        lengths: (N,), tokens of each.
    """

    def __init__(self, flat: np.ndarray, starts: np.ndarray, ends: np.ndarray, shift: int = 0) -> None:
        self._flat, self._starts, self._ends, self._shift = flat, starts, ends, shift
        self.lengths = ends - starts

    def __len__(self) -> int:
        return len(self._starts)

    def __getitem__(self, index: int) -> list[int]:  # type: ignore[override] # of slices nobody needs any
        return (self._flat[self._starts[index] : self._ends[index]].astype(np.int64) + self._shift).tolist()

    def chosen(self, which: np.ndarray) -> Sentences:
        """Those of these numbers, or for which it says so."""
        return Sentences(self._flat, self._starts[which], self._ends[which], self._shift)


class Pairs(Sequence[tuple[list[int], list[int]]]):
    """Sentences and their translations, as token ids without special ones.

    Attributes:
        source: sentences.
        target: their translations.
        vocabulary: of both.
    """

    def __init__(self, source: Sentences, target: Sentences, vocabulary: Vocabulary) -> None:
        self.source, self.target, self.vocabulary = source, target, vocabulary

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: int) -> tuple[list[int], list[int]]:  # type: ignore[override] # as of Sentences
        return self.source[index], self.target[index]

    def up_to(self, longest: int) -> Pairs:
        """Those of which neither sentence has more tokens."""
        which = (self.source.lengths <= longest) & (self.target.lengths <= longest)
        return Pairs(self.source.chosen(which), self.target.chosen(which), self.vocabulary)


def load(folder: Path, split: Split) -> Pairs:
    """The pairs of a part of WMT16, and their vocabulary.

    Raises:
        DataError: a file is not there, or damaged, or the two have not equally many lines.
    """
    vocabulary = load_vocabulary(folder)
    files = [folder / f"{TEXTS[split]}.{language}" for language in LANGUAGES]
    flat = [array("i"), array("i")]
    ends = [array("q"), array("q")]
    for number, lines in enumerate(zip_longest(*map(lines_of, files)), 1):
        for side, found in enumerate(lines):
            if found is None:
                place = f"{files[side]}, line {len(ends[side]) + 1}"
                raise damaged(place, wanted=f"as many lines as {files[1 - side].name} has", found="the end of the file")
            tokens = [token for token in found[1].split(" ") if token]
            if not tokens:
                raise damaged(f"{files[side]}, line {number}", wanted="a sentence", found="an empty line")
            flat[side].extend(vocabulary.encode(tokens))
            ends[side].append(len(flat[side]))
    source, target = (
        Sentences(np.array(tokens), np.array([0, *ends[:-1]]), np.array(ends))
        for tokens, ends in zip(flat, ends, strict=True)
    )
    return Pairs(source, target, vocabulary)


def load_vocabulary(folder: Path) -> Vocabulary:
    """The tokens of a file, none twice.

    Raises:
        DataError: it is not there, or damaged.
    """
    seen: dict[str, int] = {}
    path = folder / VOCABULARY
    for number, token in lines_of(path):
        if not token or " " in token or token in seen:
            found = f"{show(token)}, as in line {seen[token]}" if token in seen else show(token, longest=60)
            raise damaged(f"{path}, line {number}", wanted="one token that is in no other line", found=found)
        seen[token] = number
    return Vocabulary(seen, join_bpe)


def count(folder: Path) -> dict[str, int]:
    """Pairs of each part, all of which were read."""
    parts: dict[str, Split] = {"training pairs": "train", "test pairs": "test"}
    return {title: len(load(folder, split)) for title, split in parts.items()}


# Generated

_SYLLABLES = [consonant + vowel for consonant in "bdfgklmnprstvz" for vowel in "aeiou"]
_WORDS = 24
_GENERATED: dict[Split, int] = {"train": 8192, "test": 256}
Word = tuple[str, ...]
"""Its pieces: one, or two."""


def made_words() -> tuple[list[Word], list[Word]]:
    """24 words of two languages, of two syllables each; every fourth is in two pieces."""
    made: list[Word] = []
    for number in range(2 * _WORDS):
        first, second = (_SYLLABLES[at % len(_SYLLABLES)] for at in (number, 3 * number + number // len(_SYLLABLES)))
        made.append((first, second) if number % 4 == 0 else (first + second,))
    return made[:_WORDS], made[_WORDS:]


def made_pairs(split: Split, seed: int) -> Iterator[tuple[list[Word], list[Word]]]:
    """Sentences of 3 to 7 words, and their translation: word by word, from the last to the first."""
    words, translations = made_words()
    chance = np.random.default_rng([seed, split == "test"])
    for length in chance.integers(3, 8, _GENERATED[split]).tolist():
        chosen = chance.integers(0, _WORDS, length).tolist()
        yield [words[number] for number in chosen], [translations[number] for number in reversed(chosen)]


def generate(folder: Path, seed: int) -> None:
    """A small set in this format, of words that are made of syllables."""
    pieces = dict.fromkeys(piece for language in made_words() for word in language for piece in _bpe(word))
    (folder / VOCABULARY).write_text("".join(f"{piece}\n" for piece in pieces))
    for split, name in TEXTS.items():
        for language, sentences in zip(LANGUAGES, zip(*made_pairs(split, seed), strict=True), strict=True):
            lines = (" ".join(piece for word in sentence for piece in _bpe(word)) for sentence in sentences)
            (folder / f"{name}.{language}").write_text("".join(f"{line}\n" for line in lines))


def _bpe(word: Word) -> list[str]:
    return [f"{piece}@@" for piece in word[:-1]] + [word[-1]]
