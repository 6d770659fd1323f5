"""What tests took in earlier runs, and one live line below pytest's own that says what the running one is at.

The first is kept in pytest's cache: it serves estimates alone, and may be lost. On a pipe the line is a plain one once
a minute; under -q there is none, but for an update, which takes its time. What keeps a run waiting is told everywhere.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, TextIO, cast

import pytest

from pytest_distbench.report.texts.layout import escape

if TYPE_CHECKING:
    from pytest_distbench.plugin.carry import PassedTest
    from pytest_distbench.run.request import Settings


_CACHE = "distbench/took"
_MOST_TESTS = 5000
"""Those that ran last: names of tests that were renamed leave in time."""
KEPT_RUNS = 3
"""Of each sort of run: one that another job disturbed does not decide alone."""


def name_in_history(nodeid: str, backend: str, settings: Settings, launches: int | None) -> str:
    """A test, by its full name, and what else decides how long it takes; None: as many launches as an update needs."""
    sort = "against" if settings.against is not None else "update" if launches is None else str(launches)
    return f"{nodeid} {backend} {settings.launcher} {sort}"


def read_history(config: pytest.Config) -> dict[str, list[float]]:
    """Seconds of the last runs by name; nothing where the cache is off, or holds what we have not written."""
    import msgspec

    cache = getattr(config, "cache", None)
    try:
        return msgspec.convert(cache.get(_CACHE, {}) if cache is not None else {}, dict[str, list[float]])
    except msgspec.ValidationError:
        return {}


def write_history(config: pytest.Config, settings: Settings, ran: Iterable[PassedTest]) -> None:
    """Add what the tests of this run took, those that passed: one that failed has made other launches."""
    cache = getattr(config, "cache", None)
    if cache is None or settings.attach is not None:
        return
    before = read_history(config)
    found = dict(before)
    for test in ran:
        first = test.cases[0]
        launches = settings.update_launches if any(case.update for case in test.cases) else settings.launches
        name = name_in_history(first.nodeid, first.case.conditions.backend, settings, launches)
        found[name] = [*found.pop(name, []), round(max(test.seconds, 0.0), 2)][-KEPT_RUNS:]
    if found != before:
        cache.set(_CACHE, dict(list(found.items())[-_MOST_TESTS:]))


REDRAW_S = 0.1
PLAIN_INTERVAL_S = 60.0


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

    @property
    def wants_events(self) -> bool:
        return self._live or self._plain

    def begin(self, title: str) -> None:
        """A test begins to measure: its title is shown."""
        self._title, self._started = title, time.monotonic()

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
        return f"{self._words(text)}  {minutes:02}:{seconds:02}"

    def _words(self, text: str) -> str:
        return escape(f"{self._title}  {text}".replace("\n", " ")).replace("\t", " ")

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
