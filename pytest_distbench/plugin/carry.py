"""What the report of a test carries of ours: its cases, from the process that ran it to the one that tells about it.

pytest-xdist sends reports over a wire, so that everything here is JSON text; and where nothing was measured, nothing of
the records is imported.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

import pytest

if TYPE_CHECKING:
    from pytest_distbench.records.run import CaseResult

CASES_ATTRIBUTE = "distbench_cases"
TEST_ATTRIBUTE = "distbench_test"


def attach_test(report: pytest.TestReport, test: str, case_id: str) -> None:
    """Say that a report is of a test of ours."""
    setattr(report, TEST_ATTRIBUTE, [test, case_id])


def attach_cases(report: pytest.TestReport, cases: Sequence[CaseResult]) -> None:
    """Put the cases of a test into its report, and into what JUnit readers get: verdicts that are not *unchanged*."""
    import msgspec

    setattr(report, CASES_ATTRIBUTE, [msgspec.json.encode(case).decode() for case in cases])
    for case in cases:
        for v in case.verdicts:
            if v.is_judged and v.kind != "unchanged":
                text = f"{v.kind} current={v.current} baseline={v.baseline}"
                report.user_properties.append((f"distbench.{v.metric}", text))


def test_of(report: pytest.TestReport) -> tuple[str, str] | None:
    """Name and case id of a test of ours; None where it is not ours."""
    found = getattr(report, TEST_ATTRIBUTE, None)
    return cast("tuple[str, str]", tuple(found)) if found else None


def texts_of(report: pytest.TestReport) -> list[str]:
    """The cases as texts: one copy, however long the run."""
    return getattr(report, CASES_ATTRIBUTE, None) or []


def decode(texts: Sequence[str]) -> list[CaseResult]:
    """The cases."""
    if not texts:
        return []
    import msgspec

    from pytest_distbench.records.run import CaseResult

    return [msgspec.json.decode(text, type=CaseResult) for text in texts]


def status_of(cases: Sequence[CaseResult]) -> tuple[str, str, str] | None:
    """How pytest shows a test that passed: U where a baseline was written, N where there was none to compare with."""
    if any(case.update in ("new", "changed") for case in cases):
        return "passed", "U", "UPDATED"
    judged = [v for case in cases for v in case.verdicts if v.is_judged]
    return ("passed", "N", "NEW") if judged and all(v.kind == "missing" for v in judged) else None
