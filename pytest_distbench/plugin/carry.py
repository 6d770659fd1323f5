"""What the report of a test carries of ours: its cases, from the process that ran it to the one that tells about it.

pytest-xdist sends reports over a wire, so that everything here is JSON text; and where nothing was measured, nothing of
the records is imported.
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
"""What a test has measured, until its report carries it."""
RERUN: pytest.StashKey[Rerun] = pytest.StashKey()  # how a test is run again whose stored comparisons are suspicious
WHY_NO_RERUN = pytest.StashKey[str]()  # why it cannot be run again

_PACKAGE = str(Path(__file__).resolve().parents[1])
_RERUN_OUTCOME = "rerun"
"""The outcome that pytest-rerunfailures gives to the last report of an attempt after which it runs the test again."""
_LONGEST_LINE = 300


def keep_case(item: pytest.Item, case: CaseResult) -> None:
    """Have the reports of a test carry a case; one that comes again takes the place of the earlier one."""
    item.stash.setdefault(CASES, {})[case.case.key] = case


def attach_test(report: pytest.TestReport, test: str, case_id: str, attempt: str) -> None:
    """Say that a report is of a test of ours, and of which attempt at it: no two attempts have the same name."""
    setattr(report, TEST_ATTRIBUTE, [test, case_id])
    setattr(report, ATTEMPT_ATTRIBUTE, attempt)


def point_to_test(report: pytest.TestReport, item: pytest.Item, raised: pytest.ExceptionInfo[BaseException]) -> None:
    if not isinstance(report.longrepr, tuple) or not report.longrepr[0].startswith(_PACKAGE):
        return
    own = [entry.lineno for entry in raised.traceback if entry.path == item.path]
    line = own[-1] if own else item.reportinfo()[1] or 0
    report.longrepr = str(item.path), line + 1, report.longrepr[2]


def attach_cases(report: pytest.TestReport, cases: Sequence[CaseResult]) -> None:
    import msgspec

    setattr(report, CASES_ATTRIBUTE, [msgspec.json.encode(case).decode() for case in cases])


def attach_numbers(item: pytest.Item, report: pytest.TestReport, cases: Sequence[CaseResult]) -> None:
    """Put the numbers of a test where reports of other tools look for them.

    JUnit and JSON files are written from the report of the teardown, which gets what the item has then.
    """
    from pytest_distbench.report.verdicts import number_properties

    found = number_properties(cases)
    item.user_properties += found
    report.user_properties += found


def forget_numbers(item: pytest.Item) -> None:
    from pytest_distbench.report.verdicts import PREFIX

    item.user_properties[:] = [pair for pair in item.user_properties if not pair[0].startswith(PREFIX)]


def suspicious(report: pytest.TestReport) -> pytest.TestReport:
    """What is shown of a test that is run again at the end: that it was run, and no outcome."""
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
    """What the tests of a run have carried: of one that a plugin runs again the last attempt counts."""

    def __init__(self) -> None:
        self._texts: dict[_Node, list[str]] = {}  # as the reports hold them: one copy, however long the run
        self._ended: dict[_Node, list[str]] = {}
        self._failed: set[_Node] = set()
        self._current: dict[_Node, str] = {}

    def __bool__(self) -> bool:
        return bool(self._texts)

    def take(self, report: pytest.TestReport) -> None:
        """Keep what a report carries; what another attempt at its test carried is forgotten.

        Reports of subtests come before that of the setup where a plugin holds the others back.
        """
        attempt, named = getattr(report, ATTEMPT_ATTRIBUTE, ""), test_of(report)
        if not attempt or named is None:
            return
        node = report.nodeid, named[0]  # outside the root directory two tests may have one node id
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

            # Of our own failures the first line tells the whole story.
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
    """How pytest shows a test that passed: A where an advisory verdict would have failed it, U where a baseline was
    written, N where there was none to compare with.
    """
    if any(case.outcome == "advisory" for case in cases):
        return "advisory", "A", "ADVISORY"
    if any(case.is_written for case in cases):
        return "passed", "U", "UPDATED"
    judged = [v for case in cases for v in case.verdicts if v.is_judged]
    return ("passed", "N", "NEW") if judged and all(v.kind == "new" for v in judged) else None
