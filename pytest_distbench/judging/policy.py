"""From everything said about a case to what that makes of its test: passed, failed, skipped, and why. Pure, no I/O."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pytest_distbench.records.case import OVERSUBSCRIBED
from pytest_distbench.records.kinds import VerdictName
from pytest_distbench.records.run import CaseOutcome, CaseResult
from pytest_distbench.records.verdict import Verdict

Missing = Literal["warn", "fail", "skip"]
Reason = Literal["", "launch", "nothing_judged", "beyond", "refused", "regressed", "unaccepted", "missing", "not_found"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Strictness:
    """What the run accepts.

    Attributes:
        also_failing: verdict kinds that fail a test besides those that always do.
        missing: what to do where there is no baseline for a case.
    """

    also_failing: frozenset[VerdictName] = frozenset()
    missing: Missing = "warn"


@dataclass(frozen=True, slots=True, kw_only=True)
class Conclusion:
    """What a case makes of its test."""

    outcome: CaseOutcome
    reason: Reason = ""
    verdicts: tuple[Verdict, ...] = ()


def conclude(result: CaseResult, strictness: Strictness, *, stood_down: CaseOutcome = "skipped") -> Conclusion:
    """Decide about a case.

    The first of these that holds: a rank failed; all ranks skipped; a planted slowdown was not found, and the run
    does not accept that; the case was only measured; an update took the numbers; nothing was measured that can be
    judged, which is as it should be where ranks share cores; a metric is beyond a bound, unless that is expected; an
    update refused the numbers; another verdict fails, unless that is expected; the run does not accept a verdict;
    there is no baseline, and the run does not accept that. Ranks that all skipped say how the test stands down.
    """
    last = result.launches[-1]
    if last.outcome != "passed":
        return Conclusion(outcome="failed" if last.outcome == "failed" else stood_down, reason="launch")
    judged = tuple(v for v in result.verdicts if v.is_judged)
    is_lost = result.control is not None and not result.control.why_not and not result.control.found
    if is_lost and "unseen" in strictness.also_failing:
        return Conclusion(outcome="failed", reason="not_found")
    if result.update in ("new", "changed", "rewritten", "kept") or (
        result.reference.kind == "nothing" and not result.verdicts
    ):
        return Conclusion(outcome="passed")
    if not judged and OVERSUBSCRIBED in result.case.conditions.around:
        return Conclusion(outcome="passed")
    if not judged:
        return Conclusion(outcome="failed", reason="nothing_judged")
    failing = tuple(v for v in judged if v.is_failure)
    expected: CaseOutcome = "xfailed" if result.xfail_perf else "failed"
    if any(v.kind == "beyond" for v in failing):
        return Conclusion(outcome=expected, reason="beyond", verdicts=failing)
    if result.update == "refused":
        return Conclusion(outcome="failed", reason="refused")
    if failing:
        return Conclusion(outcome=expected, reason="regressed", verdicts=failing)
    if unaccepted := tuple(v for v in judged if v.kind in strictness.also_failing):
        return Conclusion(outcome="failed", reason="unaccepted", verdicts=unaccepted)
    alone = ("unseeded", "inconclusive")  # they may be said without a baseline
    stored = (v for v in judged if v.kind != "missing" and (v.kind not in alone or v.baseline is not None))
    if not any(stored) and strictness.missing != "warn":
        outcome: CaseOutcome = "skipped" if strictness.missing == "skip" else "failed"
        return Conclusion(outcome=outcome, reason="missing", verdicts=judged)
    return Conclusion(outcome="passed")
