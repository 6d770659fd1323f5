"""Choosing stored entries by name: pytest's ``-k`` over ``path::test[case.key.backend.launcher]``, without pytest."""

from __future__ import annotations

import re
from collections.abc import Callable

from pytest_distbench.errors import ConfigurationError
from pytest_distbench.records.case import EntryName

Choice = Callable[[EntryName], bool]

_TOKEN = re.compile(r"[()]|[^\s()]+")
_WORDS = frozenset({"and", "or", "not", "(", ")"})


def selection(expression: str) -> Choice:
    """Which entries an expression chooses: parts of names, joined by ``and``, ``or``, ``not`` and parentheses.

    Case does not matter. A part with ``::`` is taken from the name's beginning, so that a whole name, or a test's
    node id ``path::test[case]``, chooses that one and no other. An empty expression chooses everything.

    Raises:
        ConfigurationError: not such an expression.
    """
    if not expression.strip():
        return lambda name: True
    try:
        parsed = _Parser(expression).parse()
    except ConfigurationError:
        if "::" not in expression:
            raise
        return lambda name: expression in _names(name)  # a case id may hold blanks and parentheses
    return lambda name: expression in _names(name) or parsed([text.lower() for text in _names(name)])


def _names(name: EntryName) -> tuple[str, ...]:
    """The entry's full name, and what the node id of its test may be: ``:`` begins the run's name, or is in the id."""
    case = name.key.rsplit(".", 2)[0]
    ids = [case[:i] for i, character in enumerate(case) if character == ":"] + [case]
    return str(name), *(f"{name.test}[{case_id}]" if case_id else name.test for case_id in ids)


class _Parser:
    """Recursive descent, as the grammar reads: or over and over not over parts."""

    def __init__(self, expression: str) -> None:
        self._expression = expression
        self._tokens = _TOKEN.findall(expression)

    def parse(self) -> Callable[[list[str]], bool]:
        found = self._either()
        if self._tokens:
            raise self._error("'and' or 'or'")
        return found

    def _either(self) -> Callable[[list[str]], bool]:
        parts = [self._both()]
        while self._take("or"):
            parts.append(self._both())
        return lambda names: any(part(names) for part in parts)

    def _both(self) -> Callable[[list[str]], bool]:
        parts = [self._negated()]
        while self._take("and"):
            parts.append(self._negated())
        return lambda names: all(part(names) for part in parts)

    def _negated(self) -> Callable[[list[str]], bool]:
        if self._take("not"):
            inner = self._negated()
            return lambda names: not inner(names)
        if self._take("("):
            inner = self._either()
            if not self._take(")"):
                raise self._error("')'")
            return inner
        if not self._tokens or self._tokens[0] in _WORDS:
            raise self._error("a part of a name, 'not' or '('")
        part = self._tokens.pop(0).lower()
        if "::" in part:
            return lambda names: any(name.startswith(part) for name in names)
        return lambda names: any(part in name for name in names)

    def _take(self, word: str) -> bool:
        if self._tokens and self._tokens[0] == word:
            del self._tokens[0]
            return True
        return False

    def _error(self, wanted: str) -> ConfigurationError:
        where = f"before {self._tokens[0]!r}" if self._tokens else "at the end"
        return ConfigurationError(
            f"-k {self._expression!r}: wanted {wanted} {where}; write for example 'test_a and not ws4', "
            "or a whole name as 'distbench baseline list' prints it"
        )
