"""What one run of nccl-tests or rccl-tests measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

NCCL_DTYPES = {
    "float32": "float", "float16": "half", "float64": "double", "float8_e4m3fn": "f8e4m3", "float8_e5m2": "f8e5m2",
}  # fmt: skip
"""What torch calls a type -> what these tools call it, where that differs."""

NCCL_REDOPS = {"product": "prod"}
"""The same of reduce operations."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PerfRow:
    """One message size, in place or not.

    Attributes:
        size: of the message, bytes.
        dtype: as the tool calls it: ``float``, ``half``.
        redop: ``sum``; ``none`` or empty where nothing is reduced.
        root: rank; -1 or empty where there is none.
        in_place: whether the received buffer is the sent one.
        time_s: of one call.
        busbw: GB/s, as printed.
    """

    size: int
    dtype: str
    redop: str
    root: str
    in_place: bool
    time_s: float
    busbw: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PerfOutput:
    """One run.

    Attributes:
        program: ``all_reduce_perf``; empty where the output does not say.
        ranks: of the group; None where the output does not say.
        device: of the first rank; empty where the output does not say.
        rows: in the order they were measured, at least one.
        is_whole: whether the tool came to its end.
    """

    program: str
    ranks: int | None
    device: str
    rows: Sequence[PerfRow]
    is_whole: bool
