"""What tests took: kept in pytest's cache from run to run, and told before the next one."""

from __future__ import annotations

import json
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
    """As pytest's, in memory; what is read has been JSON."""

    def __init__(self, value: object) -> None:
        self.values = {"distbench/took": json.dumps(value)}

    def get(self, key: str, default: object) -> object:
        return json.loads(self.values[key]) if key in self.values else default

    def set(self, key: str, value: object) -> None:
        self.values[key] = json.dumps(value)


def config(value: object = {}) -> Any:
    return SimpleNamespace(cache=Cache(value))


def settings(**changes: object) -> Any:
    given: dict[str, Any] = {"against": None, "attach": None, "launcher": "warm", "launches": 1}
    return SimpleNamespace(**(given | {"update_launches": None} | changes))


def ran(*seconds: float, walls: float = 1.0, **changes: Any) -> CaseResult:
    made = result(*seconds, kind="missing", **changes)
    return replace(made, launches=[replace(launch, wall_s=walls) for launch in made.launches])


def after(*tests: PassedTest, into: Any = None, **changes: object) -> dict[str, Took]:
    into = into or config()
    write_history(into, settings(**changes), tests)
    return read_history(into).tests


def test_a_run_is_kept_by_its_launches_and_the_last_three_count() -> None:
    into = config()
    for seconds in range(5):
        found = after(PassedTest([ran(0.1)], float(seconds)), into=into)

    assert found[NAME].runs == {"1": [2.0, 3.0, 4.0]}
    assert len(found[NAME].runs["1"]) == KEPT_RUNS
    assert (found[NAME].launch_s, found[NAME].more_s) == (1.0, SPACING_S)


def test_an_update_and_a_run_of_the_same_test_are_kept_apart() -> None:
    into = config()
    after(PassedTest([ran(0.1)], 2.0), into=into)
    updated = PassedTest([ran(0.1, 0.1, update="new")], 9.0)

    assert after(updated, into=into)[NAME].runs == {"1": [2.0], "update": [9.0]}
    assert after(updated, into=into, update_launches=4)[NAME].runs["4"] == [9.0]


def test_the_launcher_s_own_start_is_no_test_s() -> None:
    into, case = config(), ran(0.1, walls=6.0)
    case = replace(case, launches=[replace(case.launches[0], phases={"launcher": 5.0})])
    found = after(PassedTest([case], 7.0), into=into)

    assert (found[NAME].launch_s, found[NAME].runs["1"], read_history(into).start_s) == (1.0, [2.0], 5.0)


def test_the_launches_that_an_update_makes_are_those_of_the_noisiest_case() -> None:
    exact = replace(ran(0.1), verdicts=[replace(verdict("missing"), better="exact")])
    case = ran(0.1).case
    elastic = replace(ran(0.1), case=replace(case, conditions=replace(case.conditions, engine="stock")))

    assert [after(PassedTest([c], 1.0))[NAME].fewest for c in (exact, ran(0.1), elastic)] == [2, 6, 3]


@pytest.mark.parametrize("changes", [{"against": object()}, {"attach": 0}], ids=["against", "attach"])
def test_runs_of_other_sorts_leave_no_trace(changes: dict[str, object]) -> None:
    assert after(PassedTest([ran(0.1)], 1.0), **changes) == {}


@pytest.mark.parametrize("value", [[], {"tests": 1}, {"tests": {"a": {"launch_s": -1, "more_s": 1}}}, {"other": 1}])
def test_what_we_have_not_written_is_nothing_known(value: object) -> None:
    assert read_history(config(value)).tests == {}
    assert NAME in after(PassedTest([ran(0.1)], 1.0), into=config(value))


def test_without_a_cache_nothing_is_known_and_nothing_kept() -> None:
    without: Any = SimpleNamespace()
    write_history(without, settings(), [PassedTest([ran(0.1)], 1.0)])

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
