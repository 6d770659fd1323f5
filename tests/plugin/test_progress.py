"""The live line: what it shows, and where it stays off."""

from __future__ import annotations

import io
from types import SimpleNamespace
from typing import Any

import pytest
from support.projects import TEST, Project, run

from pytest_distbench.plugin import progress
from pytest_distbench.plugin.progress import Countdown, Progress


def make(
    *, terminal: bool = True, verbosity: int = 0, kind: Any = pytest.TerminalReporter, update: str | None = None
) -> tuple[Any, io.StringIO]:
    """Progress on a reporter that writes into a text, 80 characters wide, with 10 of them taken."""
    out = io.StringIO()
    reporter = object.__new__(kind)
    reporter._tw = SimpleNamespace(_file=out, width_of_current_line=10, fullwidth=80)
    reporter.isatty = terminal
    plugins = {"terminalreporter": reporter}
    config: Any = SimpleNamespace(
        pluginmanager=SimpleNamespace(getplugin=plugins.get),
        get_verbosity=lambda: verbosity,
        getoption=lambda name, default=None: update if name == "distbench_update" else default,
    )
    return Progress(config), out


def test_a_line_stands_below_pytests_own_and_the_cursor_goes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "REDRAW_S", 0.0)
    made, out = make()
    made.begin("test_a")
    made.show("launch 1\x1b")

    assert out.getvalue() == "\n\r\x1b[2K  test_a  launch 1\\x1b  00:00\x1b[1A\r\x1b[10C"


def test_the_line_is_erased_at_the_end_and_only_if_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "REDRAW_S", 0.0)
    made, out = make()
    made.end()
    before = out.getvalue()
    made.show("x")
    made.end()

    assert before == ""
    assert out.getvalue().endswith("\n\r\x1b[2K\x1b[1A\r\x1b[10C")


def test_on_a_pipe_it_is_a_plain_line_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    made, out = make(terminal=False)
    made.begin("test_a")
    made.show("too early")
    monkeypatch.setattr(progress, "PLAIN_INTERVAL_S", 0.0)
    made.show("launch 2")

    assert out.getvalue() == "\ndistbench: test_a  launch 2  00:00\n"


@pytest.mark.parametrize("quiet", [{"terminal": False}, {"verbosity": -1}])
def test_what_a_run_waits_for_is_told_at_once_on_a_pipe_and_under_q_too(quiet: dict[str, Any]) -> None:
    made, out = make(**quiet)
    made.begin("test_a")
    made.announce("waiting for another run")

    assert out.getvalue() == "\ndistbench: test_a  waiting for another run\n"


@pytest.mark.parametrize("off", [{"verbosity": -1}, {"kind": type("Sugar", (pytest.TerminalReporter,), {})}])
def test_under_q_and_with_another_reporter_it_stays_off(off: dict[str, Any]) -> None:
    made, out = make(**off)
    made.show("x")

    assert (made.wants_events, out.getvalue()) == (False, "")


def test_what_a_rank_prints_is_made_printable() -> None:
    made, out = make()
    made.show_output(3, "red \x1b[31m")

    assert out.getvalue() == "[rank 3] red \\x1b[31m\n"


EXPECTED = {"a": 20.0, "b": 40.0, "c": 60.0}


@pytest.mark.parametrize(
    ("begun", "now", "left"),
    [
        ({"a": 0.0}, 5.0, 115.0),
        ({"a": 0.0, "b": 20.0}, 30.0, 90.0),
        ({"c": 0.0, "b": 120.0}, 130.0, 1.5 * (40.0 + 20.0) - 10.0),
        ({"a": 0.0, "b": 20.0}, 500.0, 60.0),
        ({"c": 0.0, "b": 60.0, "a": 100.0}, 120.0, 0.0),
    ],
    ids=["the first", "as expected", "half of all, twice as slow", "longer than expected", "the last"],
)
def test_what_remains_is_what_is_expected_at_the_pace_so_far(begun: dict[str, float], now: float, left: float) -> None:
    assert progress.remaining_s(EXPECTED, begun, now) == pytest.approx(left)


@pytest.mark.parametrize("factor", [0.1, 0.5, 1.0, 2.0, 3.0])
def test_the_pace_of_a_whole_run_is_believed_as_far_as_it_has_been_seen(factor: float) -> None:
    """Twenty tests, all of which differ from what is expected by one factor: what is told nears what is so."""
    expected = {str(number): 5.0 for number in range(20)}
    begins = {name: factor * 5.0 * number for number, name in enumerate(expected)}
    wrong = []
    for number in range(20):
        begun = dict(list(begins.items())[: number + 1])
        left = factor * 5.0 * (20 - number)
        wrong.append(abs(progress.remaining_s(expected, begun, begun[str(number)]) - left))

    assert wrong == sorted(wrong, reverse=True)
    assert wrong[-1] <= abs(factor - 1) * 0.05 * 5.0 + 1e-9


def test_a_short_test_at_the_begin_does_not_shrink_the_others() -> None:
    expected = {"short": 11.0, **{str(number): 11.0 for number in range(8)}}

    assert progress.remaining_s(expected, {"short": 0.0, "0": 1.0}, 1.0) == pytest.approx(88.0 * (1 - 10 / 99))


def test_the_line_tells_what_remains(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "PLAIN_INTERVAL_S", 0.0)
    made, out = make(terminal=False)
    made.expect(EXPECTED)
    made.begin("test_a", "a")
    made.show("launch 2")

    assert out.getvalue() == "\ndistbench: test_a  launch 2  00:00  (test 1 of 3, about 2.0 min left)\n"


def test_an_update_shows_it_under_q_too() -> None:
    made, _ = make(verbosity=-1, update="new")

    assert made.wants_events


def test_a_countdown_tells_what_remains_once_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 30.0, 60.0, 70.0])
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))
    countdown = Countdown(next(clock))

    lines = [countdown.line(seconds, 100.0, 4) for seconds in (20.0, 10.0, 30.0)]
    assert lines == ["", "distbench: 2 of 4 tests, about 1.5 min left", ""]


def test_a_run_on_workers_tells_what_remains(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "PLAIN_INTERVAL_S", 0.0)
    made = project(TEST.replace("def test_step", "@pytest.mark.distbench(takes=60)\n    def test_step"))
    (made.path / "test_it.py").write_text("import pytest\n" + (made.path / "test_it.py").read_text())
    result = run(made, "-n", "1", "-q")

    result.stdout.fnmatch_lines(["distbench: 1 of 1 tests"])
