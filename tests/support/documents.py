"""Strategies for what a damaged file or a foreign one may hold."""

from __future__ import annotations

from hypothesis import strategies as st

texts = st.text(max_size=60)
scalars = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), texts)
documents = st.recursive(
    scalars, lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(texts, inner, max_size=3))
)
