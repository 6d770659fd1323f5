"""Text from tests, ranks and files, made safe to print: it must not move the cursor, recolour or reorder anything."""

from __future__ import annotations

import unicodedata

_KEPT = frozenset("\n\t")
_UNSAFE = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
"""Control characters, invisible format characters (bidirectional overrides), surrogates, foreign line ends."""


def escape(text: str) -> str:
    r"""The text with every control character spelled out: ESC becomes ``\x1b``. Line ends and tabs stay."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(c if c in _KEPT or unicodedata.category(c) not in _UNSAFE else _spell_out(c) for c in text)


def _spell_out(character: str) -> str:
    return character.encode("unicode_escape", errors="backslashreplace").decode("ascii")
