"""A case that a test asks for, and how to judge it. What is launched for it is told by ``records/plan.py``."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_distbench.judging.terms import Terms
from pytest_distbench.records.case import Case


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
