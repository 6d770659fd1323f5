"""What tests took: kept in pytest's cache from run to run, and told before the next one."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.projects import ALONE, TEST, Project, run
from support.results import verdict
from support.stores import CASE, result

from pytest_distbench.plugin.carry import PassedTest
from pytest_distbench.plugin.history import name_in_history, read_history, write_history
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
