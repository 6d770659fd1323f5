"""Measuring for a search: GOOD and BAD, whose difference is followed, and then commits between them."""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from pytest_distbench.errors import DistbenchError
from pytest_distbench.judging import moved
from pytest_distbench.judging.bisection import Standing, pairs_a_visit
from pytest_distbench.records.bisection import LAUNCH_FAILS, Commit, Followed, Visit
from pytest_distbench.records.metric import metric_name
from pytest_distbench.records.record import replace
from pytest_distbench.records.run import CaseResult
from pytest_distbench.run.history import History
from pytest_distbench.run.visits import Visits
from pytest_distbench.run.worktree import Revision

LAUNCHES_AT_ENDS = 2
"""Of GOOD and of BAD: what differs between launches of the same code is not exact."""


@dataclass(frozen=True, slots=True)
class Ends:
    """GOOD and BAD, and what differs between them: of the metric that is asked for, empty: of any.

    Remarks say what could not be compared.
    """

    history: History
    visits: Visits
    test: str
    metric: str
    remarks: list[str] = field(default_factory=list)

    def exact(self) -> list[Followed]:
        """What is exact and differs, by launches of each end alone; launches that fail at BAD first."""
        good, bad = self.history.good, self.history.bad
        before = {(r.nodeid, r.case.key): r for r in self._alone(good)}
        if failed := next((r for r in before.values() if moved.failure(r.launches)), None):
            raise DistbenchError(f"bisect: at GOOD, {good}, the launch fails: {failed.launches[-1].reason}")
        both = [(before[key], r) for r in self._alone(bad) if (key := (r.nodeid, r.case.key)) in before]
        if not both:
            raise DistbenchError(f"bisect: GOOD, {good}, measures none of the cases of BAD, {bad}")
        return [followed for good_case, bad_case in both for followed in self._exact(good_case, bad_case)]

    def in_turns(self) -> Sequence[CaseResult]:
        """BAD beside GOOD, until there is an answer for each clock."""
        measured = self.visits.in_turns(self.history.bad, self.test, self.history.good, pairs=None)
        return self._expect(measured.results, measured.why_not, self.history.bad)

    def clocks(self, results: Sequence[CaseResult]) -> list[Followed]:
        """The clocks that differ between them, the clearest first."""
        found = [(v, r) for r in results for v in moved.clock_moves(r) if self.wants(v.metric)]
        found.sort(key=lambda pair: -moved.clarity(pair[0]))
        return [
            Followed(metric=v.metric, verdict=v, good=r, bad=r, at_bad=moved.log_ratios(r, v.metric)) for v, r in found
        ]

    def wants(self, metric: str) -> bool:
        """Whether it is the one that is asked for, by its name or with its point."""
        return not self.metric or self.metric in (metric, metric_name(metric))

    def _exact(self, good: CaseResult, bad: CaseResult) -> Iterator[Followed]:
        if moved.failure(bad.launches):
            if self.wants(LAUNCH_FAILS):
                yield Followed(metric=LAUNCH_FAILS, good=good, bad=bad)
            return
        if good.case.workload != bad.case.workload:
            self.remarks.append(f"{bad.nodeid} has other parameters at GOOD: nothing exact of it can be compared")
        for verdict in moved.exact_moves(good, bad):
            if self.wants(verdict.metric):
                yield Followed(metric=verdict.metric, verdict=verdict, good=good, bad=bad)

    def _alone(self, end: Revision) -> Sequence[CaseResult]:
        measured = self.visits.alone(end, self.test, launches=LAUNCHES_AT_ENDS)
        return self._expect(measured.results, measured.why_not, end)

    def _expect(self, results: Sequence[CaseResult], why_not: str, end: Revision) -> Sequence[CaseResult]:
        if why_not:
            file = self.test.partition("::")[0]
            hint = f"; --take {file} lays that of the working tree over each commit" if "there is no" in why_not else ""
            raise DistbenchError(f"bisect: {end} cannot be measured: {why_not}{hint}")
        return results


def test_of(followed: Followed, asked: str) -> str:
    """The one test that measures what is followed, in the file that was asked for."""
    return f"{asked.partition('::')[0]}::{followed.bad.nodeid.partition('::')[2]}"


def visit(commit: Commit, standing: Standing, history: History, visits: Visits) -> Visit:
    """Measure a commit, or say why it could not be."""
    begun = time.monotonic()
    measured = _measure(commit, standing, history, visits)
    return replace(measured, seconds=round(time.monotonic() - begun, 1))


def _measure(commit: Commit, standing: Standing, history: History, visits: Visits) -> Visit:
    followed = standing.state.followed
    revision = Revision(commit.short, commit.hash, history.bad.root)
    test = test_of(followed, standing.state.asked[0])
    made = functools.partial(Visit, commit=commit.hash, seconds=0.0)
    if followed.is_exact:
        measured = visits.alone(revision, test, launches=1)
    else:
        pairs = pairs_a_visit(followed.at_bad, standing.noise)
        measured = visits.in_turns(revision, test, history.good, pairs=pairs)
    here = next((r for r in measured.results if r.case.key == followed.bad.case.key), None)
    if here is None:
        return made(skipped=measured.why_not or "it measures other cases")
    if followed.is_exact:
        answer = moved.answer(followed.metric, followed.good, followed.bad, here)
        if answer.has_moved is None:
            return made(skipped=answer.told)
        return made(has_moved=answer.has_moved, told=answer.told)
    if moved.failure([*here.launches, *here.reference.launches]):
        return made(skipped=f"the launch fails: {here.launches[-1].reason}")
    changes = moved.log_ratios(here, followed.metric)
    return made(changes=changes) if len(changes) > 1 else made(skipped=f"it does not measure {followed.metric}")
