"""Tests whose stored comparison is in doubt are run again at the end, in turns with the revisions that recorded it.

Their reports are held back until then. So the most doubtful come first while the budget lasts, at some distance from
the moment that raised the doubt, and with fixtures of their own.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Sequence
from typing import TYPE_CHECKING

import pytest
from _pytest.runner import runtestprotocol

from pytest_distbench.plugin import carry
from pytest_distbench.plugin.fixtures import MADE, is_ours
from pytest_distbench.units import counted, plural

if TYPE_CHECKING:
    from pytest_distbench.plugin.distbench import Distbench
    from pytest_distbench.run.against import Variant
    from pytest_distbench.run.confirm import Again, Allowance
    from pytest_distbench.run.request import Settings


MOST_BEYOND_BUDGET_S = 120.0
"""The first look of the most suspicious test may take so long whatever the budget is: else a body of seconds never ran
in turns. Further looks are of the budget.
An elastic job, whose three sides run one after the other, takes minutes, and more budget."""
MOST_OF_A_REGRESSION_S = 600.0
"""And so long, where the stored numbers alone would call it regressed: what became many times slower takes long in
turns, and is not to pass for that."""


class Held:
    """A test whose reports are held back until its doubts are settled."""

    def __init__(self, item: pytest.Item, reports: Sequence[pytest.TestReport], made: Distbench) -> None:
        self.item = item
        self.reports = reports
        self.made = made
        self.doubts = dict(made.doubts)

    @property
    def suspicion(self) -> float:
        return max(doubt.result.suspicion for doubt in self.doubts.values())

    @property
    def is_suspicious(self) -> bool:
        return any(doubt.is_suspicious for doubt in self.doubts.values())

    @property
    def most_s(self) -> float:
        """What the first look at it may take whatever the budget is."""
        if not self.is_suspicious:
            return 0.0
        verdicts = (verdict for doubt in self.doubts.values() for verdict in doubt.result.verdicts)
        is_worse = any(verdict.row.may_be_confirmed for verdict in verdicts)
        return MOST_OF_A_REGRESSION_S if is_worse else MOST_BEYOND_BUDGET_S

    def seconds(self, keys: Collection[str] | None = None) -> float:
        """About how long the first look at these takes, or at all of them: what is begun has to fit."""
        return sum(self.doubts[key].takes_s for key in (self.doubts if keys is None else keys))

    def that_fit(self, left_s: float, most_s: float) -> Collection[str]:
        """The doubts that can be settled: all, those that look slower, or the loudest with what its number is made of.

        Args:
            left_s: of the budget. What is too noisy to tell takes nothing beyond it.
            most_s: that what looks slower may take.
        """
        suspicious = [key for key, doubt in self.doubts.items() if doubt.is_suspicious]
        key = max(self.doubts, key=lambda key: self.doubts[key].result.suspicion)
        loudest = [key, *(source for source in self.doubts[key].sources if source in self.doubts)]
        choices: list[tuple[Collection[str], float]] = [
            (self.doubts, left_s), (suspicious, most_s), (loudest, most_s)
        ]  # fmt: skip
        return next((keys for keys, limit_s in choices if keys and self.seconds(keys) <= limit_s), ())

    def again(
        self,
        allowance: Allowance,
        budget: Allowance,
        *,
        cases: int,
        settled: Collection[str],
        why_not: str,
        others_s: float,
    ) -> Again:
        """How the test is run again to settle its doubts.

        Args:
            allowance: what may take so long, if that is more than is left of the budget.
            budget: of the run.
            cases: in doubt, in this run of pytest.
            settled: keys of the cases that are run in turns. Of the others those that look slower stay in doubt, and
                those that are too noisy to tell stay what they are.
            why_not: why the others are not.
            others_s: that the first looks at other tests in doubt take.
        """
        from pytest_distbench.run.confirm import Again

        doubts = {key: doubt for key, doubt in self.doubts.items() if key in settled or doubt.is_suspicious}
        beside: dict[str, Variant] = {}
        for key in (key for key in doubts if key in settled):
            beside |= dict.fromkeys([key, *doubts[key].sources], doubts[key].variant)
        runs = {run.request.case.key: run for run in self.made.runs}
        return Again(
            sources={key: run.source for key, run in runs.items() if run.request.launched is not None},
            results={key: run.judged for key, run in runs.items() if run.judged is not None},
            doubts=doubts,
            beside=beside,
            cases=cases,
            allowance=allowance,
            budget=budget,
            others_s=others_s,
            left={key: why_not for key in doubts if key not in settled},
        )

    def log(self, *, why: str) -> None:
        from pytest_distbench.records.record import replace

        for report in self.reports:
            if texts := carry.texts_of(report):
                cases = carry.decode(texts)
                told = [replace(c, unconfirmed=why) if c.case.key in self.doubts else c for c in cases]
                carry.attach_cases(report, told)
            self.item.ihook.pytest_runtest_logreport(report=report)


class ConfirmPlugin:
    def __init__(self, config: pytest.Config, settings: Settings) -> None:
        self._config = config
        self._settings = settings
        self._held: list[Held] = []
        self._left: list[str] = []

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
        """Run a test of ours; what it reports is held back where it is in doubt."""
        if not is_ours(item):
            return None
        if self._config.getoption("reruns", None) or item.get_closest_marker("flaky") is not None:
            item.stash[carry.WHY_NOT_AGAIN] = "pytest-rerunfailures may run its test again, and only one of the two can"
            return None
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        reports = runtestprotocol(item, log=False, nextitem=nextitem)
        shown = list(reports)
        made = item.stash.get(MADE, None)
        ended = [report.when for report in reports] == ["setup", "call", "teardown"] and reports[2].passed
        # it ran to its end, or to a regression that only the clock tells of
        if made is not None and made.doubts and ended and (reports[1].passed or made.failed_in_doubt):
            self._held.append(Held(item, reports[1:], made))
            shown = [] if carry.AGAIN in item.stash else [reports[0], carry.doubtful(reports[1])]
        for report in shown:
            item.ihook.pytest_runtest_logreport(report=report)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return True

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self, session: pytest.Session) -> Generator[None, object, object]:
        """Settle the doubts when all tests have run, or as many as may fail; else they are told as they are."""
        try:
            result = yield
        except BaseException as stopped:
            try:
                most = self._config.getoption("maxfail") or int(bool(self._config.getoption("stepwise", None)))
                is_by_failures = isinstance(stopped, (session.Failed, session.Interrupted))
                if is_by_failures and 0 < most <= session.testsfailed:  # and by no limit of its time
                    session._setupstate.teardown_exact(None)  # of the last test, which did not know that it was
                    self._confirm()
            finally:
                self._log_all("the run was stopped")
            raise
        self._confirm()
        if session.shouldfail:
            raise session.Failed(session.shouldfail)
        return result

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self) -> None:
        """Have ``--last-failed`` run again what was left in doubt."""
        cache = getattr(self._config, "cache", None)
        if self._left and cache is not None and not hasattr(self._config, "workerinput"):
            failed = cache.get("cache/lastfailed", {})
            cache.set("cache/lastfailed", {**failed, **dict.fromkeys(self._left, True)})

    def _confirm(self) -> None:
        from pytest_distbench.run.confirm import Allowance

        workers = getattr(self._config, "workerinput", {}).get("workercount", 1)
        budget_s = self._settings.confirm_budget_s / int(workers)
        budget = Allowance(budget_s)
        self._announce(self._held)
        is_first = True
        try:
            while self._held:
                self._held.sort(key=lambda test: -test.suspicion)
                test = self._held.pop(0)
                left_s = budget.left_s
                most_s = max(left_s, test.most_s if is_first else 0.0)
                settled = test.that_fit(left_s, most_s)
                if not settled and not test.is_suspicious:
                    test.log(why="")
                    continue
                left = f"the budget of {budget_s:g} s has {max(0.0, left_s):.0f} s left"
                why_not = f"it would take about {test.seconds():.0f} s, and {left}: --distbench-confirm=auto:SECONDS"
                is_first = False
                cases = sum(len(other.doubts) for other in [test, *self._held])
                others_s = sum(other.seconds() for other in self._held if other.is_suspicious)
                test.item.stash[carry.AGAIN] = test.again(
                    Allowance(most_s), budget, cases=cases, settled=settled, why_not=why_not, others_s=others_s
                )
                try:
                    self._config.hook.pytest_runtest_protocol(item=test.item, nextitem=None)
                except BaseException:
                    self._held.append(test)
                    raise
        finally:
            self._log_all("the run was stopped")

    def _announce(self, held: Sequence[Held]) -> None:
        reporter = self._config.pluginmanager.getplugin("terminalreporter")
        if not held or reporter is None or hasattr(self._config, "workerinput"):
            return
        budget_s = self._settings.confirm_budget_s
        begun = [test for test in held if test.is_suspicious or test.seconds() <= budget_s]
        reporter.ensure_newline()
        if not begun:
            cases, least_s = sum(len(test.doubts) for test in held), min(test.seconds() for test in held)
            reporter.write_line(
                f"distbench: {counted(cases, 'case')} too noisy to judge, and none can be confirmed by A/B: "
                f"that would take about {least_s:.0f} s, and --distbench-confirm allows {budget_s:g} s"
            )
            return
        doubts = [doubt for test in begun for doubt in test.doubts.values()]
        loud = sum(doubt.is_suspicious for doubt in doubts)
        quiet = len(doubts) - loud
        seconds = min(sum(doubt.likely_s for doubt in doubts), max(budget_s, begun[0].seconds()))
        what = [f"{loud} suspicious"] if loud else []
        what += [f"{quiet} noisy"] if quiet else []
        reporter.write_line(
            f"distbench: confirming {' and '.join(what)} {plural(len(doubts), 'case')} by A/B against the baseline "
            f"commit (budget {budget_s:g} s), about {seconds:.0f} s"
        )

    def _log_all(self, why: str) -> None:
        self._left += [test.item.nodeid for test in self._held if test.is_suspicious]
        while self._held:
            self._held.pop(0).log(why=why)
