"""What a test writes of the jobs and the serving of a pool, before anybody has looked at it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedJob:
    """One job of a pool, as :func:`pytest_distbench.elastic.job` describes it."""

    name: str
    body: Callable[..., object] | str
    nodes: int | tuple[int, int]
    submit_s: float
    params: Mapping[str, Any] | None
    seed: int
    ends_after: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedServing:
    """The serving of a pool, as :func:`pytest_distbench.elastic.serving` describes it."""

    body: Callable[..., object] | str
    demand: Sequence[tuple[float, int]]
    params: Mapping[str, Any] | None
