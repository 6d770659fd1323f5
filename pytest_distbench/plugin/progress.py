"""A run while it goes on: one live line that says what the running test is at, what tests took before, and Ctrl-C.

What they took is kept in pytest's cache: it serves estimates alone, and may be lost. On a pipe the line is a plain one
once a minute; under -q there is none, but for an update, which takes its time. What keeps a run waiting is told
everywhere. A run that has started something ends orderly at Ctrl-C and SIGTERM, and finishes its cleaning up.
"""

from __future__ import annotations

import contextlib
import os
import signal
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO, cast

import pytest

from pytest_distbench.errors import Terminated
from pytest_distbench.records.environment import Environment
from pytest_distbench.releases import own_version
from pytest_distbench.report import escape
from pytest_distbench.report.terminal import about
from pytest_distbench.store.baselines import BaselineStore
from pytest_distbench.units import counted

if TYPE_CHECKING:
    from pytest_distbench.plugin.carry import Passed
    from pytest_distbench.run.request import Settings


_CACHE = "distbench/took"
_MOST_TESTS = 5000
"""Those that ran last: names of tests that were renamed leave in time."""
KEPT_RUNS = 3
"""Of each sort of run: one that another job disturbed does not decide alone."""


def name_in_history(nodeid: str, backend: str, settings: Settings, launches: int | None) -> str:
    """A test, by its full name, and what else decides how long it takes; None: as many launches as an update needs."""
    sort = "against" if settings.is_paired else "update" if launches is None else str(launches)
    return f"{nodeid} {backend} {settings.launcher} {sort}"


def confirming(name: str) -> str:
    """The name of what confirming a test took: most runs need none."""
    return f"{name} confirming"


def read_history(config: pytest.Config) -> dict[str, list[float]]:
    """Seconds of the last runs by name; nothing where the cache is off, or holds what we have not written."""
    import msgspec

    cache = getattr(config, "cache", None)
    try:
        return msgspec.convert(cache.get(_CACHE, {}) if cache is not None else {}, dict[str, list[float]])
    except msgspec.ValidationError:
        return {}


def write_history(config: pytest.Config, settings: Settings, ran: Iterable[Passed]) -> None:
    cache = getattr(config, "cache", None)
    if cache is None or settings.attach is not None:
        return
    before = read_history(config)
    found = dict(before)
    for cases, took_s, confirming_s in ran:
        first = cases[0]
        launches = settings.update_launches if any(case.update for case in cases) else settings.first_launches
        name = name_in_history(first.nodeid, first.case.conditions.backend, settings, launches)
        parts = [(name, took_s)]
        verdicts = [v for case in cases if not case.update for v in case.verdicts]
        if not settings.is_paired and any(v.baseline is not None for v in verdicts):
            parts.append((confirming(name), confirming_s))
        for part, seconds in parts:
            found[part] = [*found.pop(part, []), round(max(seconds, 0.0), 2)][-KEPT_RUNS:]
    if found != before:
        cache.set(_CACHE, dict(list(found.items())[-_MOST_TESTS:]))


class Awaited(NamedTuple):
    """How long a test will take, as far as anybody knows."""

    seconds: float | None
    """None: nothing is known."""
    is_elsewhere: bool = False
    """It is known from another class of machines alone."""
    again_s: float = 0.0
    """What confirming it took, the mean of its last runs."""
    has_baseline: bool = False
    """So it may have to be confirmed this time."""


def awaited(
    store: BaselineStore,
    ran: Mapping[str, Sequence[float]],
    *,
    name: str,
    test: str,
    case_id: str,
    conditions: tuple[str, str],
    launches: int | None = 1,
) -> Awaited:
    """What is known of a test: by its last runs here, by its baseline here, or by one of another class of machines.

    Args:
        name: of its runs, which a renamed test has not.
        conditions: backend and launcher.
        launches: of each of its cases; None: as many as an update needs.
    """

    def of_baseline(store: BaselineStore) -> float | None:
        found = store.entries(test, test_ids=[case_id]).values()
        entries = [e for e in found if (e.conditions.backend, e.conditions.launcher) == conditions]
        stored = max((len(metric) for entry in entries for metric in entry.metrics.values()), default=1)
        return sum(entry.launch_s or 0.0 for entry in entries) * (stored if launches is None else launches) or None

    here = of_baseline(store)
    seconds = statistics.median(ran[name]) if ran.get(name) else here
    again_s = statistics.fmean(ran.get(confirming(name)) or [0.0])
    if seconds is not None:
        return Awaited(seconds, again_s=again_s, has_baseline=here is not None)
    others = (of_baseline(BaselineStore(store.folder, other)) for other in store.platforms() if other != store.platform)
    elsewhere = next((found for found in others if found is not None), None)
    return Awaited(elsewhere, is_elsewhere=elsewhere is not None, again_s=again_s)


def duration_text(tests: Sequence[Awaited], *, slow: Sequence[Awaited] = (), confirm_s: float = 0.0) -> str:
    """How long the tests take; ``confirm_s`` is the most that confirming suspicious ones adds, 0: nothing is.

    Those of which nothing is known take as long as the others.
    """
    told = []
    unknown, seconds = sum(test.seconds is None for test in tests), _total(tests)
    if seconds is not None:
        told = [f"{counted(len(tests), 'test')}, about {about(seconds)}"]
        if confirm_s and any(test.has_baseline for test in tests):
            told[0] += f", and up to {about(confirm_s)} to confirm suspicious timings"
        if any(test.is_elsewhere for test in tests):
            told[0] += ", as on other machines"
        if unknown:
            told[0] += f"; {unknown} of them never timed, and taken for as long as the others"
    elif unknown:
        told = [f"{counted(len(tests), 'test')}; the first run shows how long that takes"]
    if slow:
        told.append(slow_text(len(slow), None if any(test.seconds is None for test in slow) else _total(slow)))
    return "; ".join(told)


def _total(tests: Sequence[Awaited]) -> float | None:
    known = [test.seconds for test in tests if test.seconds is not None]
    unknown = len(tests) - len(known)
    again_s = sum(test.again_s for test in tests)
    return sum(known) + unknown * statistics.median(known) + again_s if known else None


def slow_text(tests: int, seconds: float | None = None) -> str:
    takes = f" in about {about(seconds)}" if seconds is not None else ""
    return f"{counted(tests, 'slow test')} deselected (--distbench-full runs them{takes})"


def header_lines(
    environment: Environment, store: BaselineStore, settings: Settings, *, against: str, duration: str, record: str
) -> list[str]:
    """Two lines; one more in an update, where GPUs are missing that the machine has, and where the host is shared.

    No GPU is visible to a CPU run; ``against`` and ``duration`` may be empty. ``record``: the command that records
    baselines.
    """
    gpus = settings.gpus
    sizes = ", ".join(map(str, settings.world_sizes))
    count = len(gpus.visible)
    devices = counted(count, "GPU") if count else f"{environment.cores} CPU cores"
    torch = environment.software["torch"]
    where = (
        f"{', '.join(settings.backends)}, {devices} ({environment.device}), torch {torch}, {settings.launcher} launcher"
    )
    first = f"distbench {own_version()}: world size {sizes}, {where}"
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
    lines = [first, *missing, f"distbench: {compared}"]
    if duration:
        lines.append(f"distbench: {duration}")
    if settings.update:
        launches = f"up to {settings.max_launches} launches a case, as its noise needs"
        if (number := settings.update_launches) is not None:
            launches = f"{counted(number, 'launch')} a case"
        lines.append(f"distbench: update={settings.update}, {launches}; baselines will be written")
    return lines


REDRAW_S = 0.1
PLAIN_INTERVAL_S = 60.0


class ProgressLine:
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
        if self._live:
            self._draw(self._words(text))
        else:
            self._write(f"\ndistbench: {self._words(text)}\n")

    def show_output(self, rank: int, line: str) -> None:
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


TERMINATED = 128 + signal.SIGTERM
"""Exit code of a run that SIGTERM has ended: what a shell says of any process that it ended."""

_Handler = Callable[[int, FrameType | None], Any] | int | None


class Interrupts:
    """The handlers of SIGINT and SIGTERM in a process that starts ranks; handlers of others stay where they are."""

    def __init__(self) -> None:
        self._replaced: dict[signal.Signals, tuple[_Handler, _Handler]] = {}
        self._is_listening = False

    def listen(self) -> None:
        """From now on SIGTERM interrupts the run as Ctrl-C does: cancelled CI jobs get it."""
        self._is_listening = threading.current_thread() is threading.main_thread()
        self._replace(signal.SIGTERM, signal.SIG_DFL, _terminate)

    def hold_on(self) -> None:
        """The run is interrupted and cleans up: say so to the first who interrupts that, and let the second do it."""
        self._replace(signal.SIGINT, signal.default_int_handler, self._tell)
        self._replace(signal.SIGTERM, _terminate, self._tell)

    def forget(self) -> None:
        """The process is as it was before."""
        for number, (before, ours) in self._replaced.items():
            if signal.getsignal(number) == ours:
                signal.signal(number, before)
        self._replaced.clear()
        self._is_listening = False

    @contextlib.contextmanager
    def ignored(self) -> Iterator[None]:
        """Finish what takes a moment: an interrupt in it would leave processes and files, and save nobody time."""
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

    def _tell(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        self.forget()
        text = "\ndistbench: cleaning up after the interruption; a second Ctrl-C leaves at once, without cleaning up\n"
        with contextlib.suppress(OSError):
            os.write(2, text.encode())  # sys.stderr may be in the middle of a line, and refuses another one


def _terminate(number: int, frame: FrameType | None) -> None:
    del number, frame
    raise Terminated("SIGTERM interrupted the run")
