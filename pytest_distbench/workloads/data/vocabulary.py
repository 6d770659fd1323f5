"""Token ids of a translation, and how tokens are joined to words again."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Sequence

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
