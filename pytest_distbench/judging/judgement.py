"""A verdict on one metric, and what all that is said about a case makes of its test. Pure, no I/O."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from pytest_distbench.records.case import OVERSUBSCRIBED
from pytest_distbench.records.kinds import METRIC_KINDS, VerdictName
from pytest_distbench.records.metric import Measurement
from pytest_distbench.records.record import replace
from pytest_distbench.records.run import CaseOutcome, CaseResult, Verdict
from pytest_distbench.records.summaries import median
from pytest_distbench.records.wanted import Missing


class Judgement(NamedTuple):
    """A verdict, and whether more launches could still change it."""

    verdict: Verdict
    is_open: bool


@dataclass(frozen=True, slots=True)
class Draft:
    """A verdict that is not decided yet.

    Attributes:
        current: its value in each launch of this run; None where a launch has none.
        reference: the same of what it is compared with.
    """

    metric: Measurement
    current: Sequence[float | None]
    reference: Sequence[float | None]

    def settle(
        self,
        kind: VerdictName,
        reason: str = "",
        *,
        ratio: float | None = None,
        limit: float | None = None,
        detectable: float | None = None,
        is_open: bool = False,
    ) -> Judgement:
        now, then = median(self.current), median(self.reference)
        verdict = Verdict(
            metric=self.metric.key,
            kind=kind,
            unit=self.metric.unit,
            better=self.metric.better,
            current=now,
            baseline=then,
            ratio=ratio if ratio is not None else now / then if now is not None and then else None,
            limit=limit,
            detectable=detectable,
            launches=len(self.current),
            baseline_launches=len(self.reference),
            reason=reason,
            at=self.metric.at,
            facts={**self.metric.identity, **self.metric.facts},
        )
        return Judgement(verdict, is_open)


def certain_failure(judgements: Sequence[Judgement]) -> str:
    failed = (j.verdict for j in judgements if j.verdict.is_failure and not j.is_open)
    first = next((v for v in failed if v.kind in ("lost", "changed") or not v.is_noisy), None)
    return "" if first is None else f"{first.metric} {_WORDS.get(first.kind, first.kind)}"


NOT_JUDGED = "not judged: no more launches were made, as the case is red for certain"


def close(judgement: Judgement, reason: str) -> Judgement:
    """An open judgement as it stays: not judged, as the case is red without it. What is exact stays as it was seen."""
    if not judgement.verdict.is_noisy:
        return judgement._replace(is_open=False)
    told = f"{NOT_JUDGED} ({reason})"
    return Judgement(replace(judgement.verdict, kind="inconclusive", reason=told), is_open=False)


_WORDS = {"beyond": "is beyond a bound", "lost": "is measured no more", "changed": "changed"}


def severity(verdict: Verdict) -> float:
    """How far the metric moved, as a logarithm, whichever way is worse; infinite where a ratio does not say it."""
    if verdict.ratio is None or verdict.ratio <= 0:
        return math.inf
    return abs(math.log(verdict.ratio))


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """The one to name first: what is beyond a bound, or a training's curve, the earliest, else what moved most."""
    return max(verdicts, key=lambda v: (v.kind == "beyond", METRIC_KINDS[v.better].rule == "curve", severity(v)))


Reason = Literal["", "launch", "nothing_judged", "beyond", "refused", "regressed", "unaccepted", "missing", "not_found"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Strictness:
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
