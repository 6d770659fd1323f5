"""The element types of a sweep, by name: pytest's process knows them without torch."""

from __future__ import annotations

from pytest_distbench.errors import ConfigurationError

ITEM_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "float64": 8, "int32": 4, "int64": 8, "uint8": 1}
"""Bytes of one element of every dtype a sweep accepts."""


def item_bytes(dtype: str) -> int:
    """Bytes of one element of ``dtype``.

    Raises:
        ConfigurationError: unknown dtype; the message lists those there are.
    """
    if dtype not in ITEM_BYTES:
        raise ConfigurationError(f"unknown dtype {dtype!r}: known are {', '.join(sorted(ITEM_BYTES))}")
    return ITEM_BYTES[dtype]
