"""What tests took in earlier runs, and one live line that says what the running one is at."""

from __future__ import annotations

import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.projects import ALONE, TEST, Project, run
from support.stores import CASE, result

from pytest_distbench.plugin import progress
from pytest_distbench.plugin.carry import Passed
from pytest_distbench.plugin.progress import ProgressLine, name_in_history, read_history, write_history
from pytest_distbench.records.run import CaseResult


class Cache(dict[str, Any]):
    """As pytest's."""

    set = dict.__setitem__


@pytest.fixture
def config() -> Any:
    return SimpleNamespace(cache=Cache())


def settings(**changes: object) -> Any:
    given: dict[str, Any] = {"is_paired": False, "attach": None, "launcher": "warm", "first_launches": 1}
    return SimpleNamespace(**(given | {"update_launches": None} | changes))


def ran(*seconds: float, **changes: Any) -> CaseResult:
    return result(*seconds, code="no-baseline", **changes)


def name(launches: int | None, **changes: object) -> str:
    return name_in_history(f"{CASE.test}[ws2]", "gloo", settings(**changes), launches)


def after(config: Any, *tests: Passed, **changes: object) -> dict[str, list[float]]:
    write_history(config, settings(**changes), tests)
    return read_history(config)


def test_runs_are_kept_by_their_launches_and_the_last_three_count(config: Any) -> None:
    for seconds in range(5):
        after(config, ([ran(0.1)], float(seconds), 0.0))
    updated = ([ran(0.1, 0.1, update="new")], 9.0, 0.0)
    after(config, updated)
    after(config, updated, update_launches=4)
    found = after(config, ([ran(0.1)], 21.0, 0.0), is_paired=True)

    assert found == {
        name(1): [2.0, 3.0, 4.0],
        name(None): [9.0],
        name(4): [9.0],
        name(1, is_paired=True): [21.0],
    }


def test_an_attached_run_and_one_without_a_cache_leave_no_trace(config: Any) -> None:
    assert after(config, ([ran(0.1)], 1.0, 0.0), attach=0) == {}
    assert after(SimpleNamespace(), ([ran(0.1)], 1.0, 0.0)) == {}


@pytest.mark.parametrize("value", [[], {"a": 1}, {"a": ["no number"]}])
def test_what_we_have_not_written_is_replaced(config: Any, value: object) -> None:
    config.cache.set("distbench/took", value)

    assert read_history(config) == {}
    assert after(config, ([ran(0.1)], 1.0, 0.0)) == {name(1): [1.0]}


def test_a_renamed_test_is_told_in_a_word(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_ADDOPTS", ALONE["PYTEST_ADDOPTS"].replace("-p no:cacheprovider ", ""))
    made = project(TEST)
    first, second = run(made), run(made)
    Path(made.path / "test_it.py").write_text(
        (made.path / "test_it.py").read_text().replace("test_step", "test_renamed") + "\n\n"
        "def test_step(distbench):\n    distbench.run(body, params={'stand_in': {'step': [0.02]}})\n"
    )
    third, update = run(made), run(made, "-q", "--distbench-update")

    first.stdout.fnmatch_lines(["distbench: 1 test; the first run shows how long that takes"])
    second.stdout.fnmatch_lines(["distbench: 1 test, about * s"])
    third.stdout.fnmatch_lines(
        ["distbench: 2 tests, about * s; 1 of them never timed, and taken for as long as the others"]
    )
    update.stdout.fnmatch_lines(["distbench: 2 tests; the first run shows how long that takes"])


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
    return ProgressLine(config), out


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


def test_an_update_shows_it_under_q_too() -> None:
    made, _ = make(verbosity=-1, update="new")

    assert made.wants_events
