"""Base of all records: immutable, built whole, strict about unknown fields."""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

import msgspec

Tolerance = Annotated[float, msgspec.Meta(ge=0)]


class Record(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of all records: immutable, built whole, strict about unknown fields."""


AnyRecord = TypeVar("AnyRecord", bound=Record)


def replace(record: AnyRecord, **changes: Any) -> AnyRecord:
    """A copy of a record with some fields changed."""
    return msgspec.structs.replace(record, **changes)
