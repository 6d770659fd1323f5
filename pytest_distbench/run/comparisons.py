"""Comparisons of a case: with a stored baseline, with interleaved launches of another revision, or with nothing.

Each says after how many launches it judges, what it finds, and what the record of the case has of the other side.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path

from pytest_distbench.judging.case import Pairs, compare
from pytest_distbench.judging.entry import (
    are_enough,
    is_wanted,
    judged_by_bounds_alone,
    make_baseline,
    norm_of,
    only_judges,
    phases_of,
    sensitivity_of,
    what_it_lacks,
    why_not_stored,
)
from pytest_distbench.judging.terms import accepted_changes
from pytest_distbench.records.case import BaselineEntry, Case
from pytest_distbench.records.kinds import METRIC_KINDS
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.metric import WALL_TIME, AskedBound, metric_name
from pytest_distbench.records.record import replace
from pytest_distbench.records.run import CaseResult, Finding, OtherSideRecord
from pytest_distbench.records.wanted import Update
from pytest_distbench.run.confirm import SCREENING_LAUNCHES, Confirmer, Suspect
from pytest_distbench.run.request import CaseRequest
from pytest_distbench.run.sources import CaseComparison, Source
from pytest_distbench.store.baselines import Baselines

Pending = tuple[Case, BaselineEntry]  # a baseline that an update will write


@dataclasses.dataclass
class Stored(CaseComparison):
    """Comparison with a stored baseline, which may not exist.

    A baseline without metrics has bounds and other settings by hand, and nothing to compare with.

    Attributes:
        comparisons: number in the whole run, over which the error rate is shared.
        update_launches: launches of an update, or None for as many as their noise needs.
        pending: baselines of the update that are still to be written.
    """

    request: CaseRequest
    store: Baselines
    baseline: BaselineEntry | None
    comparisons: int
    update: Update | None
    update_launches: int | None
    pending: list[Pending]
    confirmer: Confirmer | None = None
    _suspicion: float = 0.0

    @property
    def has_numbers(self) -> bool:
        return self._known is not None

    @property
    def _known(self) -> BaselineEntry | None:
        return self.baseline if self.baseline is not None and self.baseline.holds_numbers else None

    @property
    def _is_updated(self) -> bool:
        return self.update is not None and not only_judges(self.update, self._known)

    @property
    def judges_timings(self) -> bool:
        if self._is_updated or self.baseline is None:
            return self._is_updated
        by_hand = map(metric_name, self.baseline.bounds | self.baseline.tolerances)
        return WALL_TIME in by_hand or self.request.terms.judge_timings([m for m, *_ in self.baseline.metrics.values()])

    def judges_timings_of(self, launch: LaunchRecord) -> bool:
        return self.request.terms.judge_timings(launch.measurements, has_baseline=self.has_numbers)

    def _lacking(self, launches: Sequence[LaunchRecord]) -> list[LaunchRecord]:
        """The launches whose metrics an update adds to a baseline that it otherwise keeps."""
        if self.update != "new" or self._known is None:
            return []
        return what_it_lacks(self._known, self.request.case, launches)

    def looks(self) -> Iterator[int]:
        first = self.request.launches
        if self._is_updated:
            yield max(first, self.update_launches or 1)
        if not self._is_updated:  # also if the first launch has found a baseline
            yield from range(first, max(first, self.request.terms.max_launches) + 1)

    def wants_more(self, source: Source) -> bool:
        stored = source.launches if self._is_updated else self._lacking(source.launches)
        if not stored:
            return False
        if self.update_launches is not None:
            return len(source) < self.update_launches
        most = min(self.request.terms.max_launches, source.most_stored)
        return len(source) < most and not are_enough(self.request.terms, stored, self.baseline)

    def compare(self, source: Source) -> list[Finding]:
        most = min(self.request.terms.max_launches, max(len(source), source.most_open))
        if self._is_updated or len(source) >= source.most:  # no launch can be added: no answer stays open
            most = len(source)
        case, launches = self.request.case, source.launches
        screening = None
        if self._known is not None and self.confirmer is not None:
            known, n = self._known, self.comparisons
            screening = self.confirmer.screen(self.request, source, self.path, known, comparisons=n)
        if screening is not None:
            most = min(most, max(self.request.launches, SCREENING_LAUNCHES))
        terms = dataclasses.replace(self.request.terms, max_launches=int(most))
        findings = compare(terms, case, launches, self._known, comparisons=self.comparisons, screening=screening)
        self._suspicion = screening.suspicion_after(findings) if screening is not None else 0.0
        return findings

    def bounds(self) -> list[AskedBound]:
        where = str(self.path.relative_to(self.store.folder.parent))
        bounds = self.baseline.bounds if self.baseline is not None else {}
        return [(metric, value, where) for metric, value in bounds.items()]

    def suspect(self, source: Source, result: CaseResult, made_of: Sequence[str]) -> Suspect | None:
        if self._known is None or self.confirmer is None:
            return None
        return self.confirmer.suspect(
            self.request, source, self.path, result, self._known, comparisons=self.comparisons, made_of=made_of
        )

    @property
    def path(self) -> Path:
        return self.store.path(self.request.case.test, self.request.case.key)

    def record(self, source: Source) -> OtherSideRecord:
        del source
        found = OtherSideRecord(kind="stored", path=str(self.path))
        if (baseline := self.baseline) is None:
            return found
        return replace(
            found,
            software=baseline.software,
            phases=baseline.phases,
            gpu_norm=baseline.gpu_norm,
            metrics=baseline.metrics,
            fingerprints=baseline.fingerprints,
        )

    def conclude(self, result: CaseResult) -> CaseResult:
        result = replace(result, xfail_perf=result.xfail_perf or (self.baseline.xfail_perf if self.baseline else ""))
        if result.launches[-1].outcome != "passed":
            return result
        lacking = self._lacking(result.launches)
        if self._is_updated or lacking:
            result = self._update(result, [] if self._is_updated else lacking)
        return result if self._is_updated else replace(result, suspicion=self._suspicion)

    def _update(self, result: CaseResult, lacking: Sequence[LaunchRecord]) -> CaseResult:
        terms, case, added = self.request.terms, self.request.case, result.verdicts
        if not lacking and judged_by_bounds_alone(result.verdicts):
            return result  # there is nothing to store
        if why_not_stored(result.launches, result.verdicts):
            return replace(result, update="refused")
        if self._known is not None and lacking:
            more = make_baseline(case, lacking, self._known.software, before=self._known)
            metrics, fingerprints = self._known.metrics | more.metrics, self._known.fingerprints | more.fingerprints
            made, done = replace(self._known, metrics=metrics, fingerprints=fingerprints), "completed"
            keys = {measured.key for launch in lacking for measured in launch.measurements}
            added = [v for v in result.verdicts if v.metric in keys or v.kind == "new"]
        elif not is_wanted(self.update, result.verdicts, is_new=self._known is None):
            return replace(result, update="kept")
        else:
            made = make_baseline(case, result.launches, result.launches[0].software, before=self.baseline)
            has_changed = is_wanted("changed", result.verdicts, is_new=False)
            done = "new" if self._known is None else "changed" if has_changed else "rewritten"
        self.pending.append((case, made))
        previous = {v.metric: v.baseline for v in added if METRIC_KINDS[v.better].is_judged}
        tolerances = accepted_changes(terms, result.launches, made)
        wanted = {key: value for key, value in tolerances.items() if terms.wants(metric_name(key))}
        recorded = sensitivity_of(made.metrics, wanted)
        return replace(result, update=done, previous=previous, recorded=recorded)


@dataclasses.dataclass
class Paired(CaseComparison):
    """Comparison with launches of another revision or Python, interleaved with those of the candidate.

    Attributes:
        numbers: ascending numbers of pairs after which it judges.
        cases: number of cases in the run, over which the error rate is shared.
        other_python: whether the sides have different Pythons; else both have the software of the candidate.
    """

    request: CaseRequest
    name: str
    tolerance: float
    numbers: tuple[int, ...]
    cases: int
    other_python: bool
    is_judge: bool = False

    def looks(self) -> Sequence[int]:
        return self.numbers

    def compare(self, source: Source) -> list[Finding]:
        terms, case = self.request.terms, self.request.case
        if source.alone:
            [launch, *_] = source.launches
            absent = "no-baseline", source.alone
            return compare(terms, case, [replace(launch, fingerprints={})], comparisons=1, absent=absent)
        others = [replace(launch, software=self._software(source)) for launch in source.others]
        pairs = Pairs(
            baseline=others,
            looks=self.numbers,
            tolerance_of=lambda metric: self.tolerance,
            is_judge=self.is_judge,
        )
        return compare(terms, case, source.launches, paired=pairs, comparisons=self.cases)

    def record(self, source: Source) -> OtherSideRecord:
        others = source.others
        return OtherSideRecord(
            kind="paired",
            name=self.name,
            software=self._software(source) if others else {},
            phases=phases_of(others),
            gpu_norm=norm_of(others),
            launches=list(others),
        )

    def _software(self, source: Source) -> dict[str, str]:
        return (source.others if self.other_python else source.launches)[0].software


class Nothing(CaseComparison):
    """No comparison: the case is measured; a reason, if there is one, is the verdict on all metrics."""

    def __init__(self, request: CaseRequest, reason: str = "") -> None:
        super().__init__(request)
        self.reason = reason

    def compare(self, source: Source) -> list[Finding]:
        if not self.reason:
            return []
        absent = "unavailable", self.reason
        return compare(self.request.terms, self.request.case, source.launches, comparisons=1, absent=absent)

    def record(self, source: Source) -> OtherSideRecord:
        return OtherSideRecord(kind="nothing", launches=list(source.others))
