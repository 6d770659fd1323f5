"""Quantities as people read and write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.documents import accepted, texts

from pytest_distbench.errors import ConfigurationError
from pytest_distbench.units import (
    convert,
    format_bytes,
    format_change,
    format_quantity,
    format_seconds,
    parse_bytes,
    parse_quantity,
)


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
    assert format_change(0.9999) == "+0.0 %"


@pytest.mark.parametrize(
    ("value", "unit", "wanted", "found"),
    [
        (200, "us", "s", 0.0002),
        (1.5, "min", "s", 90.0),
        (64, "MiB", "B", 2**26),
        (10000, "MB/s", "GB/s", 10.0),
        (2, "samples/ms", "samples/s", 2000.0),
        (95, "%", "", 0.95),
        (3, "", "steps", 3.0),
        (3, "steps", "steps", 3.0),
    ],
)
def test_a_value_is_converted_to_a_unit_of_its_kind(value: float, unit: str, wanted: str, found: float) -> None:
    assert convert(value, unit, wanted) == found


@pytest.mark.parametrize(("unit", "wanted"), [("GB/s", "s"), ("Gb/s", "GB/s"), ("ms", "steps"), ("B", ""), ("S", "s")])
def test_a_unit_of_another_kind_is_an_error(unit: str, wanted: str) -> None:
    with pytest.raises(ConfigurationError, match=f"the unit '{unit}' does not fit: wanted "):
        convert(1.0, unit, wanted)


def test_a_quantity_is_a_number_with_or_without_a_unit() -> None:
    assert [parse_quantity(text) for text in ("200us", "10 GB/s", " 2.5 ", "-1e-3 s")] == [
        (200.0, "us"),
        (10.0, "GB/s"),
        (2.5, ""),
        (-1e-3, "s"),
    ]


@given(st.one_of(texts, st.from_regex(r"[+-]?[0-9.e]{1,9} ?[a-zA-Z/%]{0,5}", fullmatch=True)))
def test_any_text_is_a_quantity_or_a_clear_error(text: str) -> None:
    found = accepted(parse_quantity, text, "is no number with a unit")

    assert found is None or abs(found[0]) < float("inf")
