"""Choosing stored entries by name, ``path::test[case.backend.launcher]``: by a part of it, or by a test's node id."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from pytest_distbench.errors import ConfigurationError
from pytest_distbench.records.case import EntryName

Choice = Callable[[EntryName], bool]

_BACKEND_AND_LAUNCHER = re.compile(r"\.[^.]+\.[^.]+\]")

_LIKE_AN_EXPRESSION = re.compile(r"(?:^|[\s()])(and|or|not)(?:$|[\s()])")


def selection(texts: Iterable[str]) -> Choice:
    """Which entries are chosen: those that any of the texts names; all of them where there is no text.

    A text without ``::`` is a part of the name, in upper or lower case. One with ``::`` is a whole name, a node id, or
    the beginning of one up to a ``::`` or ``[``: it chooses one test or case, and none whose name merely begins so.
    """
    wanted = [text.strip() for text in texts if text.strip()]
    for text in wanted:
        if "::" not in text and (word := _LIKE_AN_EXPRESSION.search(text)):
            raise ConfigurationError(
                f"-k {text!r}: wanted a part of a name, found the word {word[1]!r}. Give one part, such as 'test_a', "
                "or a whole name as 'distbench baseline list' prints it; several -k choose what any of them names"
            )
    return lambda name: not wanted or any(_is_named(name, text) for text in wanted)


def _is_named(name: EntryName, text: str) -> bool:
    whole = str(name)
    if "::" not in text:
        return text.lower() in whole.lower()
    return whole == text or whole.startswith((f"{text}::", f"{text}[")) or _is_node_id(text, whole)


def _is_node_id(text: str, whole: str) -> bool:
    """Whether a name goes on behind a node id: with the name of a run, or with backend and launcher alone."""
    begin = text.removesuffix("]")
    rest = whole.removeprefix(begin)
    return begin != text and rest != whole and (rest.startswith(":") or bool(_BACKEND_AND_LAUNCHER.fullmatch(rest)))
