"""What tests took in earlier runs, and one live line that says what remains."""

from __future__ import annotations

import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.projects import ALONE, TEST, Project, run
from support.results import verdict
from support.stores import CASE, result

from pytest_distbench.plugin import progress
from pytest_distbench.plugin.carry import PassedTest
from pytest_distbench.plugin.progress import Countdown, Progress, name_in_history, read_history, write_history
from pytest_distbench.records.record import replace
from pytest_distbench.records.run import CaseResult
from pytest_distbench.run.pacing import SPACING_S
from pytest_distbench.store.estimate import KEPT_RUNS, Took

NAME = name_in_history(f"{CASE.test}[ws2]", "gloo", "warm")


class Cache:
    """As pytest's, of one folder."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "distbench" / "took.json"

    def mkdir(self, name: str) -> Path:
        (self.file.parent.parent / name).mkdir(exist_ok=True)
        return self.file.parent


@pytest.fixture
def config(tmp_path: Path) -> Any:
    return SimpleNamespace(cache=Cache(tmp_path))


def settings(**changes: object) -> Any:
    given: dict[str, Any] = {"against": None, "attach": None, "launcher": "warm", "launches": 1}
    return SimpleNamespace(**(given | {"update_launches": None} | changes))


def ran(*seconds: float, walls: float = 1.0, **changes: Any) -> CaseResult:
    made = result(*seconds, kind="missing", **changes)
    return replace(made, launches=[replace(launch, wall_s=walls) for launch in made.launches])


def after(config: Any, *tests: PassedTest, **changes: object) -> dict[str, Took]:
    assert write_history(config, settings(**changes), tests) == ""
    return read_history(config).tests


def test_a_run_is_kept_by_its_launches_and_the_last_three_count(config: Any) -> None:
    for seconds in range(5):
        found = after(config, PassedTest([ran(0.1)], float(seconds)))

    assert found[NAME].runs == {"1": [2.0, 3.0, 4.0]}
    assert len(found[NAME].runs["1"]) == KEPT_RUNS
    assert (found[NAME].launch_s, found[NAME].more_s) == (1.0, SPACING_S)


def test_an_update_and_a_run_of_the_same_test_are_kept_apart(config: Any) -> None:
    after(config, PassedTest([ran(0.1)], 2.0))
    updated = PassedTest([ran(0.1, 0.1, update="new")], 9.0)

    assert after(config, updated)[NAME].runs == {"1": [2.0], "update": [9.0]}
    assert after(config, updated, update_launches=4)[NAME].runs["4"] == [9.0]


def test_the_launcher_s_own_start_is_no_test_s(config: Any) -> None:
    case = ran(0.1, walls=6.0)
    case = replace(case, launches=[replace(case.launches[0], phases={"launcher": 5.0})])
    found = after(config, PassedTest([case], 7.0))

    assert (found[NAME].launch_s, found[NAME].runs["1"], read_history(config).start_s) == (1.0, [2.0], 5.0)


def test_the_launches_that_an_update_makes_are_those_of_the_noisiest_case(config: Any) -> None:
    exact = replace(ran(0.1), verdicts=[replace(verdict("missing"), better="exact")])
    case = ran(0.1).case
    elastic = replace(ran(0.1), case=replace(case, conditions=replace(case.conditions, engine="stock")))
    found = [after(config, PassedTest([case], 1.0))[NAME] for case in (exact, ran(0.1), elastic)]

    assert [(took.fewest, took.scatters) for took in found] == [(2, False), (5, True), (3, False)]


def test_a_run_in_turns_is_a_sort_of_its_own_and_its_launches_count_half(config: Any) -> None:
    against = SimpleNamespace(looks=(5, 7, 10))
    first = after(config, PassedTest([ran(0.1, walls=4.0)], 21.0), against=against)[NAME]
    after(config, PassedTest([ran(0.1)], 2.0))
    second = after(config, PassedTest([ran(0.1, walls=4.0)], 23.0), against=against)[NAME]

    assert (first.launch_s, first.runs) == (2.0, {"5 to 10 pairs": [21.0]})
    assert (second.launch_s, second.runs) == (1.0, {"5 to 10 pairs": [21.0, 23.0], "1": [2.0]})


def test_an_attached_run_leaves_no_trace(config: Any) -> None:
    assert after(config, PassedTest([ran(0.1)], 1.0), attach=0) == {}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("no JSON", "malformed"),
        ("[]", "Expected `object`"),
        ('{"schema": 1, "tests": 1}', "Expected `object`"),
        ('{"schema": 1, "tests": {"a": {"launch_s": -1e300, "more_s": 1}}}', "$.tests[a].launch_s"),
        ('{"schema": 1, "tests": {"a": {"launch_s": NaN, "more_s": 1}}}', "malformed"),
        ('{"schema": 1, "other": 1}', "unknown field"),
    ],
)
def test_what_we_have_not_written_is_told_in_one_line_and_replaced(config: Any, text: str, told: str) -> None:
    config.cache.mkdir("distbench")
    config.cache.file.write_text(text)
    known = read_history(config).tests
    lost = write_history(config, settings(), [PassedTest([ran(0.1)], 1.0)])

    assert known == {}
    assert lost.startswith(f"what earlier runs took is lost, and written anew: {config.cache.file}: ")
    assert told in lost
    assert "\n" not in lost
    assert after(config, PassedTest([ran(0.1)], 1.0))[NAME].runs == {"1": [1.0, 1.0]}


def test_a_cache_that_cannot_be_written_is_told_in_one_line(config: Any) -> None:
    config.cache.mkdir("distbench")
    config.cache.file.mkdir()
    of_folder = write_history(config, settings(), [PassedTest([ran(0.1)], 1.0)])
    config.cache.file.rmdir()
    config.cache.file.parent.rmdir()
    config.cache.file.parent.touch()
    of_file = write_history(config, settings(), [PassedTest([ran(0.1)], 1.0)])

    assert of_folder.startswith(f"what the tests took is not kept: {config.cache.file}: cannot write: Is a directory. ")
    assert of_file.startswith(f"what the tests took is not kept: {config.cache.file.parent}: cannot write: File exists")
    assert read_history(config).tests == {}


def test_without_a_cache_nothing_is_known_and_nothing_kept() -> None:
    without: Any = SimpleNamespace()

    assert write_history(without, settings(), [PassedTest([ran(0.1)], 1.0)]) == ""
    assert read_history(without).tests == {}


def test_a_renamed_test_is_told_in_a_word(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_ADDOPTS", ALONE["PYTEST_ADDOPTS"].replace("-p no:cacheprovider ", ""))
    made = project(TEST)
    first, second = run(made), run(made)
    Path(made.path / "test_it.py").write_text(
        (made.path / "test_it.py").read_text().replace("test_step", "test_renamed") + "\n\n"
        "def test_step(distbench):\n    distbench.run(body, params={'stand_in': {'step': [0.02]}})\n"
    )
    third = run(made)

    first.stdout.fnmatch_lines(["distbench: 1 test; how long they take is known after their first run"])
    second.stdout.fnmatch_lines(["distbench: 1 test, about * s"])
    third.stdout.fnmatch_lines(
        ["distbench: 2 tests, about * s; 1 of them new or renamed, and taken for as long as the others"]
    )


def test_a_test_says_what_it_takes_and_an_update_its_time_under_q_too(project: Project) -> None:
    made = project(
        """
        import pytest

        @pytest.mark.distbench(takes="2 min")
        def test_step(distbench):
            distbench.run("body.py::body", params={"stand_in": {"step": [0.02]}})
        """
    )
    (made.path / "body.py").write_text("def body(rank):\n    pass\n")

    run(made).stdout.fnmatch_lines(["distbench: 1 test, about 2.1 min"])
    run(made, "-q", "--distbench-update", "--distbench-launches=10").stdout.fnmatch_lines(
        ["distbench: 1 test, about 20 min"]
    )
    run(made, "-q", "--distbench-update=all").stdout.fnmatch_lines(["distbench: 1 test, about * s"])


def test_a_lost_cache_is_one_line_and_no_warning(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_ADDOPTS", ALONE["PYTEST_ADDOPTS"].replace("-p no:cacheprovider ", ""))
    made = project(TEST)
    took = made.path / ".pytest_cache" / "d" / "distbench" / "took.json"
    took.mkdir(parents=True)
    first = run(made, "-W", "error")
    took.rmdir()
    took.write_text("nonsense")
    second, third = run(made, "-W", "error"), run(made, "-W", "error")

    first.stdout.fnmatch_lines([f"distbench: what the tests took is not kept: {took}: *"])
    second.stdout.fnmatch_lines([f"distbench: what earlier runs took is lost, and written anew: {took}: *"])
    assert (first.ret, second.ret, third.ret) == (0, 0, 0)
    assert "took is" not in third.stdout.str() + third.stderr.str()


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
