"""Quantities as people read them. Inside the package everything is seconds and bytes."""

from __future__ import annotations

import re
from collections.abc import Iterable

from pytest_distbench.errors import ConfigurationError

_BINARY = (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10))
_SUFFIXES = {"": 1, "b": 1, "kib": 2**10, "mib": 2**20, "gib": 2**30, "kb": 10**3, "mb": 10**6, "gb": 10**9}
_TIMES = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns"))

GIGABYTE = 1e9
"""Bytes in the GB of algbw and busbw: decimal, as nccl-tests prints them."""


def parse_bytes(text: str) -> int:
    """Read ``"64MiB"``, ``"4 KiB"``, ``"1GB"`` (decimal) or a plain number of bytes.

    Raises:
        ConfigurationError: the text is not a size.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", text)
    if match is None or match[2].lower() not in _SUFFIXES:
        raise ConfigurationError(f"{text!r} is not a size: write for example 4096, 64KiB, 1MiB or 2GiB")
    return int(float(match[1]) * _SUFFIXES[match[2].lower()])


def format_bytes(size: float) -> str:
    """Write a number of bytes in powers of two, without losing digits: 1536 is ``1.5 KiB``."""
    for name, factor in _BINARY:
        if size >= factor:
            return f"{size / factor:.4g} {name}"
    return f"{size:g} B"


def format_seconds(seconds: float) -> str:
    """Write a duration with four significant digits and its unit."""
    for factor, name in _TIMES:
        if abs(seconds) >= factor:
            return f"{seconds / factor:.4g} {name}"
    return f"{seconds:g} s"


def format_quantity(value: float, unit: str) -> str:
    """Write a value of a metric with its unit, scaled where the unit is seconds or bytes."""
    if unit == "s":
        return format_seconds(value)
    if unit == "B":
        return format_bytes(value)
    digits = f"{value:,.0f}" if float(value).is_integer() and abs(value) < 1e15 else f"{value:.4g}"
    return f"{digits} {unit}".rstrip()


def format_values(values: Iterable[float | None], unit: str) -> str:
    """Write the first four different values of a metric; None is ``none``."""
    distinct = list(dict.fromkeys(values))
    return ", ".join("none" if v is None else format_quantity(v, unit) for v in distinct[:4])


def format_change(ratio: float) -> str:
    """Write a ratio current/baseline as a signed percentage: 1.125 is ``+12.5 %``."""
    return f"{(ratio - 1) * 100:+.1f} %"


def as_float(value: object) -> float | None:
    """A number of whatever library as a float; None where it is none. True, False and text are none."""
    if isinstance(value, bool | str | bytes | bytearray) or not hasattr(value, "__float__"):
        return None
    try:
        return float(value)
    except Exception:  # noqa: BLE001 a tensor of several elements, a number beyond all floats
        return None
