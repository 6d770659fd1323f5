"""Run tests with suspicious cases again at the end, interleaved with their baseline commits.

Their reports are held back until then. So the most suspicious cases come first while the budget lasts, some time after
the noise that may have made them suspicious, and with new fixtures.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Sequence
from typing import TYPE_CHECKING

import pytest
from _pytest.runner import runtestprotocol

from pytest_distbench.plugin import carry
from pytest_distbench.plugin.fixtures import MADE, is_ours
from pytest_distbench.units import plural

if TYPE_CHECKING:
    from pytest_distbench.plugin.distbench import Distbench
    from pytest_distbench.run.against import Variant
    from pytest_distbench.run.confirm import Allowance, Rerun
    from pytest_distbench.run.request import Settings


class Held:
    """A test whose reports are held back until its suspicious or noisy cases are confirmed."""

    def __init__(self, item: pytest.Item, reports: Sequence[pytest.TestReport], made: Distbench) -> None:
        self.item = item
        self.reports = reports
        self.made = made
        self.suspects = dict(made.path.suspects)
        self.suspicion = max(suspect.result.suspicion for suspect in self.suspects.values())
        self.is_suspicious = any(suspect.is_suspicious for suspect in self.suspects.values())

    def seconds(self, keys: Collection[str] | None = None) -> float:
        """Expected seconds of the launches after which A/B is first judged, for these cases, by default for all."""
        return sum(self.suspects[key].takes_s for key in (self.suspects if keys is None else keys))

    def that_fit(self, left_s: float) -> Collection[str]:
        """Keys of the cases that can be confirmed in ``left_s``: all, the suspicious ones, or the most suspicious one.

        The most suspicious one comes with the cases that its number is derived from.
        """
        suspicious = [key for key, suspect in self.suspects.items() if suspect.is_suspicious]
        key = max(self.suspects, key=lambda key: self.suspects[key].result.suspicion)
        first = [key, *(source for source in self.suspects[key].made_of if source in self.suspects)]
        return next((keys for keys in (self.suspects, suspicious, first) if keys and self.seconds(keys) <= left_s), ())

    def log(self, *, why: str) -> None:
        from pytest_distbench.records.record import replace

        for report in self.reports:
            if texts := carry.texts_of(report):
                cases = carry.decode(texts)
                shown = [replace(c, unconfirmed=why) if c.case.key in self.suspects else c for c in cases]
                carry.attach_cases(report, shown)
            self.item.ihook.pytest_runtest_logreport(report=report)


def _failed_by_suspect(made: Distbench) -> bool:
    return any(
        result.outcome == "failed"
        and result.decision in ("failed", "unaccepted")
        and result.case.key in made.path.suspects
        for result in made.path.ended[-1:]
    )


class ConfirmPlugin:
    def __init__(self, config: pytest.Config, settings: Settings) -> None:
        self._config = config
        self._settings = settings
        self._held: list[Held] = []
        self._left: list[str] = []

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
        """Run a distbench test, and hold its reports back if it is suspicious."""
        if not is_ours(item):
            return None
        if self._config.getoption("reruns", None) or item.get_closest_marker("flaky") is not None:
            item.stash[carry.WHY_NO_RERUN] = "pytest-rerunfailures may run its test again, and only one of the two can"
            return None
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        reports = runtestprotocol(item, log=False, nextitem=nextitem)
        shown = list(reports)
        made = item.stash.get(MADE, None)
        ended = [report.when for report in reports] == ["setup", "call", "teardown"] and reports[2].passed
        # it ran to its end, or to a regression that timings alone speak for
        if made is not None and made.path.suspects and ended and (reports[1].passed or _failed_by_suspect(made)):
            self._held.append(Held(item, reports[1:], made))
            shown = [] if carry.RERUN in item.stash else [reports[0], carry.suspicious(reports[1])]
        for report in shown:
            item.ihook.pytest_runtest_logreport(report=report)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return True

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self, session: pytest.Session) -> Generator[None, object, object]:
        """Confirm after the last test, or the last failure that --maxfail allows; else report the cases as they are."""
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
        """Add tests that were left unconfirmed to those that ``--last-failed`` runs."""
        cache = getattr(self._config, "cache", None)
        if self._left and cache is not None and not hasattr(self._config, "workerinput"):
            failed = cache.get("cache/lastfailed", {})
            cache.set("cache/lastfailed", {**failed, **dict.fromkeys(self._left, True)})

    def _confirm(self) -> None:
        from pytest_distbench.run.confirm import Allowance

        workers = getattr(self._config, "workerinput", {}).get("workercount", 1)
        budget = Allowance(self._settings.confirm_budget_s / int(workers))
        self._announce(self._held)
        try:
            while self._held:
                self._held.sort(key=lambda test: -test.suspicion)
                test = self._held.pop(0)
                keys = test.that_fit(budget.left_s)
                if not keys and not test.is_suspicious:
                    test.log(why="")
                    continue
                test.item.stash[carry.RERUN] = self._rerun(test, keys, budget)
                try:
                    self._config.hook.pytest_runtest_protocol(item=test.item, nextitem=None)
                except BaseException:
                    self._held.append(test)
                    raise
        finally:
            self._log_all("the run was stopped")

    def _rerun(self, test: Held, keys: Collection[str], budget: Allowance) -> Rerun:
        """How a test is run again to confirm these cases; stored numbers decide its other suspicious cases."""
        from pytest_distbench.run.confirm import Rerun

        suspects = {key: suspect for key, suspect in test.suspects.items() if key in keys or suspect.is_suspicious}
        variants: dict[str, Variant] = {}
        for key in keys:
            variants |= dict.fromkeys([key, *suspects[key].made_of], suspects[key].variant)
        runs = {run.request.case.key: run for run in test.made.path.runs}
        left = f"the budget of {budget.seconds:g} s has {max(0.0, budget.left_s):.0f} s left"
        why_not = f"it would take about {test.seconds():.0f} s, and {left}: --distbench-confirm=auto:SECONDS"
        return Rerun(
            sources={key: run.source for key, run in runs.items() if run.request.launched is not None},
            results={key: run.judged for key, run in runs.items() if run.judged is not None},
            suspects=suspects,
            variants=variants,
            cases=sum(len(other.suspects) for other in [test, *self._held]),
            budget=budget,
            others_s=sum(other.seconds() for other in self._held if other.is_suspicious),
            left={key: why_not for key in suspects if key not in keys},
        )

    def _announce(self, held: Sequence[Held]) -> None:
        reporter = self._config.pluginmanager.getplugin("terminalreporter")
        if not held or reporter is None or hasattr(self._config, "workerinput"):
            return
        budget_s = self._settings.confirm_budget_s
        begun = [test for test in held if test.that_fit(budget_s)]
        reporter.ensure_newline()
        if type(reporter) is pytest.TerminalReporter:
            reporter.showfspath = reporter._show_progress_info = False  # each test has had its file and its share
        if not begun:
            cases, least_s = sum(len(test.suspects) for test in held), min(test.seconds() for test in held)
            has_suspicious = any(test.is_suspicious for test in held)
            which = "suspicious" if has_suspicious else "noisy"
            then = "; more launches are compared with stored numbers" if has_suspicious else ""
            reporter.write_line(
                f"distbench: no A/B for {cases} {which} {plural(cases, 'case')}: it would take about {least_s:.0f} s, "
                f"and --distbench-confirm allows {budget_s:g} s{then}"
            )
            return
        suspects = [suspect for test in begun for suspect in test.suspects.values()]
        suspicious = sum(suspect.is_suspicious for suspect in suspects)
        noisy = len(suspects) - suspicious
        seconds = min(sum(suspect.likely_s for suspect in suspects), budget_s)
        what = " and ".join(f"{n} {how}" for n, how in ((suspicious, "suspicious"), (noisy, "noisy")) if n)
        reporter.write_line(
            f"distbench: confirming {what} {plural(len(suspects), 'case')} by A/B against the baseline "
            f"commit (budget {budget_s:g} s), about {seconds:.0f} s"
        )

    def _log_all(self, why: str) -> None:
        self._left += [test.item.nodeid for test in self._held if test.is_suspicious]
        while self._held:
            self._held.pop(0).log(why=why)
