"""The element types of a sweep, by name: pytest's process knows them without torch."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_distbench.errors import look_up


@dataclass(frozen=True, slots=True)
class Dtype:
    """One element type.

    Attributes:
        item_bytes: of one element.
        largest: whole numbers from 0 to it are exact in this type, and so are sums that stay below it.
    """

    item_bytes: int
    largest: int


DTYPES: dict[str, Dtype] = {
    "float32": Dtype(4, 256),
    "float16": Dtype(2, 256),
    "bfloat16": Dtype(2, 256),  # 8 significant bits
    "float64": Dtype(8, 256),
    "float8_e4m3fn": Dtype(1, 16),
    "float8_e5m2": Dtype(1, 8),
    "int8": Dtype(1, 127),
    "int16": Dtype(2, 256),
    "int32": Dtype(4, 256),
    "int64": Dtype(8, 256),
    "uint8": Dtype(1, 255),
    "uint16": Dtype(2, 256),
    "uint32": Dtype(4, 256),
    "uint64": Dtype(8, 256),
    "bool": Dtype(1, 1),
    "complex64": Dtype(8, 256),
    "complex128": Dtype(16, 256),
}
"""Every type that a sweep can be asked for; whether a backend takes it, the backend is asked."""


def dtype_of(name: str) -> Dtype:
    """Look a type up by torch's name for it."""
    return look_up(DTYPES, name, "dtype")
