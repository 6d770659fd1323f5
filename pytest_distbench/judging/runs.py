"""One run judged against another: the older one's launches in the place of stored baselines."""

from __future__ import annotations

from dataclasses import dataclass, field

from pytest_distbench.judging.bounds import carry_over
from pytest_distbench.judging.case import judge_launches
from pytest_distbench.judging.entry import few_launches, make_entry
from pytest_distbench.judging.terms import Terms
from pytest_distbench.records.case import EntryName
from pytest_distbench.records.run import CaseResult, RunRecord, Verdict


@dataclass(frozen=True, slots=True)
class RunComparison:
    """Verdicts per case both runs have, and the names of the others.

    Attributes:
        verdicts: of the newer run's launches against the older one's.
        few: cases of the older run with too few launches to know their noise.
    """

    verdicts: dict[EntryName, list[Verdict]] = field(default_factory=dict)
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
    comparisons = sum(m.is_noisy for name in both for m in entries[name].metrics.values())
    for name in both:
        result = after[name]
        if not _has_passed(result):
            found.failed.append(name)
            continue
        # As if the newer run had been asked for exactly the launches it has: no answer stays open.
        terms = Terms(default_tolerance=tolerance, max_launches=1, cores=result.environment.cores)
        judgements = judge_launches(
            terms,
            result.launches,
            entries[name],
            case=result.case,
            comparisons=max(1, comparisons),
        )
        own = {v.metric: v for v in result.verdicts}
        found.verdicts[name] = [carry_over(j.verdict, own.get(j.verdict.metric)) for j in judgements]
    return found


def _cases(record: RunRecord) -> dict[EntryName, CaseResult]:
    return {
        EntryName(platform=r.environment.platform, test=r.case.test, key=r.case.key): r
        for r in record.results
        if r.reference.kind == "stored" and r.launches
    }


def _has_passed(result: CaseResult) -> bool:
    return all(launch.outcome == "passed" for launch in result.launches)
