"""Base of all records: immutable, built whole, strict about unknown fields."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import msgspec

from pytest_distbench.records.wanted import MOST_TOLERANCE

if TYPE_CHECKING:
    Number = float
else:
    Number = int | float
"""A measured number. Integers in files stay integers: a float has 53 bits, a checksum may have 64."""

Tolerance = Annotated[float, msgspec.Meta(ge=0, le=MOST_TOLERANCE)]


class Record(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of all records: immutable, built whole, strict about unknown fields."""


AnyRecord = TypeVar("AnyRecord", bound=Record)


def replace(record: AnyRecord, **changes: Any) -> AnyRecord:
    """A copy of a record with some fields changed."""
    return msgspec.structs.replace(record, **changes)
