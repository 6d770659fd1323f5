"""Collect the cases from the test reports and write them at the end: summary, run record, GitHub.

Cases come from reports, not from the session, because a pytest-xdist controller measures nothing itself.
"""

from __future__ import annotations

import functools
import os
import shlex
import time
from collections.abc import Generator, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_distbench.plugin import carry
from pytest_distbench.plugin.fixtures import STATE, settings_of
from pytest_distbench.plugin.names import test_and_id

if TYPE_CHECKING:
    from pytest_distbench.records.case import BaselineName
    from pytest_distbench.records.reasons import Severity
    from pytest_distbench.records.run import CaseResult, Finding, RunRecord
    from pytest_distbench.report import Line
    from pytest_distbench.run.request import Settings

_COLOURS: Mapping[Severity, dict[str, bool]] = {"plain": {}, "doubt": {"yellow": True}, "failure": {"red": True}}

_COLLECTED = "distbench_collected"
"""Key under which a pytest-xdist worker sends its controller the number of deselected tests, the slow tests, all
collected tests, and the files that could be collected."""


class ResultsPlugin:
    """Hooks that need the state of the run, as a pytest plugin of its own."""

    def __init__(self, config: pytest.Config) -> None:
        self._state = config.stash[STATE]
        self._config = config
        self._started, self._began = time.time(), time.perf_counter()
        self._attempts = carry.Attempts()
        self._trouble: list[str] = []
        self._deselected = 0
        self._collected: set[str] = set()
        self._begun: set[str] = set()
        self._ended: set[str] = set()
        self._reported: set[str] = set()
        self._seen: dict[tuple[str, str], bool] = {}
        self._slow: dict[str, tuple[str, str]] = {}
        self._whole: set[str] = set()
        self._missing: dict[BaselineName, str] = {}
        self._unused: list[BaselineName] | None = None
        self._pruned = False
        self._why_not_pruned = ""
        self._interrupted_by: BaseException | None = None
        self._failed: set[str] = set()

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionstart(self) -> None:
        """Start the time of the run, when pytest starts its own."""
        self._started, self._began = time.time(), time.perf_counter()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> Generator[None]:
        before = len(items)
        yield
        self._slow = {item.nodeid: test_and_id(item) for item in self._state.slow}
        # by any plugin, reported or not
        self._deselected = before - len(items) - len(self._state.slow)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self._collected.update(item.nodeid for item in session.items)
        if hasattr(self._config, "workeroutput"):
            made = {test: sorted(ids) for test, ids in self._state.collected.items()}
            self._config.workeroutput[_COLLECTED] = self._deselected, self._slow, made, sorted(self._whole)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: list[str]) -> None:
        self._collected.update(ids)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        deselected, slow, made, whole = getattr(node, "workeroutput", {}).get(_COLLECTED, (0, {}, {}, ()))
        self._deselected += deselected
        self._slow.update(slow)
        self._whole.update(whole)
        for test, ids in made.items():
            self._state.collected.setdefault(test, set()).update(ids)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._begun.add(nodeid)

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self._ended.add(nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._attempts.take(report)
        self._reported.add(report.nodeid)
        if report.failed:
            self._failed.add(report.nodeid)
        if name := carry.test_of(report):
            test, case_id = name
            self._seen[test, case_id] = self._seen.get((test, case_id), True) and not report.skipped

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._failed.add(report.nodeid)
        elif report.nodeid.endswith(".py"):
            self._whole.add(report.nodeid)

    @pytest.hookimpl(tryfirst=True)
    def pytest_keyboard_interrupt(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        if self._state.interrupts is not None:
            self._state.interrupts.hold_on()
        self._interrupted_by = excinfo.value

    @property
    def results(self) -> list[CaseResult]:
        """All cases of the run, once it is over."""
        return self._results

    @functools.cached_property
    def _results(self) -> list[CaseResult]:
        if not (cases := self._attempts.cases()):
            return cases
        from pytest_distbench.records.run import told_apart

        return told_apart(cases)

    @functools.cached_property
    def _remarks(self) -> list[Finding]:
        from pytest_distbench.judging.remarks import remarks

        return remarks(self._results)

    @property
    def _of_the_judge(self) -> list[Finding]:
        from pytest_distbench.judging.remarks import of_the_judge

        variant = self._state.against
        if variant is None or variant.judged is None:
            return []
        return [of_the_judge(str(variant), self._state.not_used, has_failed=bool(self._failed))]

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if hasattr(self._config, "workerinput"):
            return
        settings = self._settings()
        if settings is None or self._config.option.collectonly:
            return
        if settings.gpu and not self._results and session.exitstatus == pytest.ExitCode.OK:
            self._trouble.append(
                "--gpu was given and nothing was measured: every test was skipped, deselected or not ours"
            )
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        self._find_unused(settings, session)  # first: what is missing makes the run a failed one
        self._find_missing(settings, session)
        if settings.json is not None or settings.report is not None:
            self._write_files(settings, session)
        if (summary := os.environ.get("GITHUB_STEP_SUMMARY")) is not None and self._results:
            from pytest_distbench.errors import TableError
            from pytest_distbench.report.formats import append_summary

            try:
                append_summary(Path(summary), self._results, besides=self._failed_besides)
            except (OSError, TableError) as error:
                self._trouble.append(f"cannot write GITHUB_STEP_SUMMARY: {error}")
        if self._interrupted_by is not None:
            from pytest_distbench.errors import Terminated
            from pytest_distbench.plugin.progress import TERMINATED

            if isinstance(self._interrupted_by, Terminated):
                session.exitstatus = TERMINATED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        settings = None if self._config.option.collectonly else self._settings()
        is_cut_short = self._interrupted_by is not None and settings is not None and settings.update is not None
        is_gate = settings is not None and settings.fake_rank is not None
        if settings is not None and (
            self._results or self._trouble or is_cut_short or settings.report or settings.judge == "base" or is_gate
        ):
            from pytest_distbench.report import escape, formats

            terminalreporter.currentfspath = None  # pytest has ended its line
            terminalreporter.section("distbench", sep="-")
            for line in self._lines(settings, is_cut_short=is_cut_short):
                terminalreporter.write_line(escape(line.text), **_COLOURS[line.severity])
            runs_there = os.environ.get("GITHUB_ACTIONS") == "true"
            for command in formats.workflow_commands(self._results) if runs_there else ():
                terminalreporter.write_line(command)
        if self._slow and self._config.pluginmanager.hasplugin("dsession"):  # whose controller prints no header
            from pytest_distbench.plugin.progress import slow_text

            terminalreporter.write_line(f"distbench: {slow_text(len(self._slow))}")

    def _lines(self, settings: Settings, *, is_cut_short: bool) -> Iterator[Line]:
        from pytest_distbench import git
        from pytest_distbench.launch.starters import LAUNCHERS
        from pytest_distbench.plugin.names import next_commands
        from pytest_distbench.report import Line
        from pytest_distbench.report.terminal import (
            interrupted_lines,
            judged_nothing,
            missing_lines,
            sentence,
            summary_lines,
            unused_lines,
        )
        from pytest_distbench.store.baselines import Baselines

        config, folder = self._config, _shorten(settings.baselines, self._config)
        may_compare = LAUNCHERS[settings.launcher].holds_two and settings.fake_rank is None
        yield from summary_lines(
            self._results,
            self._remarks,
            verbosity=config.get_verbosity(),
            commands=next_commands(
                config, folder, [r.case.test.partition("::")[0] for r in self._results], may_compare=may_compare
            ),
            folder=folder,
            took_s=time.perf_counter() - self._began,
        )
        if not self._results and settings.fake_rank is not None:
            yield Line(judged_nothing([]), "doubt")
        for found in self._of_the_judge:
            yield from (Line(found.reason), *(Line(f"  {line}") for line in found.differences))
        recorded = next((result for result in self._results if result.is_written), None)
        store = Baselines(settings.baselines, "" if recorded is None else recorded.environment.platform)
        if recorded and (ignored := git.why_ignored(store.path(recorded.case.test, recorded.case.key))):
            yield Line(
                f"? git ignores the baselines that were recorded ({ignored}): git add would leave them out, and nobody "
                "else would compare with them; take them out of that rule, or commit them with git add --force",
                "doubt",
            )
        fails = settings.update is None
        yield from missing_lines(self._missing, self._results, folder=folder, fails=fails)
        yield from unused_lines([n for n in self._unused or [] if n not in self._missing], pruned=self._pruned)
        if settings.prune and self._why_not_pruned:
            yield Line(f"nothing was pruned: {self._why_not_pruned}", "doubt")
        if settings.attach is not None:
            yield Line(f"rank {settings.attach} had the terminal: nothing was judged or stored")
        if (variant := self._state.against) is not None and variant.is_itself:
            yield Line(
                f"? {variant} is what is checked out here, and no tracked file differs: it was compared with itself, "
                "and no change could have been found",
                "doubt",
            )
        yield from (Line(f"distbench: {trouble}", "failure") for trouble in self._trouble)
        if is_cut_short:
            words = ["pytest", *map(str, config.invocation_params.args)]
            command = shlex.join(words) if settings.update == "new" else ""
            left, running = self._collected - self._begun, self._begun - self._ended
            yield from interrupted_lines(self._results, running=len(running), left=len(left), command=command)
        files = (("run record", settings.json), ("report", settings.report))
        written = [f"{what}: {_shorten(path, config)}" for what, path in files if path is not None]
        if not self._trouble and (self._results or written or is_cut_short):
            yield sentence(self._results, missing=len(self._missing) * fails, where="   ".join(written))

    def _settings(self) -> Settings | None:
        return settings_of(self._config) if self._attempts or self._state.settings is not None else None

    def _find_missing(self, settings: Settings, session: pytest.Session) -> None:
        from pytest_distbench.store.baselines import Baselines
        from pytest_distbench.store.entries import missing_baselines

        if settings.is_paired or not settings.judges or settings.prune or settings.fake_rank is not None:
            return
        given = [Path(self._config.invocation_params.dir, str(argument)).resolve() for argument in self._config.args]

        # tests of another root directory with the same baseline directory have other names: they may exist
        is_own_store = settings.baselines.resolve().is_relative_to(self._config.rootpath.resolve())

        def is_whole(path: Path) -> bool:
            if not any(path.is_relative_to(argument) for argument in given):  # an argument with :: is above no file
                return False
            is_collected = os.path.relpath(path, self._config.rootpath) in self._whole
            return is_collected or (is_own_store and not path.exists())

        for platform in dict.fromkeys(result.environment.platform for result in self._results):
            self._missing |= missing_baselines(
                Baselines(settings.baselines, platform),
                [result for result in self._results if result.environment.platform == platform],
                made=self._state.collected,
                rootpath=self._config.rootpath,
                is_whole=is_whole,
            )
        if self._missing and settings.update is None:
            session.exitstatus = session.exitstatus or pytest.ExitCode.TESTS_FAILED

    def _find_unused(self, settings: Settings, session: pytest.Session) -> None:
        """Find the baselines that no test used, if the whole suite ran, and delete them under --distbench-prune."""
        from pytest_distbench.errors import StoredFileError
        from pytest_distbench.plugin.names import why_partial
        from pytest_distbench.store.baselines import Baselines
        from pytest_distbench.store.entries import unused_baselines

        unreported = len(self._collected - self._reported)
        self._why_not_pruned = why_partial(
            self._config, session, deselected=self._deselected, unreported=unreported
        ) or ("" if self._results else "nothing was measured")
        if self._why_not_pruned:
            return
        self._unused = []
        try:
            for platform in dict.fromkeys(result.environment.platform for result in self._results):
                store = Baselines(settings.baselines, platform)
                unused = unused_baselines(
                    store,
                    [result for result in self._results if result.environment.platform == platform],
                    reported={nodeid.partition("::")[0] for nodeid in (*self._reported, *self._slow)},
                    seen={**dict.fromkeys(self._slow.values(), False), **self._seen},
                    rootpath=self._config.rootpath,
                    roots=[
                        Path(self._config.invocation_params.dir, str(given)).resolve() for given in self._config.args
                    ],
                )
                self._unused += unused
                if settings.prune:
                    for name in unused:
                        store.delete(name.test, name.key)
                    self._pruned = True
        except StoredFileError as error:
            self._trouble.append(str(error))
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def _write_files(self, settings: Settings, session: pytest.Session) -> None:
        from pytest_distbench.errors import StoredFileError
        from pytest_distbench.store.files import write_run_record

        record = self._record(settings, session)
        try:
            if settings.json is not None:
                write_run_record(settings.json, record)
            if settings.report is not None:
                from pytest_distbench.report.page.content import page_of, write_page
                from pytest_distbench.report.tables import tables_of
                from pytest_distbench.store.files import replace_file

                tables, errors = tables_of(record)
                self._trouble += map(str, errors)
                next_step = "Give --distbench-report or --distbench-out a writable place"
                with replace_file(settings.report, next_step=next_step) as out:
                    write_page(page_of(record, tables), out)
        except StoredFileError as error:
            self._trouble.append(str(error))
            if session.exitstatus == pytest.ExitCode.OK:
                session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def _record(self, settings: Settings, session: pytest.Session) -> RunRecord:
        from datetime import UTC, datetime

        from pytest_distbench import git
        from pytest_distbench.machine.hardware import host_name, mask_addresses
        from pytest_distbench.machine.secrets import mask_arguments, mask_secrets, mask_text
        from pytest_distbench.plugin.names import record_arguments
        from pytest_distbench.plugin.settings import given_options, judged_by
        from pytest_distbench.records.run import RunRecord, number_hosts
        from pytest_distbench.releases import own_version
        from pytest_distbench.store.files import SCHEMA

        given = mask_secrets(given_options(self._config))
        arguments = [str(argument) for argument in self._config.invocation_params.args]
        commands = [shlex.join(["pytest", *mask_arguments(a)]) for a in (arguments, record_arguments(self._config))]
        results, judged = self._results, judged_by(self._config)
        tree = self._config.rootpath if judged is None else Path(judged.root)
        if "addresses" not in given:
            results = [number_hosts(result) for result in results]
            given = {name: mask_addresses(value) for name, value in given.items()}
            commands = [mask_addresses(command) for command in commands]
        return RunRecord(
            schema=SCHEMA,
            distbench=own_version(),
            started=datetime.fromtimestamp(self._started, UTC).isoformat(timespec="seconds"),
            duration_s=time.perf_counter() - self._began,
            commit=git.describe_commit(tree),
            branch=mask_text(git.describe_branch(tree)),
            pull_request=git.pull_request(),
            host=host_name() if "addresses" in given else "",
            command=commands[0],
            record_command=commands[1],
            was_interrupted=self._interrupted_by is not None or session.exitstatus == pytest.ExitCode.INTERRUPTED,
            failed_besides=self._failed_besides,
            settings=given,
            experiment=settings.stated,
            world_sizes=list(settings.world_sizes),
            gpu=settings.gpu,
            results=results,
            remarks=[*self._remarks, *self._of_the_judge],
            missing=list(self._missing),
            unused=self._unused,
        )

    @property
    def _failed_besides(self) -> int:
        return len(self._failed - {result.nodeid for result in self._results if result.outcome == "failed"})


def _shorten(path: Path, config: pytest.Config) -> Path:
    try:
        return path.relative_to(config.invocation_params.dir)
    except ValueError:
        return path
