"""One live line below pytest's own while ranks run; on a pipe a plain line once a minute; nothing under -q.

What keeps a run waiting is told everywhere.
"""

from __future__ import annotations

import contextlib
import sys
import time
from typing import TextIO, cast

import pytest

from pytest_distbench.report.escape import escape

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
        visible = exact and config.get_verbosity() >= 0 and not self._is_worker
        is_terminal = visible and bool(self._reporter.isatty)
        is_ours = config.getoption("capture") != "no" and not config.getoption("distbench_attach", None)
        self._live = is_terminal and is_ours
        self._plain = visible and not is_terminal
        self._title = ""
        self._started = self._drawn_at = self._plain_at = time.monotonic()
        self._is_drawn = False

    @property
    def wants_events(self) -> bool:
        """Whether ranks should report progress at all."""
        return self._live or self._plain

    def begin(self, title: str) -> None:
        """A test begins to measure."""
        self._title = title
        self._started = self._plain_at = time.monotonic()

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
