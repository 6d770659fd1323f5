"""Quantities as people read and write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.documents import accepted, texts

from pytest_distbench.units import format_bytes, format_change, format_quantity, format_seconds, parse_bytes


@pytest.mark.parametrize(
    ("text", "size"),
    [("4096", 4096), ("64KiB", 65536), ("1 MiB", 2**20), ("2gib", 2**31), ("1GB", 10**9), ("1.5KiB", 1536)],
)
def test_sizes_are_read_in_powers_of_two_or_ten(text: str, size: int) -> None:
    assert parse_bytes(text) == size


@given(st.one_of(texts, st.from_regex(r"[0-9,. kKMGibB]{0,400}", fullmatch=True)))
def test_any_text_is_a_size_or_a_clear_error(text: str) -> None:
    size = accepted(parse_bytes, text, "is not a size")

    assert size is None or size >= 0


def test_bytes_are_written_in_powers_of_two() -> None:
    assert [format_bytes(n) for n in (4, 1024, 1536, 64 * 2**20)] == ["4 B", "1 KiB", "1.5 KiB", "64 MiB"]


def test_seconds_are_scaled() -> None:
    assert [format_seconds(s) for s in (2.5, 0.0125, 1.5e-5, 0.0)] == ["2.5 s", "12.5 ms", "15 us", "0 s"]


def test_other_units_are_shown_as_they_are() -> None:
    assert format_quantity(52.0, "steps") == "52 steps"
    assert format_quantity(0.97123, "") == "0.9712"


def test_a_ratio_is_a_signed_percentage() -> None:
    assert format_change(1.125) == "+12.5 %"
    assert format_change(0.5) == "-50.0 %"
