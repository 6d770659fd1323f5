"""Simulated ranks for tests of suites."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from support.plans import BODY, make_plan

from pytest_distbench.errors import LauncherError
from pytest_distbench.launch.reduce import read_reports
from pytest_distbench.launch.supervise import Side, supervise
from pytest_distbench.machine.locks import alone_on_this_host
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.plan import Ranks
from pytest_distbench.testing import StandInLauncher

ONE_STEP = """
    def body(rank):
        pass

    def test_step(distbench):
        distbench.run(body, params={"stand_in": {"step": 0.02}})
"""
DOCUMENT = Path(__file__).parents[2] / "docs" / "writing.md"


Launch = Callable[..., LaunchRecord]


@pytest.fixture
def launch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Launch:
    def run(described: object, index: int = 0, **variables: str) -> LaunchRecord:
        for name, value in variables.items():
            monkeypatch.setenv(f"DISTBENCH_STAND_IN{name}", value)
        work = Ranks(body=BODY, params={} if described is None else {"stand_in": described})
        plan = make_plan(tmp_path, work=work, index=index)
        return supervise(plan, Side(launcher=lambda: StandInLauncher("cookie")))

    return run


@pytest.fixture(autouse=True)
def no_description(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DISTBENCH_STAND_IN", raising=False)


def values(record: LaunchRecord) -> dict[str, float | None]:
    return {m.key: m.value for m in record.measurements}


def test_what_is_described_is_what_ranks_recorded(launch: Launch) -> None:
    record = launch({"step": 0.02, "latency[message_bytes=1024]": 1e-4, "count!exact": 7, "phase/step": 1.0})

    assert record.outcome == "passed"
    assert values(record) == {"step": 0.02, "latency[message_bytes=1024]": 1e-4, "count": 7, "phase/step": 1.0}
    assert [m.better for m in record.measurements] == ["lower", "lower", "exact", "lower"]


def test_a_list_has_a_value_for_each_launch_and_starts_over(launch: Launch) -> None:
    assert [values(launch({"step": [1.0, 2.0]}, index))["step"] for index in range(3)] == [1.0, 2.0, 1.0]


STEP = {"": '{"step": 3.0}'}


@pytest.mark.parametrize(
    ("described", "variables", "found"),
    [
        (None, STEP, {"step": 3.0}),
        ({"other": 1.0}, STEP, {"other": 1.0}),
        ({"step": 1.0, "count!exact": 7}, {"_FACTOR": "2"}, {"step": 2.0, "count": 7}),
    ],
)
def test_the_environment_describes_what_no_params_do_and_its_factor_multiplies_times_alone(
    launch: Launch, described: object, variables: dict[str, str], found: dict[str, float]
) -> None:
    assert values(launch(described, **variables)) == found


def test_a_list_in_a_list_is_a_series(launch: Launch) -> None:
    [measurement] = launch({"step": [[1.0, 2.0, 3.0]]}).measurements

    assert measurement.spread is not None
    assert measurement.spread.n == 3


def test_an_error_is_every_ranks(launch: Launch) -> None:
    record = launch({}, _ERROR="KeyError:gradient")

    assert (record.outcome, record.reason) == ("failed", "rank 0 raised KeyError: gradient")


def test_reports_are_those_of_every_rank(tmp_path: Path) -> None:
    plan = make_plan(tmp_path, world_size=3)
    StandInLauncher("cookie").start(plan).poll()

    assert sorted(read_reports(plan)) == [0, 1, 2]


ONE = {"step": 1.0}


@pytest.mark.parametrize(
    ("described", "variables", "text"),
    [
        ([1.0], {}, r"wanted a mapping from metrics to values, found \[1\.0\]; write params="),
        ({"a!fast": 1.0}, {}, r"'a!fast': unknown kind 'fast'; known are .*lower"),
        (None, {"": "{"}, r"DISTBENCH_STAND_IN is not JSON: .*found '\{'"),
        ({"a[": 1.0}, {}, r"'a\[' is no metric; wanted a name, or one at a point: latency\[message_bytes=1024\]"),
        ({"": 1.0}, {}, "'' is no metric"),
        ({"step": "x"}, {}, "'step': 'x'; wanted a finite number, a list of them, or None"),
        ({"step": True}, {}, "'step': True; wanted a finite number"),
        ({"step": [1.0, float("inf")]}, {}, "'step': inf; wanted a finite number"),
        ({"step": []}, {}, r"'step': \[\]; wanted a finite number, a list of them, or None"),
        ({"step": [[]]}, {}, r"'step': \[\]; wanted a finite number, a list of them, or None"),
        ({"step": [[1.0, None]]}, {}, r"'step': \[1\.0, None\]; wanted a finite number"),
        (ONE, {"_FACTOR": "abc"}, "DISTBENCH_STAND_IN_FACTOR='abc'; wanted a finite number above 0"),
        (ONE, {"_FACTOR": "nan"}, "wanted a finite number above 0"),
        (ONE, {"_SOFTWARE": "torch"}, "DISTBENCH_STAND_IN_SOFTWARE='torch'; wanted names with versions"),
        (ONE, {"_COLLECTIVES": "2 of 4"}, "DISTBENCH_STAND_IN_COLLECTIVES='2 of 4'; wanted how many of how many bytes"),
    ],
)
def test_what_cannot_be_read_is_an_error_that_shows_it(
    launch: Launch, described: object, variables: dict[str, str], text: str
) -> None:
    with pytest.raises(LauncherError, match=text):
        launch(described, **variables)


@pytest.mark.other_plugins  # a pytester of its own takes the variables away
def test_the_documented_test_of_a_suite_passes(pytester: pytest.Pytester) -> None:
    [example] = re.findall(r"```python\n(SUITE = .*?)```", DOCUMENT.read_text(), flags=re.DOTALL)
    pytester.makeconftest('pytest_plugins = ["pytester"]')
    pytester.makepyfile(test_of_a_suite=example)

    pytester.runpytest_subprocess().assert_outcomes(passed=1)


def test_made_up_ranks_are_not_limited_by_the_cores_of_this_host(project: Callable[[str], pytest.Pytester]) -> None:
    made = project(ONE_STEP)
    ranks = 33 * (os.cpu_count() or 1)

    made.runpytest_inprocess(f"--world-size={ranks}").assert_outcomes(passed=1)


@pytest.mark.timeout(300)
def test_made_up_ranks_need_not_be_alone_on_this_host(
    project: Callable[[str], pytest.Pytester], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = project(ONE_STEP)
    monkeypatch.setattr(tempfile, "tempdir", str(made.path))  # locks of this test's own
    monkeypatch.setenv("TMPDIR", str(made.path))
    with alone_on_this_host(on_wait=print):
        made.runpytest_subprocess().assert_outcomes(passed=1)


def test_a_conftest_may_import_from_the_plugin_before_it_is_one(project: Callable[[str], pytest.Pytester]) -> None:
    made = project(ONE_STEP)
    conftest = 'from pytest_distbench.testing import StandInLauncher\npytest_plugins = ["pytest_distbench.testing"]\n'
    made.makeconftest(conftest)

    made.runpytest_subprocess("-W", "error").assert_outcomes(passed=1)


def test_every_variable_that_is_read_is_documented() -> None:
    from pytest_distbench import testing

    read = set(re.findall(r'_setting\(f?"(?:\{side\})?([A-Z_]+)"\)', Path(testing.__file__).read_text()))

    assert read == {"FACTOR", "ERROR", "SOFTWARE", "COLLECTIVES"}
    assert all(f"DISTBENCH_STAND_IN_{name}" in str(testing.__doc__) for name in read)
