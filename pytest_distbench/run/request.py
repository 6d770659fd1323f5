"""A case that a test asks for, and how to judge it. What is launched for it is told by ``records/plan.py``."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_distbench.judging.terms import Terms
from pytest_distbench.records.case import Case


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseRequest:
    """A case to measure, or to derive from others, and how to judge it.

    Its parameters are stored, and hold no secret. So many launches are judged first, and an update makes at least as
    many; pairs have numbers of their own. A regression is expected where there is a reason for it.
    """

    nodeid: str
    line: int = 0
    case: Case
    terms: Terms
    launches: int
    xfail_perf: str = ""
