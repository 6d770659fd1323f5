"""The cases of a test in its pytest reports, from the process that ran it to the one that prints the summary.

pytest-xdist serializes reports, so the cases are JSON text. A run that measures nothing does not import the records.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest

if TYPE_CHECKING:
    from pytest_distbench.records.run import CaseResult
    from pytest_distbench.run.confirm import Rerun

CASES_ATTRIBUTE = "distbench_cases"
TEST_ATTRIBUTE = "distbench_test"
ATTEMPT_ATTRIBUTE = "distbench_attempt"
SUSPICIOUS_ATTRIBUTE = "distbench_suspicious"

CASES: pytest.StashKey[dict[str, CaseResult]] = pytest.StashKey()
"""The cases of a test by key, until its report carries them."""
RERUN: pytest.StashKey[Rerun] = pytest.StashKey()  # how a test is run again whose stored comparisons are suspicious
WHY_NO_RERUN = pytest.StashKey[str]()  # why it cannot be run again

_PACKAGE = str(Path(__file__).resolve().parents[1])
_RERUN_OUTCOME = "rerun"
"""Outcome that pytest-rerunfailures gives to the last report of an attempt if it runs the test again."""
_LONGEST_LINE = 300


def keep_case(item: pytest.Item, case: CaseResult) -> None:
    """Have the reports of a test carry a case; one that comes again takes the place of the earlier one."""
    item.stash.setdefault(CASES, {})[case.case.key] = case


def attach_test(report: pytest.TestReport, test: str, case_id: str, attempt: str) -> None:
    """Mark a report as that of a distbench test and of an attempt, whose name is unique."""
    setattr(report, TEST_ATTRIBUTE, [test, case_id])
    setattr(report, ATTEMPT_ATTRIBUTE, attempt)


def point_to_test(report: pytest.TestReport, item: pytest.Item, raised: pytest.ExceptionInfo[BaseException]) -> None:
    if not isinstance(report.longrepr, tuple) or not report.longrepr[0].startswith(_PACKAGE):
        return
    own = [frame.lineno for frame in raised.traceback if frame.path == item.path]
    line = own[-1] if own else item.reportinfo()[1] or 0
    report.longrepr = str(item.path), line + 1, report.longrepr[2]


def attach_cases(report: pytest.TestReport, cases: Sequence[CaseResult]) -> None:
    import msgspec

    setattr(report, CASES_ATTRIBUTE, [msgspec.json.encode(case).decode() for case in cases])


def attach_numbers(item: pytest.Item, report: pytest.TestReport, cases: Sequence[CaseResult]) -> None:
    """Add the numbers of a test to its user properties, for JUnit and JSON files.

    These are written from the report of the teardown, which has the user properties of the item.
    """
    from pytest_distbench.report.verdicts import number_properties

    found = number_properties(cases)
    item.user_properties += found
    report.user_properties += found


def forget_numbers(item: pytest.Item) -> None:
    from pytest_distbench.report.verdicts import PREFIX

    item.user_properties[:] = [pair for pair in item.user_properties if not pair[0].startswith(PREFIX)]


def suspicious(report: pytest.TestReport) -> pytest.TestReport:
    """Copy the report of a test that is run again at the end, without its failure and cases."""
    shown = copy.copy(report)
    shown.outcome = _RERUN_OUTCOME  # type: ignore[assignment] # as other plugins call it, so that files of results leave it out
    shown.longrepr, shown.sections = None, []
    setattr(shown, CASES_ATTRIBUTE, [])
    setattr(shown, SUSPICIOUS_ATTRIBUTE, True)
    return shown


def is_suspicious(report: pytest.TestReport) -> bool:
    return getattr(report, SUSPICIOUS_ATTRIBUTE, False)


def test_of(report: pytest.TestReport) -> tuple[str, str] | None:
    found = getattr(report, TEST_ATTRIBUTE, None)
    return cast("tuple[str, str]", tuple(found)) if found else None


def texts_of(report: pytest.TestReport) -> list[str]:
    return getattr(report, CASES_ATTRIBUTE, None) or []


def decode(texts: Sequence[str]) -> list[CaseResult]:
    if not texts:
        return []
    import msgspec

    from pytest_distbench.records.run import CaseResult

    return [msgspec.json.decode(text, type=CaseResult) for text in texts]


_Node = tuple[str, str]  # node id and name of a test


class Attempts:
    """The cases that reports of a run carried; if a plugin runs a test again, those of the last attempt."""

    def __init__(self) -> None:
        self._texts: dict[_Node, list[str]] = {}  # as the reports hold them: one copy, however long the run
        self._ended: dict[_Node, list[str]] = {}
        self._failed: set[_Node] = set()
        self._current: dict[_Node, str] = {}

    def __bool__(self) -> bool:
        return bool(self._texts)

    def take(self, report: pytest.TestReport) -> None:
        """Keep the cases of a report in place of those of an earlier attempt at its test.

        Reports of subtests may come before that of the setup, if a plugin holds the others back.
        """
        attempt, named = getattr(report, ATTEMPT_ATTRIBUTE, ""), test_of(report)
        if not attempt or named is None:
            return
        node = report.nodeid, named[0]  # outside of the root directory two tests may have one node id
        if attempt != self._current.get(node):
            self._current[node] = attempt
            self._texts.pop(node, None)
            self._failed.discard(node)
        if texts := texts_of(report):
            self._texts.setdefault(node, []).extend(texts)
        if report.failed:
            self._failed.add(node)
        elif str(report.outcome) == _RERUN_OUTCOME and not is_suspicious(report):
            from pytest_distbench.machine.secrets import mask_text

            # the first line of a distbench failure says why
            crash = getattr(report.longrepr, "reprcrash", None)
            text = crash.message if crash is not None else report.longreprtext
            line = mask_text(next((line.strip() for line in text.splitlines() if line.strip()), "failed"))
            when = f" ({report.when})" if report.when != "call" else ""
            self._ended.setdefault(node, []).append(f"{line[:_LONGEST_LINE]}{when}")

    def cases(self) -> list[CaseResult]:
        if not self._texts:
            return []
        from pytest_distbench.records.record import replace

        found = []
        for node, texts in self._texts.items():
            flaky = [] if node in self._failed else self._ended.get(node, [])
            found += [replace(case, flaky=flaky) if flaky else case for case in decode(texts)]
        return found


def status_of(cases: Sequence[CaseResult]) -> tuple[str, str, str] | None:
    """The status of a test that passed: A if an advisory verdict would have failed it, U if a baseline was written, N
    if there was no baseline, or None.
    """
    if any(case.outcome == "advisory" for case in cases):
        return "advisory", "A", "ADVISORY"
    if any(case.is_written for case in cases):
        return "passed", "U", "UPDATED"
    judged = [v for case in cases for v in case.verdicts if v.is_judged]
    return ("passed", "N", "NEW") if judged and all(v.kind == "new" for v in judged) else None
