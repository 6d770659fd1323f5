"""Strategies for what a damaged file or a foreign one may hold."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

from pytest_distbench.errors import ConfigurationError

texts = st.text(max_size=60)
scalars = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), texts)
documents = st.recursive(
    scalars, lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(texts, inner, max_size=3))
)


def accepted(parse: Callable[[str], Any], text: str, complaint: str) -> Any:
    """What the parser makes of a text; None if it refuses it in the words it should."""
    try:
        return parse(text)
    except ConfigurationError as error:
        if complaint not in str(error):
            raise
        return None
