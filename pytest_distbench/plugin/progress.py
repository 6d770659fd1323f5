"""One live line below pytest's own while ranks run, with what remains; on a pipe a plain line once a minute.

Nothing under -q, but for an update, which takes its time. What keeps a run waiting is told everywhere.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Mapping
from typing import TextIO, cast

import pytest

from pytest_distbench.report.texts.escape import escape
from pytest_distbench.report.texts.header import about

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
        """Whether ranks should report progress at all."""
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
        """Show a line of progress of the current test."""
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
        """The test is over: erase the line."""
        if self._is_drawn:
            self._draw("")
            self._is_drawn = False

    def _line(self, text: str, now: float) -> str:
        minutes, seconds = divmod(int(now - self._started), 60)
        return f"{self._words(text)}  {minutes:02}:{seconds:02}{self._remaining(now)}"

    def _words(self, text: str) -> str:
        return escape(f"{self._title}  {text}".replace("\n", " ")).replace("\t", " ")

    def _remaining(self, now: float) -> str:
        """The place of the running test among all, and how long they will take from now on."""
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
