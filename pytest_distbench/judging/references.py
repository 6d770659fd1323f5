"""Launches of another run, or of the commit that recorded the baseline, in the place of what is stored. Pure, no I/O.

Whose are the digits of a training? Stored digits and this run's lie a commit and an environment apart. That commit,
launched here and now, tells which of the two changed them:

- it computes what this tree computes: the *environment* changed the digits, and nothing is wrong with the code;
- it repeats its own stored digits, and this tree computes others: the *code* did;
- neither: both did; and a commit that does not repeat itself here says nothing.

Within the limit that is all that is asked. Beyond it this tree is judged against what that commit computes here,
whatever is stored. Where it cannot be launched here, what the stored numbers say stands.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pytest_distbench.judging.bounds import carry_over
from pytest_distbench.judging.case import compare, judge_trainings
from pytest_distbench.judging.entry import few_launches, make_entry
from pytest_distbench.judging.terms import Terms, by_metric
from pytest_distbench.records.case import BaselineEntry, Case, EntryName
from pytest_distbench.records.kinds import METRIC_KINDS
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.metric import Sample
from pytest_distbench.records.record import replace
from pytest_distbench.records.run import CaseResult, Finding, RunRecord

_RECORD = "--distbench-update records today's digits"


def are_asked_about(verdict: Finding) -> bool:
    """Whether the commit that recorded the baseline can say more of a verdict."""
    if not METRIC_KINDS[verdict.better].is_of_training or verdict.baseline is None:
        return False
    return verdict.row.may_be_confirmed or verdict.code in ("numerics", "one-seed")


def confirm_digits(
    terms: Terms,
    case: Case,
    stored: Sequence[Finding],
    launches: Sequence[LaunchRecord],
    references: Sequence[LaunchRecord],
    entry: BaselineEntry,
    *,
    revision: str,
) -> list[Finding]:
    """Judge the numbers of a training again, those that left the stored ones.

    Args:
        references: of the commit that recorded the baseline, here and now.
        revision: that commit, as texts name it.
    """
    there = make_entry(case, references, references[0].software, before=entry)
    if any(_differs(there.metrics.get(key, ())) and not _differs(known) for key, known in entry.metrics.items()):
        return list(stored)  # a commit that does not repeat itself any more clears nobody
    beside = _trainings(terms, launches, there)
    itself = _trainings(terms, references, entry)
    return [
        _attribute(v, beside.get(v.metric), itself.get(v.metric), revision) if are_asked_about(v) else v for v in stored
    ]


def _trainings(terms: Terms, launches: Sequence[LaunchRecord], entry: BaselineEntry) -> Mapping[str, Finding]:
    found = {key: m for key, m in by_metric(launches).items() if terms.wants(m[0].name)}
    return {v.metric: v for v in judge_trainings(terms, found, entry.metrics, same_software=True, entry=entry)}


def _attribute(stored: Finding, beside: Finding | None, itself: Finding | None, revision: str) -> Finding:
    if beside is None or not (_is_equal(beside) or beside.row.is_answer):
        return stored
    repeats = itself is not None and _is_equal(itself)
    if _is_equal(beside):
        told = f"{revision} computes the same here: the environment changed the digits, not the code; {_RECORD}"
        return replace(stored, code="numerics-environment", reason=f"{told}; {stored.reason}")
    who = (
        f"{revision} still computes its own digits here: the code changed them"
        if repeats
        else f"{revision} computes other digits here too: both code and environment changed them"
    )
    if stored.code == "numerics" and beside.code == "numerics":
        return replace(stored, reason=f"{stored.reason}; {who}")
    if beside.is_failure:
        return replace(beside, reason=f"{beside.reason}; compared with what {revision} computes here")
    told = f"compared with what {revision} computes here it is {beside.kind}"
    code = "numerics-environment" if stored.is_failure else beside.code
    return replace(stored, code=code, reason=f"{stored.reason}; {told}; {who}")


def _differs(metric: Sequence[Sample]) -> bool:
    """Whether a number of a training differs between launches of the same code."""
    if not metric or not METRIC_KINDS[metric[0].better].is_of_training:
        return False
    is_curve = METRIC_KINDS[metric[0].better].rule == "curve"
    return any(m.value != metric[0].value or (is_curve and m.values != metric[0].values) for m in metric)


def _is_equal(verdict: Finding) -> bool:
    if METRIC_KINDS[verdict.better].rule == "curve":
        return (verdict.kind == "unchanged" or verdict.code == "flat-curve") and verdict.facts.get("deviation") == 0.0
    return verdict.kind == "unchanged" and verdict.code != "numerics" and verdict.current == verdict.baseline


@dataclass(frozen=True, slots=True)
class RunComparison:
    """Verdicts per case both runs have, and the names of the others.

    Attributes:
        verdicts: of the newer run's launches against the older one's.
        few: cases of the older run with too few launches to know their noise.
    """

    verdicts: dict[EntryName, list[Finding]] = field(default_factory=dict)
    failed: list[EntryName] = field(default_factory=list)
    lost: list[EntryName] = field(default_factory=list)
    added: list[EntryName] = field(default_factory=list)
    few: int = 0


def compare_runs(old: RunRecord, new: RunRecord, *, tolerance: float) -> RunComparison:
    before = {name: result for name, result in _cases(old).items() if _has_passed(result)}
    after = _cases(new)
    entries = {
        name: make_entry(result.case, result.launches, result.environment.software) for name, result in before.items()
    }
    found = RunComparison(
        lost=sorted(before.keys() - after.keys()),
        added=sorted(after.keys() - before.keys()),
        few=sum(bool(few_launches(entry.metrics)) for entry in entries.values()),
    )
    found.failed.extend(name for name in found.added if not _has_passed(after[name]))
    found.added[:] = [name for name in found.added if name not in found.failed]
    both = [name for name in after if name in before]
    comparisons = sum(m.is_noisy for name in both for m, *_ in entries[name].metrics.values())
    for name in both:
        result = after[name]
        if not _has_passed(result):
            found.failed.append(name)
            continue
        # As if the newer run had been asked for exactly the launches it has: no answer stays open.
        terms = Terms(default_tolerance=tolerance, max_launches=1, cores=result.environment.cores)
        made = compare(terms, result.case, result.launches, entries[name], comparisons=max(1, comparisons))
        own = {v.metric: v for v in result.verdicts}
        found.verdicts[name] = [carry_over(finding, own.get(finding.metric)) for finding in made]
    return found


def _cases(record: RunRecord) -> dict[EntryName, CaseResult]:
    return {
        EntryName(platform=r.environment.platform, test=r.case.test, key=r.case.key): r
        for r in record.results
        if r.reference.kind == "stored" and r.launches
    }


def _has_passed(result: CaseResult) -> bool:
    return all(launch.outcome == "passed" for launch in result.launches)
