"""What one call of ``distbench.run`` or ``measure`` asks for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pytest_distbench.records.case import Case
from pytest_distbench.records.plan import BodyReference


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasureRequest:
    """What to measure, and how to judge it.

    Attributes:
        nodeid: the pytest node, for reports.
        case: the measured point. Its parameters are stored, and hold no secret.
        params: as the ranks get them.
        body: what every rank runs.
        seeds: the body runs once for each.
        launches: launches judged first; an update makes at least as many. Pairs have numbers of their own.
        max_launches: the most launches while the answer is open.
        timeout_s: for one launch.
        tolerance: fraction, or one per metric name; names not listed take ``default_tolerance``.
        metrics: names that are judged; None: all.
        judged: False measures only.
        xfail_perf: why a regression is expected; empty: it is not.
    """

    nodeid: str
    case: Case
    params: dict[str, Any]
    body: BodyReference
    seeds: tuple[int, ...]
    launches: int
    max_launches: int
    timeout_s: float
    tolerance: float | Mapping[str, float]
    default_tolerance: float
    metrics: tuple[str, ...] | None = None
    judged: bool = True
    xfail_perf: str = ""
