"""A suspicious case, the second run of its test, and the confirmation that decides about it."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import statistics
from collections.abc import Mapping, Sequence

from pytest_distbench.judging.screening import SUSPICIOUS, is_timing
from pytest_distbench.judging.terms import version_changes
from pytest_distbench.judging.thresholds import LOOKS
from pytest_distbench.records.record import replace
from pytest_distbench.records.run import CaseResult, Finding
from pytest_distbench.records.run import Confirmation as Record
from pytest_distbench.run.against import Variant
from pytest_distbench.run.confirm.evaluated import Evaluation, differing
from pytest_distbench.run.confirm.interleaved import ENDED, START_S, Allowance, Interleaved
from pytest_distbench.run.confirm.rule import (
    RECURS,
    Evaluated,
    StoredComparison,
    are_asked_about,
    confirm,
    crossed,
    is_beyond,
    judge_interleaved,
    not_slower,
    ratios,
    split_change,
    worse_by,
)
from pytest_distbench.run.request import CaseRequest
from pytest_distbench.run.sources import Crossed, Source, SourceFailed, alternate

_ARMS = 3  # the candidate, the baseline commit, and the baseline commit again

_LIKELY = LOOKS[2]  # pairs that an answer is likely to take

_COMMIT = "; commit a test together with its baseline, so that A/B can run both"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Suspect(StoredComparison):
    """A case whose stored comparison is suspicious, or too noisy.

    Attributes:
        variant: the baseline commit.
        made_of: keys of the cases that its number is computed from; empty if it was launched itself.
        evaluation: the code that pytest itself evaluated for it, or None.
    """

    result: CaseResult
    variant: Variant
    made_of: Sequence[str] = ()
    evaluation: Evaluation | None = None

    @property
    def is_suspicious(self) -> bool:
        """Whether there is evidence of a slowdown or of another training; one that is only noisy is confirmed last."""
        other = any(v.row.may_be_confirmed and are_asked_about(v) for v in self.result.verdicts)
        return self.result.suspicion >= SUSPICIOUS or other

    @property
    def looks(self) -> Sequence[int]:
        """Numbers of pairs after which it is judged. Digits repeat, so one launch of each side is enough for them."""
        if not self.are_timings:
            return (1,)
        return (1, *LOOKS) if any(v.is_failure and are_asked_about(v) for v in self.verdicts) else LOOKS

    @property
    def takes_s(self) -> float:
        return self._seconds(self.looks[0])

    @property
    def likely_s(self) -> float:
        return self._seconds(min(_LIKELY, self.looks[-1]))

    def _seconds(self, pairs: int) -> float:
        walls = [launch.wall_s for launch in self.result.launches]
        launch_s = statistics.median(walls) if walls else 0.0
        starts_s = START_S * (1 + (pairs > LOOKS[0]))
        return LOOKS[0] * launch_s if self.variant.is_itself else starts_s + _ARMS * pairs * launch_s


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Rerun:
    """A test that is run again to confirm its suspicious cases. The keys of mappings are those of cases.

    Attributes:
        sources: launches of the first run; cases that are not suspicious are not measured again.
        results: results of the first run.
        variants: the baseline commits that cases are interleaved with, also those that a number is computed from.
        cases: number of cases that this run of pytest confirms.
        others_s: seconds of the budget for the first looks at suspects of other tests.
        left: why a case is not measured again.
    """

    sources: Mapping[str, Source]
    results: Mapping[str, CaseResult]
    suspects: Mapping[str, Suspect]
    variants: Mapping[str, Variant]
    cases: int
    budget: Allowance
    others_s: float = 0.0
    left: Mapping[str, str] = dataclasses.field(default_factory=dict)


class Confirmation(Interleaved):
    """Decides the verdicts of a suspect by launches that are interleaved with those of its baseline commit."""

    def __init__(self, request: CaseRequest, suspect: Suspect, rerun: Rerun) -> None:
        super().__init__(request, suspect.looks, rerun.budget)
        self._suspect = suspect
        self._rerun = rerun
        self.why_not = rerun.left.get(request.case.key, "")
        """Why nothing was decided; "" if something was."""
        self._unchecked: Mapping[str, Finding] = {}  # metric -> red verdict that stands if the second set has no time

    def result(self, source: Crossed, *, here: str, of_its_time: Source | None) -> CaseResult | None:
        """The case with the verdicts that its launches decide, or None where they are too few.

        Args:
            source: launches of the candidate and of the baseline commit.
            here: the commit that is checked out.
            of_its_time: the baseline commit under the software of its time, or None.
        """
        if self.why_not or not (verdicts := self.decide_in_time(source)):
            return None
        verdicts = self._split(source, of_its_time, verdicts)
        record = Record(
            revision=str(self._suspect.variant),
            here=here,
            took_s=self.took_s,
            launches=list(source.launches[: len(source.others) or None]),
            baselines=list(source.others),
            controls=list(source.controls),
        )
        return replace(self._suspect.result, verdicts=verdicts, confirmation=record)

    def decide_in_time(self, source: Source) -> list[Finding]:
        findings = [self._unchecked.get(f.metric, f) for f in super().decide_in_time(source)]
        if not findings or (len(source) < LOOKS[0] and any(f.code == "not-confirmed" for f in findings)):
            findings = []
            used = f"{len(source)} of {self._looks[0]} pairs used all of the time: {ENDED}"
            self.why_not = f"{source.alone}{_COMMIT * source.is_new}" or used
        return findings

    def judge(self, source: Source) -> list[Finding]:
        terms, case, suspect = self.request.terms, self.request.case, self._suspect
        if len(source) < self._looks[0]:  # the baseline commit does not run here
            return []
        if len(source) < LOOKS[0] and suspect.are_timings:
            of_digits = self._confirmed(source, dataclasses.replace(suspect, are_timings=False))
            if any(f.is_failure and are_asked_about(f) for f in of_digits):
                return of_digits  # another training, whose timings decide nothing
            return [replace(f, is_open=is_timing(f, f.unit) and f.is_judged) for f in of_digits]
        if suspect.variant.is_itself:
            later = suspect.later(terms, case, source.launches)
            reason = (
                f"the code equals the baseline commit {suspect.variant}, and {len(source)} more launches are {{}} "
                "its noise"
            )
            found = [(v, later.get(v.metric)) for v in suspect.verdicts]
            return [
                replace(not_slower(v, f, reason.format("beyond" if is_beyond(f) else "within")), is_open=False)
                for v, f in found
            ]
        return self._crossed(source, self._confirmed(source, suspect))

    def _crossed(self, pairs: Source, verdicts: list[Finding]) -> list[Finding]:
        """Go on in the second set of processes if a timing looks slower, and judge whether it is in both."""
        self._unchecked, self.reserved_s = {}, 0.0
        if not isinstance(pairs, Crossed) or pairs.second is None or not self._suspect.are_timings:
            return verdicts
        found = self.interleaved(pairs)
        first = self.interleaved(pairs.first) if pairs.is_crossed else found
        slower = {key for key, f in found.items() if f.kind == "regressed"}
        limits = {key: RECURS * math.log1p(value) for key, value in self._suspect.of_pairs.items()}
        looks_slower = any(worse_by(f) >= limits.get(key, math.inf) for key, f in first.items())
        red = [v for v in verdicts if v.row.may_be_confirmed and v.metric in slower]
        if (red or looks_slower) and not pairs.is_crossed:
            pairs.cross()
        if not pairs.is_crossed:
            return verdicts
        others = [s.takes_s for key, s in self._rerun.suspects.items() if key != self.request.case.key]
        if red:
            self.reserved_s = self._rerun.others_s + sum(others)
        second = self.interleaved(pairs.second) if len(pairs.second) > 1 else {}
        self._unchecked = {} if second else {v.metric: v for v in red}
        return crossed(verdicts, slower, first, second, is_last=len(pairs) >= self._looks[-1])

    def _confirmed(self, source: Source, suspect: Suspect) -> list[Finding]:
        return confirm(
            self.request.terms,
            self.request.case,
            suspect,
            source.sides,
            revision=str(suspect.variant),
            cases=self._rerun.cases,
            evaluated=self._evaluated,
        )

    def interleaved(self, source: Source) -> Mapping[str, Finding]:
        """Judge the timings by the pairs of a source alone: metric -> finding."""
        return judge_interleaved(
            self.request.terms,
            self.request.case,
            source.sides,
            tolerances=self._suspect.of_pairs,
            name=str(self._suspect.variant),
            cases=self._rerun.cases,
        )

    def _evaluated(self) -> Evaluated:
        evaluation, revision = self._suspect.evaluation, self._suspect.variant.revision
        if evaluation is None or revision is None:
            return (), True
        return differing(evaluation, revision, self._suspect.variant.renamed)

    def _split(self, source: Source, pairs: Source | None, verdicts: list[Finding]) -> list[Finding]:
        """Add the shares of code and software in a change, if the software of the baseline commit is available."""
        is_slower = any(v.row.may_be_confirmed or v.kind == "environment" for v in verdicts)
        if pairs is None or source.failed or not self._suspect.are_timings or not is_slower:
            return verdicts
        with contextlib.suppress(SourceFailed):
            alternate([pairs], LOOKS[0])
        if pairs.alone or pairs.failed:
            return verdicts
        total = ratios(pairs.others, pairs.launches)
        code = ratios(source.others, source.launches) or dict.fromkeys(total, 1.0)
        changes = version_changes(pairs.others[0].software, pairs.launches[0].software)
        return split_change(verdicts, code=code, total=total, software=", ".join(changes) or "software")
