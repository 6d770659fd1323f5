"""What tests took in earlier runs, and one live line below pytest's own that says what remains while ranks run.

The first is kept in pytest's cache: it serves estimates alone, and may be lost. On a pipe the line is a plain one once
a minute; under -q there is none, but for an update, which takes its time. What keeps a run waiting is told everywhere.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TextIO, cast

import pytest

from pytest_distbench.report.texts.header import about
from pytest_distbench.report.texts.layout import escape

if TYPE_CHECKING:
    from pytest_distbench.plugin.carry import PassedTest
    from pytest_distbench.records.run import CaseResult
    from pytest_distbench.run.request import Settings
    from pytest_distbench.store.estimate import History, Took


_MOST_TESTS = 5000
"""Those that ran last: names of tests that were renamed leave in time."""


def name_in_history(nodeid: str, backend: str, launcher: str) -> str:
    """A test, by its full name, and what else decides how long it takes."""
    return f"{nodeid} {backend} {launcher}"


def read_history(config: pytest.Config) -> History:
    """What is known; nothing where the cache is off, or holds what we have not written: then the run's end tells it."""
    from pytest_distbench.errors import StoredFileError
    from pytest_distbench.store.estimate import History

    try:
        return _read(_path(config))
    except StoredFileError:
        return History()


def write_history(config: pytest.Config, settings: Settings, ran: Iterable[PassedTest]) -> str:
    """Add what the tests of this run took, those that passed: one that failed has made other launches.

    What of it is lost is returned in one line.
    """
    from pytest_distbench.errors import StoredFileError
    from pytest_distbench.records.record import replace
    from pytest_distbench.store.estimate import HISTORY_FILE, History

    if settings.attach is not None:
        return ""
    known, lost = History(), ""
    try:
        path = _path(config)
        if path is None:
            return ""
        try:
            known = _read(path)
        except StoredFileError as error:
            lost = f"what earlier runs took is lost, and written anew: {error}"
        tests, start_s = dict(known.tests), 0.0
        for test in ran:
            first = test.cases[0]
            name = name_in_history(first.nodeid, first.case.conditions.backend, settings.launcher)
            starts = [launch.phases.get("launcher", 0.0) for case in test.cases for launch in case.launches]
            start_s = max([start_s, *starts])
            tests[name] = _took(settings, tests.pop(name, None), test.cases, test.seconds - sum(starts))
        if lost or tests != known.tests:
            kept = dict(list(tests.items())[-_MOST_TESTS:])
            HISTORY_FILE.write(path, replace(known, start_s=start_s or known.start_s, tests=kept))
    except StoredFileError as error:
        return f"what the tests took is not kept: {error}"
    return lost


def _path(config: pytest.Config) -> Path | None:
    """The file in pytest's cache, whose folder is made; None where that is off."""
    from pytest_distbench.errors import StoredFileError
    from pytest_distbench.store.estimate import HISTORY_FILE

    cache = getattr(config, "cache", None)
    if cache is None:
        return None
    try:
        return Path(cache.mkdir("distbench")) / "took.json"
    except OSError as error:
        where = Path(error.filename or config.getini("cache_dir"))
        raise StoredFileError(where, f"cannot write: {error.strerror or error}", HISTORY_FILE.where) from error


def _read(path: Path | None) -> History:
    from pytest_distbench.store.estimate import HISTORY_FILE, History

    return HISTORY_FILE.read(path) if path is not None and path.exists() else History()


def _took(settings: Settings, before: Took | None, cases: Sequence[CaseResult], seconds: float) -> Took:
    from pytest_distbench.judging.entry import FEWEST_LAUNCHES
    from pytest_distbench.judging.screening import FEWEST_EXACT
    from pytest_distbench.records.choices import ELASTIC_BASELINE_LAUNCHES
    from pytest_distbench.records.record import replace
    from pytest_distbench.run.pacing import SPACING_S, is_restless
    from pytest_distbench.store.estimate import KEPT_RUNS, Took, sort_of_run

    looks = settings.against.looks if settings.against is not None else ()
    launches = settings.update_launches if any(case.update for case in cases) else settings.launches
    sort = sort_of_run(launches, (looks[0], looks[-1]) if looks else None)
    runs = dict(before.runs) if before is not None else {}
    runs[sort] = [*runs.get(sort, []), round(max(seconds, 0.0), 2)][-KEPT_RUNS:]
    if looks and before is not None:
        return replace(before, runs=runs)  # a launch beside another one tells less than one alone
    once = more = 0.0
    fewest, scatters = FEWEST_EXACT, False
    for case in cases:
        last = case.launches[-1]
        wall_s = max(0.0, last.wall_s - last.phases.get("launcher", 0.0)) / (2 if looks else 1)
        once += wall_s
        more += max(wall_s, SPACING_S) if wall_s and is_restless(last) else wall_s
        if any(verdict.is_noisy for verdict in case.verdicts):
            is_elastic = bool(case.case.conditions.engine)
            fewest = max(fewest, ELASTIC_BASELINE_LAUNCHES if is_elastic else FEWEST_LAUNCHES)
            scatters = scatters or not is_elastic
    return Took(launch_s=round(once, 2), more_s=round(more, 2), fewest=fewest, scatters=scatters, runs=runs)


REDRAW_S = 0.1
PLAIN_INTERVAL_S = 60.0


def pace(elapsed_s: float, planned_s: float, total_s: float) -> float:
    """How much longer the rest of a run will take than expected, as a factor.

    The tests so far tell little of the others while they are a small part of all: their share of what is expected is
    the weight of what they took.
    """
    return 1.0 + (elapsed_s - planned_s) / total_s if total_s > 0 else 1.0


def remaining_s(expected: Mapping[str, float], begun: Mapping[str, float], now: float) -> float:
    """Seconds until all tests have run, if the others differ from what is expected of them as those before did.

    By name there are the seconds of each test, 0 where nothing is known, and when each has begun; the last one runs.
    """
    *done, running = begun
    elapsed = begun[running] - next(iter(begun.values()))
    factor = pace(elapsed, sum(expected[name] for name in done), sum(expected.values()))
    rest = sum(seconds for name, seconds in expected.items() if name not in begun)
    return factor * rest + max(0.0, factor * expected[running] - (now - begun[running]))


class Countdown:
    """A plain line once a minute, of what remains of a run whose tests report from the workers of pytest-xdist.

    The first of all tests began at a moment of CLOCK_MONOTONIC.
    """

    def __init__(self, began_at: float) -> None:
        self._began_at = self._told_at = began_at
        self._tests = 0
        self._done_s = 0.0

    def line(self, expected_s: float, total_s: float, tests: int) -> str:
        """What to tell when another test has ended, of which so much was expected; empty: nothing yet."""
        now = time.monotonic()
        self._tests += 1
        self._done_s += expected_s
        if now - self._told_at < PLAIN_INTERVAL_S:
            return ""
        self._told_at = now
        left = (total_s - self._done_s) * pace(now - self._began_at, self._done_s, total_s)
        return f"distbench: {self._tests} of {tests} tests" + (f", about {about(left)} left" if left > 0 else "")


class Progress:
    """Shows what the running test is doing, and erases it again.

    On a terminal the line is drawn with relative cursor moves, so that it survives scrolling and leaves pytest's own
    line alone; with another reporter than pytest's (pytest-sugar) it stays off, as under -q and in xdist workers.
    """

    def __init__(self, config: pytest.Config) -> None:
        self._reporter = config.pluginmanager.getplugin("terminalreporter")
        self._capture = config.pluginmanager.getplugin("capturemanager")
        exact = self._reporter is not None and type(self._reporter) is pytest.TerminalReporter
        self._is_worker = hasattr(config, "workerinput")
        is_told = config.get_verbosity() >= 0 or bool(config.getoption("distbench_update", None))
        visible = exact and is_told and not self._is_worker
        is_terminal = visible and bool(self._reporter.isatty)
        is_ours = config.getoption("capture") != "no" and not config.getoption("distbench_attach", None)
        self._live = is_terminal and is_ours
        self._plain = visible and not is_terminal
        self._title = ""
        self._started = self._drawn_at = self._plain_at = time.monotonic()
        self._is_drawn = False
        self._expected: Mapping[str, float] = {}
        self._begun: dict[str, float] = {}

    def expect(self, expected: Mapping[str, float]) -> None:
        """Tests that will be measured, by name, with the seconds they are expected to take."""
        self._expected = expected

    def expectation(self, name: str) -> tuple[float, float, int]:
        """What a test is expected to take, what all of them are, and how many these are."""
        return self._expected.get(name, 0.0), sum(self._expected.values()), len(self._expected)

    @property
    def wants_events(self) -> bool:
        return self._live or self._plain

    def begin(self, title: str, name: str = "") -> None:
        """A test begins to measure: its title is shown, its name is as in :meth:`expect`."""
        now = time.monotonic()
        if not self._begun:
            self._plain_at = now
        self._title, self._started = title, now
        if name in self._expected:
            self._begun[name] = now

    def show(self, text: str) -> None:
        now = time.monotonic()
        if self._live and now - self._drawn_at >= REDRAW_S:
            self._drawn_at = now
            self._draw(self._line(text, now))
        elif self._plain and now - self._plain_at >= PLAIN_INTERVAL_S:
            self._plain_at = now
            self._write(f"\ndistbench: {self._line(text, now)}\n")

    def announce(self, text: str) -> None:
        """Show at once what the run waits for, under -q and in a worker of pytest-xdist too."""
        if self._live:
            self._draw(self._words(text))
        else:
            self._write(f"\ndistbench: {self._words(text)}\n")

    def show_output(self, rank: int, line: str) -> None:
        """Show a line a rank has printed (-s)."""
        self._write(f"[rank {rank}] {escape(line)}\n")

    def end(self) -> None:
        if self._is_drawn:
            self._draw("")
            self._is_drawn = False

    def _line(self, text: str, now: float) -> str:
        minutes, seconds = divmod(int(now - self._started), 60)
        return f"{self._words(text)}  {minutes:02}:{seconds:02}{self._remaining(now)}"

    def _words(self, text: str) -> str:
        return escape(f"{self._title}  {text}".replace("\n", " ")).replace("\t", " ")

    def _remaining(self, now: float) -> str:
        if not self._begun:
            return ""
        number = f"  (test {len(self._begun)} of {len(self._expected)}"
        left = remaining_s(self._expected, self._begun, now)
        return f"{number}, about {about(left)} left)" if left else f"{number})"

    def _draw(self, line: str) -> None:
        writer = self._reporter._tw
        column = writer.width_of_current_line
        shown = line[: max(0, writer.fullwidth - 4)]
        right = f"\x1b[{column}C" if column else ""
        self._is_drawn = True
        self._write(f"\n\r\x1b[2K{'  ' + shown if shown else ''}\x1b[1A\r{right}")

    def _write(self, text: str) -> None:
        with contextlib.nullcontext() if self._capture is None else self._capture.global_and_fixture_disabled():
            self._file.write(text)
            self._file.flush()

    @property
    def _file(self) -> TextIO:
        """What the reporter of a worker of pytest-xdist writes goes nowhere; its stderr is that of the whole run."""
        if self._is_worker or self._reporter is None:
            return sys.stderr
        return cast("TextIO", self._reporter._tw._file)
