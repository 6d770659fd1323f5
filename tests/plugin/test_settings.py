"""Settings of a run, from options and ini keys."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from support.documents import accepted, texts

from pytest_distbench.plugin.settings import parse_world_sizes


@given(st.one_of(texts, st.from_regex(r"[0-9, ]{1,30}", fullmatch=True), st.just("9" * 5000)))
def test_world_sizes_are_numbers_or_a_clear_error(text: str) -> None:
    sizes = accepted(parse_world_sizes, text, "--world-size")

    assert sizes is None or (sizes == tuple(sorted(set(sizes))) and sizes[0] >= 1)
