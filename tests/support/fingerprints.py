"""Fingerprints with little typing."""

from __future__ import annotations

from typing import Any

from pytest_distbench.records.iteration import Collective, Fingerprint

MIB = 2**20


def of(*rows: Collective, **facts: Any) -> Fingerprint:
    return Fingerprint(collectives={"all": list(rows)}, **facts)


def reduce(
    size: int, count: int = 1, dtype: str = "float32", group: str = "default", how: str | None = None
) -> Collective:
    return Collective("all_reduce", dtype, size, group, count, how)


BARRIER = Collective("barrier", "", 0, "default", 1)
