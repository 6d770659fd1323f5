"""The path of a test: from what its call asks for to its verdict. Read this module first.

pytest collects a test, gives it ranks (``plugin/__init__.py``) and calls it. Each case that it measures by the fixture
``distbench`` (``plugin/distbench.py``) passes :meth:`CasePath.run`; a comment names the room that does a step.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import ParamSpec, TypeVar

import pytest

from pytest_distbench.judging.outcome import conclude
from pytest_distbench.plugin import carry, outcomes
from pytest_distbench.plugin.arguments import Arguments, Called
from pytest_distbench.plugin.outcomes import Run
from pytest_distbench.plugin.requests import RequestMaker
from pytest_distbench.records.record import replace
from pytest_distbench.records.run import CaseResult
from pytest_distbench.run.comparisons import Stored
from pytest_distbench.run.confirm import Rerun, Suspect
from pytest_distbench.run.control import explain_places, inject_slowdown, trace_case
from pytest_distbench.run.request import CaseRequest
from pytest_distbench.run.session import Session
from pytest_distbench.run.sources import CaseComparison, Source, SourceFailed
from pytest_distbench.store.baselines import NotRecorded

_Step = ParamSpec("_Step")
_Found = TypeVar("_Found")


class CasePath:
    """The cases of one test, on their way from a request to a verdict."""

    def __init__(self, session: Session, node: pytest.Item, ask: RequestMaker) -> None:
        self.session, self.node, self.ask = session, node, ask
        self.rerun: Rerun | None = node.stash.get(carry.RERUN, None)  # how the test is run again, if it is
        self.runs: list[Run] = []
        self.ended: list[CaseResult] = []
        self.suspects: dict[str, Suspect] = {}  # by key of the case

    def run(self, given: Arguments, wanted: Called) -> Run:
        """Measure and judge what a call wants by its arguments, the markers of its test, and options."""
        return self.judge(self.begin(self.ask.run(given, wanted)))  # plugin/requests.py

    def begin(self, request: CaseRequest, source: Source | None = None, made_of: Sequence[Run] = ()) -> Run:
        """A run whose launches are still to be made, or are those it had before its test was run again."""
        if source is None:
            source = self.session.source_for(request, self.rerun)  # run/sources.py: alone or interleaved
        self.runs.append(run := Run(request, source, made_of=made_of))
        return run

    def judge(self, run: Run) -> Run:
        """Decide about a case, and end its test by it; in a test that is run again a suspicious case is confirmed."""
        session, request, rerun, key = self.session, run.request, self.rerun, run.request.case.key
        if rerun is not None and key in rerun.suspects:  # run/confirm/: interleaved A/B with the baseline commit
            result = self.do(session.confirm, request, run.source, rerun.suspects[key], rerun)
            result = self.explain(run, result)
        elif rerun is not None and key in rerun.results:
            result = rerun.results[key]
        else:
            comparison = self.do(session.comparison, request)  # run/comparisons.py: baseline or other side
            result = self.compare(run, comparison)
            if key not in self.suspects or session.settings.trace in ("all", "all:ranks"):
                result = self.explain(run, result)
        run.judged = result
        result = replace(result, control=self.do(inject_slowdown, session, request, result))  # run/control.py
        outcomes.warn_of_names(self.node, request, result)
        self.end(run, result)
        outcomes.warn_of_directions(self.node, result)
        return run

    def compare(self, run: Run, comparison: CaseComparison) -> CaseResult:
        """Launch until every metric is decided; a suspicious or noisy case is kept for confirmation.

        ``machine/locks.py`` locks the machine. ``run/sources.py`` has the loop: ``run/launching.py`` plans a launch, a
        launcher of ``launch/starters/`` starts its ranks (``worker/main.py``), ``launch/supervise.py`` gathers their
        reports, ``launch/reduce.py`` reduces them to numbers, ``judging/case.py`` compares.
        """
        result = self.do(self.session.decide, run.request, run.source, comparison)
        try:
            suspect = isinstance(comparison, Stored) and comparison.suspect(run.source, result, outcomes.parts_of(run))
        except NotRecorded as error:
            return replace(result, unconfirmed=str(error))
        if suspect and (why_not := self.node.stash.get(carry.WHY_NO_RERUN, "")):
            return replace(result, unconfirmed=why_not)
        if suspect:  # plugin/confirm.py runs its test again at the end
            evaluation = self.ask.evaluation([known.request.launched for known in self.runs])
            self.suspects[run.request.case.key] = dataclasses.replace(suspect, evaluation=evaluation)
        return result

    def explain(self, run: Run, result: CaseResult) -> CaseResult:
        """Launch a case again, for the lines that take more time or memory, and for its trace, which has them too."""
        result = self.do(explain_places, self.session, run.request, run.source, result, self.rerun)
        for known in (run, *run.made_of):
            if known.trace is None:
                known.trace = self.do(trace_case, self.session, known.request, known.source, result, self.rerun)
        return replace(result, trace=run.trace)

    def end(self, run: Run, result: CaseResult) -> CaseResult:
        """Conclude what a case makes of its test, and why; hand its record to the reports, and end the test by it."""
        result = conclude(result, self.session.settings.policy, stood_down=outcomes.how_it_stands_down(result))
        carry.keep_case(self.node, result)  # plugin/collect.py: the record of the run, and its tables
        self.ended.append(result)
        outcomes.end_test(self.node, self.session, result)  # report/verdicts.py: what a failure says
        run.found = result
        return result

    def do(self, step: Callable[_Step, _Found], *given: _Step.args, **named: _Step.kwargs) -> _Found:
        """Take a step that may need the machine or the store; an error of it ends the test."""
        try:
            with outcomes.end_by_errors(self.node, self.session.settings):
                return step(*given, **named)
        except SourceFailed as error:
            run = next(run for run in self.runs if run.source is error.source)  # of another case, which this one needs
        self.end(run, outcomes.as_failed(self.session, run))
        raise AssertionError("a failed launch ends its test")
