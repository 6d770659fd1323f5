"""What a case is compared with: a stored baseline, launches of another revision that ran beside it, or nothing.

One contract for the three: which numbers of launches are judged, what is said of them, and what the record of the case
holds about the other side.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path

from pytest_distbench.judging.case import Beside, compare
from pytest_distbench.judging.entry import (
    are_enough,
    is_wanted,
    judged_by_bounds_alone,
    make_entry,
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
from pytest_distbench.records.run import CaseResult, Finding, ReferenceRecord
from pytest_distbench.records.wanted import Update
from pytest_distbench.run.confirm import SCREENING_LAUNCHES, Confirmer, Suspect
from pytest_distbench.run.request import CaseRequest
from pytest_distbench.run.sources import CaseComparison, Source
from pytest_distbench.store.baselines import BaselineStore

Pending = tuple[Case, BaselineEntry]  # an entry that an update will write


@dataclasses.dataclass
class Stored(CaseComparison):
    """A stored baseline, whether there is one or not.

    An entry without metrics holds what was set by hand, and nothing to compare with. The error rate is shared over the
    comparisons of the whole run. An update makes as many launches as their noise needs, unless it was told, and its
    entries are pending until they are written.
    """

    request: CaseRequest
    store: BaselineStore
    entry: BaselineEntry | None
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
        return self.entry if self.entry is not None and self.entry.holds_numbers else None

    @property
    def _is_updated(self) -> bool:
        return self.update is not None and not only_judges(self.update, self._known)

    @property
    def judges_timings(self) -> bool:
        if self._is_updated or self.entry is None:
            return self._is_updated
        by_hand = map(metric_name, self.entry.bounds | self.entry.tolerances)
        return WALL_TIME in by_hand or self.request.terms.judge_timings([m for m, *_ in self.entry.metrics.values()])

    def judges_timings_of(self, launch: LaunchRecord) -> bool:
        return self.request.terms.judge_timings(launch.measurements, has_reference=self.has_numbers)

    def _lacking(self, launches: Sequence[LaunchRecord]) -> list[LaunchRecord]:
        """What an update adds to an entry that it otherwise leaves as it is."""
        if self.update != "new" or self._known is None:
            return []
        return what_it_lacks(self._known, self.request.case, launches)

    def looks(self) -> Iterator[int]:
        first = self.request.launches
        if self._is_updated:
            yield max(first, self.update_launches or 1)
        if not self._is_updated:  # also where the first launch has found an entry
            yield from range(first, max(first, self.request.terms.max_launches) + 1)

    def wants_more(self, source: Source) -> bool:
        stored = source.launches if self._is_updated else self._lacking(source.launches)
        if not stored:
            return False
        if self.update_launches is not None:
            return len(source) < self.update_launches
        most = min(self.request.terms.max_launches, source.most_stored)
        return len(source) < most and not are_enough(self.request.terms, stored, self.entry)

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
        bounds = self.entry.bounds if self.entry is not None else {}
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

    def record(self, source: Source) -> ReferenceRecord:
        del source
        found = ReferenceRecord(kind="stored", path=str(self.path))
        if (entry := self.entry) is None:
            return found
        return replace(
            found,
            software=entry.software,
            phases=entry.phases,
            gpu_norm=entry.gpu_norm,
            metrics=entry.metrics,
            fingerprints=entry.fingerprints,
        )

    def conclude(self, result: CaseResult) -> CaseResult:
        result = replace(result, xfail_perf=result.xfail_perf or (self.entry.xfail_perf if self.entry else ""))
        if result.launches[-1].outcome != "passed":
            return result
        lacking = self._lacking(result.launches)
        if self._is_updated or lacking:
            result = self._update(result, [] if self._is_updated else lacking)
        return result if self._is_updated else replace(result, suspicion=self._suspicion)

    def _update(self, result: CaseResult, lacking: Sequence[LaunchRecord]) -> CaseResult:
        """Store what was measured, or add to the entry what it lacks."""
        terms, case, added = self.request.terms, self.request.case, result.verdicts
        if not lacking and judged_by_bounds_alone(result.verdicts):
            return result  # there is nothing to store
        if why_not_stored(result.launches, result.verdicts):
            return replace(result, update="refused")
        if self._known is not None and lacking:
            more = make_entry(case, lacking, self._known.software, before=self._known)
            metrics, fingerprints = self._known.metrics | more.metrics, self._known.fingerprints | more.fingerprints
            made, done = replace(self._known, metrics=metrics, fingerprints=fingerprints), "completed"
            keys = {measured.key for launch in lacking for measured in launch.measurements}
            added = [v for v in result.verdicts if v.metric in keys or v.kind == "new"]
        elif not is_wanted(self.update, result.verdicts, is_new=self._known is None):
            return replace(result, update="kept")
        else:
            made = make_entry(case, result.launches, result.launches[0].software, before=self.entry)
            has_moved = is_wanted("changed", result.verdicts, is_new=False)
            done = "new" if self._known is None else "changed" if has_moved else "rewritten"
        self.pending.append((case, made))
        previous = {v.metric: v.baseline for v in added if METRIC_KINDS[v.better].is_judged}
        tolerances = accepted_changes(terms, result.launches, made)
        wanted = {key: value for key, value in tolerances.items() if terms.wants(metric_name(key))}
        recorded = sensitivity_of(made.metrics, wanted)
        return replace(result, update=done, previous=previous, recorded=recorded)


@dataclasses.dataclass
class Paired(CaseComparison):
    """Launches of another revision or Python, each beside one of this tree.

    They are judged after these numbers of pairs, ascending. All cases of the run share the error rate. Under one
    Python both sides have the same software: what a rank says of it otherwise comes from the code that is compared.
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
        references = [replace(r, software=self._software(source)) for r in source.references]
        beside = Beside(
            references=references,
            looks=self.numbers,
            tolerance_of=lambda metric: self.tolerance,
            is_judge=self.is_judge,
        )
        return compare(terms, case, source.launches, beside=beside, comparisons=self.cases)

    def record(self, source: Source) -> ReferenceRecord:
        references = source.references
        return ReferenceRecord(
            kind="paired",
            name=self.name,
            software=self._software(source) if references else {},
            phases=phases_of(references),
            gpu_norm=norm_of(references),
            launches=list(references),
        )

    def _software(self, source: Source) -> dict[str, str]:
        return (source.references if self.other_python else source.launches)[0].software


class Nothing(CaseComparison):
    """Nothing: the case is measured, and where there is a reason why not, that is the verdict on everything."""

    def __init__(self, request: CaseRequest, reason: str = "") -> None:
        super().__init__(request)
        self.reason = reason

    def compare(self, source: Source) -> list[Finding]:
        if not self.reason:
            return []
        absent = "unavailable", self.reason
        return compare(self.request.terms, self.request.case, source.launches, comparisons=1, absent=absent)

    def record(self, source: Source) -> ReferenceRecord:
        return ReferenceRecord(kind="nothing", launches=list(source.references))
