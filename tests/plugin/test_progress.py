"""How long a run takes, and one live line that says what the running test is at."""

from __future__ import annotations

import io
from types import SimpleNamespace
from typing import Any

import pytest
from support.projects import TEST, Project, run

from pytest_distbench.plugin import progress
from pytest_distbench.plugin.progress import ProgressLine


def test_a_run_says_how_long_it_takes_as_far_as_that_was_recorded(project: Project) -> None:
    made = project(TEST)
    run(made).stdout.fnmatch_lines(["distbench: 1 test; how long they take is known once they have baselines"])
    assert run(made, "--distbench-update").ret == 0
    run(made).stdout.fnmatch_lines(["distbench: 1 test, about * s, and up to 60 s to confirm suspicious timings"])
    with (made.path / "test_it.py").open("a") as file:
        file.write("\n\ndef test_more(distbench):\n    distbench.run(body, params={'stand_in': {'step': [0.02]}})\n")
    run(made).stdout.fnmatch_lines(["distbench: 2 tests, about * s for 1 of them, which have baselines, and *"])


def make(
    *,
    terminal: bool = True,
    verbosity: int = 0,
    kind: Any = pytest.TerminalReporter,
    update: str | None = None,
    worker: bool = False,
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
    if worker:
        config.workerinput = {}
    return ProgressLine(config), out


def test_a_line_stands_below_pytests_own_and_the_cursor_goes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "REDRAW_S", 0.0)
    made, out = make()
    made.begin("test_a")
    made.show("launch 1\x1b")

    assert out.getvalue() == "\n\r\x1b[2K  test_a  launch 1\\x1b  1 s\x1b[1A\r\x1b[10C"


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
    made.show("")

    assert out.getvalue() == 2 * "\ndistbench: test_a  launch 2  1 s\n"


def test_under_xdist_a_worker_shows_it_on_stderr(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "PLAIN_FIRST_S", 0.0)
    made, out = make(worker=True)
    made.begin("test_a")
    made.show("launch 1")

    assert (out.getvalue(), capsys.readouterr().err) == ("", "\ndistbench: test_a  launch 1  1 s\n")


def test_a_long_start_of_torch_has_a_line_of_its_own_and_is_no_time_of_the_test(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    at = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: at[0])
    made, out = make(terminal=False)
    made.begin("test_a")
    made.show("launch 1")
    at[0] += 12
    made.show("loading torch")
    made.loaded(12.0)
    at[0] += 31
    made.show("")

    assert out.getvalue().split("\n")[1::2] == [
        "distbench: test_a  loading torch  12 s",
        "distbench: loading torch took 12 s",
        "distbench: test_a  launch 1  31 s",
    ]


def test_a_short_start_has_none_and_on_a_terminal_it_stands_above_pytests_line() -> None:
    quick, unwritten = make(terminal=False)
    quick.loaded(progress.SLOW_START_S / 2)
    quiet, silent = make(verbosity=-1)
    quiet.loaded(60.0)
    slow, out = make()
    slow.loaded(60.0)

    assert unwritten.getvalue() == silent.getvalue() == ""
    assert out.getvalue().endswith("\r\x1b[1Ldistbench: loading torch took 60 s\n\r\x1b[10C")


@pytest.mark.parametrize("quiet", [{"terminal": False}, {"verbosity": -1}])
def test_the_reason_of_a_wait_is_printed_at_once_on_a_pipe_and_under_q_too(quiet: dict[str, Any]) -> None:
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


def test_an_update_shows_it_under_q_too() -> None:
    made, _ = make(verbosity=-1, update="new")

    assert made.wants_events
