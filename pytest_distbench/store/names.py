"""Choosing stored entries by name, ``path::test[case.backend.launcher]``: by a part of it, or by a test's node id."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from pytest_distbench.errors import ConfigurationError
from pytest_distbench.records.case import CaseKey, EntryName

Choice = Callable[[EntryName], bool]

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
    if "::" not in text:
        return text.lower() in str(name).lower()
    return any(whole == text or whole.startswith((f"{text}::", f"{text}[")) for whole in _names(name))


def _names(name: EntryName) -> tuple[str, ...]:
    """The entry's full name, and what the node id of its test may be."""
    try:
        ids = CaseKey.parse(name.key).test_ids
    except ValueError:  # set by hand in a file
        ids = []
    return str(name), *(f"{name.test}[{case_id}]" if case_id else name.test for case_id in ids)
