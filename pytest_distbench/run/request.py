"""What one call of ``distbench.run`` or ``measure`` asks for: what to launch, and how to judge it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from pytest_distbench.judging.terms import Terms
from pytest_distbench.records.case import Case
from pytest_distbench.records.plan import BodyReference


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchRequest:
    """What to launch.

    Attributes:
        body: what every rank runs.
        params: as the ranks get them.
        seeds: the body runs once for each.
        world_size: ranks of the process group.
        backend: of the process group.
        device: what ranks compute on.
        timeout_s: for one launch.
    """

    body: BodyReference
    params: dict[str, Any]
    seeds: tuple[int, ...]
    world_size: int
    backend: str
    device: Literal["cpu", "cuda"]
    timeout_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseRequest:
    """A case to measure, or to derive from others, and how to judge it.

    Attributes:
        nodeid: the pytest node, for reports.
        case: the measured point. Its parameters are stored, and hold no secret.
        terms: how it is judged.
        launches: launches judged first; an update makes at least as many. Pairs have numbers of their own.
        xfail_perf: why a regression is expected; empty: it is not.
    """

    nodeid: str
    case: Case
    terms: Terms
    launches: int
    xfail_perf: str = ""
