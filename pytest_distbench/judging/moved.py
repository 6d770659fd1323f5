"""What differs between two commits: exact metrics by launches of each alone, clocks by launches in turns. Pure."""

from __future__ import annotations

import math
from typing import NamedTuple

from pytest_distbench.judging.case import judge_launches
from pytest_distbench.judging.entry import make_entry
from pytest_distbench.judging.fingerprint_rule import METRIC as FINGERPRINT
from pytest_distbench.judging.terms import Terms
from pytest_distbench.records.bisection import LAUNCH_FAILS
from pytest_distbench.records.choices import DEFAULT_TOLERANCE
from pytest_distbench.records.kinds import METRIC_KINDS, VERDICT_KINDS
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.record import replace
from pytest_distbench.records.run import CaseResult
from pytest_distbench.records.verdict import Verdict


class Answer(NamedTuple):
    """Whether an exact metric differs from GOOD's; None: that cannot be said. And what else is to be told."""

    told: str
    has_moved: bool | None


def failure(launches: list[LaunchRecord]) -> str:
    """How the first rank of its own account ended that failed, in a few words; empty where all launches passed."""
    for launch in launches:
        if launch.outcome == "failed":
            fates = [fate for fate in launch.fates if fate.outcome == "failed" and not fate.is_victim]
            return (fates[0].error.kind if fates[0].error else fates[0].how) if fates else "no rank says why"
    return ""


def exact_moves(good: CaseResult, bad: CaseResult) -> list[Verdict]:
    """The verdicts on the exact metrics that differ, the gravest first."""
    no_case = {v.metric for v in bad.verdicts if not v.is_judged} | _unsteady(good) | _unsteady(bad)
    moved = [v for v in _compare(good, bad) if v.metric not in no_case and _is_moved(v) and _is_exact(v)]
    return sorted(moved, key=lambda v: list(VERDICT_KINDS).index(v.kind))


def answer(metric: str, good: CaseResult, bad: CaseResult, here: CaseResult) -> Answer:
    """What one commit says of the exact metric that differs between GOOD and BAD."""
    failed = failure(here.launches)
    if metric == LAUNCH_FAILS:
        if failed in ("", failure(bad.launches)):
            return Answer("", has_moved=bool(failed))
        return Answer(f"fails in another way than at BAD: {here.launches[-1].reason}", has_moved=None)
    if failed:
        return Answer(f"the launch fails: {here.launches[-1].reason}", has_moved=None)
    verdict = next((v for v in _compare(good, here) if v.metric == metric), None)
    if verdict is None or not VERDICT_KINDS[verdict.kind].is_answer:
        why = (verdict and verdict.reason) or "it is not measured"
        return Answer(f"{metric} cannot be compared: {why}", has_moved=None)
    if not _is_moved(verdict):
        return Answer("", has_moved=False)
    as_bad = next((v for v in _compare(bad, here) if v.metric == metric), None)
    is_third = as_bad is not None and _is_moved(as_bad)
    third = f"not as BAD either, so it moved more than once; here: {tell(verdict)}"
    return Answer(third if is_third else "", has_moved=True)


def tell(verdict: Verdict) -> str:
    """How an exact metric differs, in a few words."""
    return verdict.differences[0] if verdict.differences else verdict.reason or verdict.kind


def clock_moves(result: CaseResult) -> list[Verdict]:
    """The verdicts on clocks, and on amounts, that differ between two revisions in turns."""
    return [v for v in result.verdicts if _is_moved(v) and not _is_exact(v) and len(log_ratios(result, v.metric)) > 1]


def clarity(verdict: Verdict) -> float:
    """How far a clock has moved beyond the limit that its noise allows."""
    return abs(math.log(verdict.ratio or 1.0)) / (verdict.limit or 1.0)


def log_ratios(result: CaseResult, metric: str) -> list[float]:
    """Logarithm of this commit's value over the reference's, per pair that measured the metric."""
    there, here = (
        {launch.index: m.value for launch in launches for m in launch.measurements if m.key == metric}
        for launches in (result.reference.launches, result.launches)
    )
    pairs = [(there.get(index), value) for index, value in here.items()]
    return [math.log(b / a) for a, b in pairs if a and b and a > 0 and b > 0]


def _unsteady(result: CaseResult) -> set[str]:
    """What differs between launches of one commit."""
    first, *others = result.launches
    if not others:
        return set()
    compared = _compare(replace(result, launches=[first]), replace(result, launches=others))
    return {v.metric for v in compared if _is_moved(v)}


def _compare(old: CaseResult, new: CaseResult) -> list[Verdict]:
    terms = Terms(default_tolerance=DEFAULT_TOLERANCE, max_launches=1, cores=new.environment.cores)
    entry = make_entry(old.case, old.launches, old.environment.software)
    return [j.verdict for j in judge_launches(terms, new.launches, entry, case=new.case, comparisons=1)]


def _is_moved(verdict: Verdict) -> bool:
    kind = VERDICT_KINDS[verdict.kind]
    return kind.is_answer and (kind.moved or kind.fails)


def _is_exact(verdict: Verdict) -> bool:
    return verdict.metric == FINGERPRINT or verdict.kind == "lost" or METRIC_KINDS[verdict.better].repeats_exactly
