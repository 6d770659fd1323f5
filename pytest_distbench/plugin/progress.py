"""The progress of a run: its expected duration, one live line about the running test, and Ctrl-C.

On a pipe, and under pytest-xdist, a plain line is printed after 10 s and then every 30 s; under -q only in an update.
Reasons for waiting are printed always. A run that has started processes cleans up at Ctrl-C and SIGTERM.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any, TextIO, cast

import pytest

from pytest_distbench.errors import Terminated
from pytest_distbench.launch.starters import how_started
from pytest_distbench.records.case import BaselineEntry
from pytest_distbench.records.environment import Environment
from pytest_distbench.releases import own_version
from pytest_distbench.report import escape
from pytest_distbench.store.baselines import Baselines
from pytest_distbench.units import about, counted

if TYPE_CHECKING:
    from pytest_distbench.run.request import Settings


def expected_s(baselines: Iterable[BaselineEntry], launches: int | None) -> float | None:
    """The expected seconds of a test by the median launches of its baselines, or None if one is unknown.

    Args:
        baselines: baselines of the test's cases on this platform.
        launches: number for each case, or None for as many as are stored.
    """
    found = [(known.launch_s, max(map(len, known.metrics.values()), default=1)) for known in baselines]
    known = [launch_s * (stored if launches is None else launches) for launch_s, stored in found if launch_s]
    return sum(known) if known and len(known) == len(found) else None


def duration_text(tests: Sequence[float | None], *, slow: Sequence[float | None] = (), confirm_s: float = 0.0) -> str:
    """Write the expected duration of the tests that have baselines.

    Args:
        tests: expected seconds of each test that runs, or None if unknown.
        slow: expected seconds of each deselected slow test, or None if unknown.
        confirm_s: the most seconds that confirmation adds, 0 without confirmation.
    """
    from pytest_distbench.run.confirm import START_S  # late: it imports how trainings are judged

    lines = []
    if known := [seconds for seconds in tests if seconds is not None]:
        of = "" if len(known) == len(tests) else f" for {len(known)} of them, which have baselines"
        lines = [f"{counted(len(tests), 'test')}, about {about(START_S + sum(known))}{of}"]
        if confirm_s:
            lines[0] += f", and up to {about(confirm_s)} to confirm suspicious timings"
    elif tests:
        lines = [f"{counted(len(tests), 'test')}; how long they take is known once they have baselines"]
    if slow:
        seconds = [each for each in slow if each is not None]
        lines.append(slow_text(len(slow), START_S + sum(seconds) if len(seconds) == len(slow) else None))
    return "; ".join(lines)


def slow_text(tests: int, seconds: float | None = None) -> str:
    takes = f" in about {about(seconds)}" if seconds is not None else ""
    return f"{counted(tests, 'slow test')} deselected (--distbench-full runs them{takes})"


def header_lines(
    environment: Environment, store: Baselines, settings: Settings, *, against: str, duration: str, record: str
) -> list[str]:
    """The lines of the header: the ranks and devices, notes on GPUs and a shared host, the baselines, the duration.

    Args:
        against: the other side of A/B, or "".
        duration: the expected duration, or "".
        record: the command that records baselines, or "" if no test needs any.
    """
    gpus = settings.gpus
    sizes = ", ".join(map(str, settings.world_sizes))
    count = len(gpus.visible)
    devices = counted(count, "GPU") if count else f"{environment.cores} CPU cores"
    torch = environment.software["torch"]
    ranks = f"world size {sizes}, {', '.join(settings.backends)}, ranks {how_started(settings.launcher)}"
    first = f"distbench {own_version()}: {ranks}, {devices} ({environment.device}), torch {torch}"
    missing = [f"distbench: not used: {reason}" for reason in gpus.unreadable]
    missing += [f"distbench: note: {remark}" for remark in gpus.remarks]
    if environment.shares_host:
        missing.append("distbench: note: the host is shared (--distbench-share=host): CPU clocks are others' too")
    stored = sum(1 for _ in store.files())
    compared = f"baselines {store.folder / store.platform} ({counted(stored, 'case')})"
    if not stored:
        compared = f"no baselines for this platform yet ({store.folder / store.platform})"
        if not settings.update:
            compared += f"; a second run compares once they are recorded:  {record}"
    if against:
        compared = f"interleaved A/B against {against}; stored baselines are not used"
    if settings.control is not None:
        is_usual = settings.control == "tolerance"
        control = "a third more than its tolerance" if is_usual else f"{float(settings.control) * 100:.3g} %"
        compared += f"; a slowdown is injected into every case ({control}): nothing is judged or stored"
    lines = [first, *missing, *([f"distbench: {compared}"] if record or against else [])]
    if duration:
        lines.append(f"distbench: {duration}")
    if settings.update:
        launches = f"up to {settings.max_launches} launches a case, as its noise needs"
        if (number := settings.update_launches) is not None:
            launches = f"{counted(number, 'launch')} a case"
        lines.append(f"distbench: recording baselines (update={settings.update}): {launches}")
    return lines


REDRAW_S = 0.1
SLOW_START_S = 5.0
PLAIN_FIRST_S, PLAIN_INTERVAL_S = 10.0, 30.0


class ProgressLine:
    """The live line: what the running test is doing.

    On a terminal the line is drawn with relative cursor moves, so that it survives scrolling and leaves pytest's own
    line alone; with another reporter than pytest's (pytest-sugar) it stays off, as under -q.
    """

    def __init__(self, config: pytest.Config) -> None:
        self._reporter = config.pluginmanager.getplugin("terminalreporter")
        self._capture = config.pluginmanager.getplugin("capturemanager")
        exact = self._reporter is not None and type(self._reporter) is pytest.TerminalReporter
        self._is_worker = hasattr(config, "workerinput")
        is_shown = config.get_verbosity() >= 0 or bool(config.getoption("distbench_update", None))
        visible = exact and is_shown and not self._is_worker
        is_terminal = visible and bool(self._reporter.isatty)
        is_ours = config.getoption("capture") != "no" and not config.getoption("distbench_attach", None)
        self._live = is_terminal and is_ours
        self._plain = (visible and not is_terminal) or (is_shown and self._is_worker)
        self._title = self._text = self._before = ""
        self._started = self._drawn_at = time.monotonic()
        self._plain_at = self._started - PLAIN_INTERVAL_S + PLAIN_FIRST_S
        self._is_drawn = False

    @property
    def wants_events(self) -> bool:
        return self._live or self._plain

    def begin(self, title: str) -> None:
        self._title, self._text, self._before, self._started = title, "", "", time.monotonic()

    def show(self, text: str) -> None:
        """Show what the test is doing now; an empty text means that it still does the same."""
        now = time.monotonic()
        if text not in ("", self._text):
            self._before, self._text = self._text, text
        if self._live and now - self._drawn_at >= REDRAW_S:
            self._drawn_at = now
            self._draw(self._line(self._text, now))
        elif self._plain and now - self._plain_at >= PLAIN_INTERVAL_S:
            self._plain_at = now
            self._write(f"\ndistbench: {self._line(self._text, now)}\n")

    def announce(self, text: str) -> None:
        if self._live:
            self._draw(self._words(text))
        else:
            self._write(f"\ndistbench: {self._words(text)}\n")

    def loaded(self, seconds: float) -> None:
        """Start the time of the test when ranks can start, and report a long start on a line of its own."""
        self._text, self._started = self._before, time.monotonic()
        if seconds < SLOW_START_S or not self.wants_events:
            return
        text = f"distbench: loading torch took {about(seconds)}\n"
        if self._live:  # above pytest's line, for which the live line below it makes room
            self._draw("")
            self._write(f"\r\x1b[1L{text}\r{self._to_column}")
        else:
            self._plain_at = self._started
            self._write(f"\n{text}")

    def show_output(self, rank: int, line: str) -> None:
        self._write(f"[rank {rank}] {escape(line)}\n")

    def end(self) -> None:
        if self._is_drawn:
            self._draw("")
            self._is_drawn = False

    def _line(self, text: str, now: float) -> str:
        return f"{self._words(text)}  {about(now - self._started)}"

    def _words(self, text: str) -> str:
        return escape("  ".join(filter(None, [self._title, text])).replace("\n", " ")).replace("\t", " ")

    def _draw(self, line: str) -> None:
        shown = line[: max(0, self._reporter._tw.fullwidth - 4)]
        self._is_drawn = True
        self._write(f"\n\r\x1b[2K{'  ' + shown if shown else ''}\x1b[1A\r{self._to_column}")

    @property
    def _to_column(self) -> str:
        column = self._reporter._tw.width_of_current_line
        return f"\x1b[{column}C" if column else ""

    def _write(self, text: str) -> None:
        with contextlib.nullcontext() if self._capture is None else self._capture.global_and_fixture_disabled():
            self._file.write(text)
            self._file.flush()

    @property
    def _file(self) -> TextIO:
        if self._is_worker or self._reporter is None:
            return sys.stderr  # the reporter of a pytest-xdist worker writes nowhere; stderr is that of the run
        return cast("TextIO", self._reporter._tw._file)


TERMINATED = 128 + signal.SIGTERM
"""Exit code of a run that SIGTERM ended, as a shell reports it."""

_Handler = Callable[[int, FrameType | None], Any] | int | None


class Interrupts:
    """Handlers of SIGINT and SIGTERM in a process that starts ranks; those of other code are not replaced."""

    def __init__(self) -> None:
        self._replaced: dict[signal.Signals, tuple[_Handler, _Handler]] = {}
        self._is_listening = False

    def listen(self) -> None:
        """Let SIGTERM, which cancelled CI jobs get, interrupt the run as Ctrl-C does."""
        self._is_listening = threading.current_thread() is threading.main_thread()
        self._replace(signal.SIGTERM, signal.SIG_DFL, _terminate)

    def hold_on(self) -> None:
        """Print a line at the first interrupt of the cleaning up; only the second interrupts it."""
        self._replace(signal.SIGINT, signal.default_int_handler, self._announce)
        self._replace(signal.SIGTERM, _terminate, self._announce)

    def forget(self) -> None:
        """Restore the handlers that were replaced."""
        for number, (before, ours) in self._replaced.items():
            if signal.getsignal(number) == ours:
                signal.signal(number, before)
        self._replaced.clear()
        self._is_listening = False

    @contextlib.contextmanager
    def ignored(self) -> Iterator[None]:
        """Ignore interrupts during a short step, in which one would leave processes and files."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        numbers = [signal.SIGINT, *(self._replaced.keys() - {signal.SIGINT})]
        before = {number: signal.signal(number, signal.SIG_IGN) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, signal.default_int_handler if handler is None else handler)

    def _replace(self, number: signal.Signals, found: _Handler, ours: _Handler) -> None:
        if self._is_listening and signal.getsignal(number) == found:
            before, _ = self._replaced.get(number, (found, ours))
            signal.signal(number, ours)
            self._replaced[number] = before, ours

    def _announce(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        self.forget()
        text = "\ndistbench: cleaning up after the interruption; a second Ctrl-C leaves at once, without cleaning up\n"
        with contextlib.suppress(OSError):
            os.write(2, text.encode())  # sys.stderr may be in the middle of a line, and refuses another one


def _terminate(number: int, frame: FrameType | None) -> None:
    del number, frame
    raise Terminated("SIGTERM interrupted the run")
