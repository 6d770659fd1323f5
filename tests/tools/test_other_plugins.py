"""Numbers of a run for pytest-benchmark, pytest-html and Allure; and judgements that do not depend on other plugins."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from statistics import geometric_mean
from typing import Any

import pytest
from support.metrics import passed
from support.projects import stored
from support.results import point, result

from pytest_distbench.records.metric import Sample, Spread
from pytest_distbench.records.record import replace
from pytest_distbench.records.run import CaseResult
from pytest_distbench.tools.plugin import ViewersPlugin, benchmarks


def shown(*properties: tuple[str, str]) -> list[str]:
    """What is added to the log that pytest-html shows."""
    report = pytest.TestReport("a.py::test_a", ("a.py", 1, "test_a"), {}, "passed", None, "call")
    report.user_properties = list(properties)
    log: list[str] = []
    ViewersPlugin(in_allure=False).pytest_html_results_table_html(report, log)
    return log


def test_numbers_are_a_table_of_judged_times_and_nothing_of_other_tests() -> None:
    log = shown(("mine", "1"), ("distbench.step", "20 ms"), ("distbench.count", "7 < 8"))
    assert log[2:-1] == ["metric  this run", "step    20 ms", "count   7 &lt; 8"]

    assert shown(("mine", "1")) == []

    made = result_of([1.0, 2.0])
    failed = replace(made.launches[1], outcome="failed")
    assert list(benchmarks([replace(made, launches=[made.launches[0], failed])])) == []


Project = Callable[[str], pytest.Pytester]

TEST = """
    import pytest

    def body(rank):
        pass

    @pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
    def test_step(distbench, dtype):
        stand_in = {"step": [0.0201, 0.0203, 0.0199], "wait": 0.001, "count!exact": 7}
        distbench.run(body, params={"dtype": dtype, "list": [1], "stand_in": stand_in}, launches=3)

    def test_plain():
        pass
"""


def run(project: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    return project.runpytest_inprocess("-p", "no:codspeed", *arguments)


def entries(text: str) -> dict[str, dict[str, Any]]:
    return {entry["fullname"]: entry for entry in json.loads(text)["benchmarks"]}


def result_of(values: list[float | None], *, unit: str = "s", better: str = "lower") -> CaseResult:
    """A case of a sweep with one point, one launch per value."""
    summary = Spread(n=50, minimum=1e-6, p25=1.0, median=1.5, p95=2.0, p99=3.0, mean=1.5, stdev=0.1)
    known = [value for value in values if value is not None]
    current = None if not known else geometric_mean(known) if all(known) else 0.0
    judged = replace(point(4000, statistic="sqrt(min x p25)"), unit=unit, better=better, current=current)
    measured = Sample(
        name="latency", unit=unit, better=better, value=None, at=judged.at, facts=judged.facts, spread=summary
    )
    launches = [passed(replace(measured, value=value), index=i) for i, value in enumerate(values)]
    return result(judged, launches=launches)


def test_a_benchmark_has_one_round_with_the_judged_number_and_says_what_was_measured() -> None:
    (made,) = benchmarks([result_of([4e-6, 8e-6])])

    assert made.nodeid == "suites/test_a.py::test_a[ws2]:latency[message_bytes=4000]"
    assert made.name == "test_a[ws2]:latency[message_bytes=4000]"
    assert made.group == "suites/test_a.py::test_a[ws2]"
    assert made.judged_s == pytest.approx(math.sqrt(4e-6 * 8e-6))
    assert made.callspec.params == {"message_bytes": 4000, "world_size": 2, "metric": "latency"}
    where = {"world_size": 2, "backend": "gloo", "launcher": "warm", "device": "X", "platform": "cpu-x"}
    what = {"software": {"torch": "2.14.0"}, "verdict": "unchanged", "message_bytes": 4000}
    judged = {"statistic": "sqrt(min x p25)", "launches_s": pytest.approx([2e-6, math.sqrt(8) * 1e-6])}
    clock = {"iterations": [50, 50], "median_s": [1.5, 1.5], "p95_s": [2.0, 2.0], "p99_s": [3.0, 3.0]}
    algbw, busbw = (pytest.approx(factor * 4000 / made.judged_s / 1e9) for factor in (1.0, 1.5))
    assert made.extra_info == where | what | judged | clock | {"algbw_gb_per_s": algbw, "busbw_gb_per_s": busbw}


@pytest.mark.parametrize(
    "made",
    [
        result_of([1.0], unit="GB/s", better="higher"),
        result_of([1.0], better="info"),
        result_of([None]),
        result_of([0.0]),
        replace(result_of([1.0]), verdicts=[]),
    ],
    ids=["not a time", "not judged", "no value", "no time at all", "measured for a derived number"],
)
def test_only_judged_times_are_benchmarks(made: CaseResult) -> None:
    assert list(benchmarks([made])) == []


def test_a_saved_run_is_compared_with_and_compare_fail_fails_the_run_not_the_tests(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = project(TEST)
    assert run(made, "--benchmark-autosave").ret == 0
    same = run(made, "--benchmark-compare", "--benchmark-compare-fail=median:10%", "--benchmark-columns=median")
    monkeypatch.setenv("DISTBENCH_STAND_IN_FACTOR", "1.5")
    slower = run(made, "--benchmark-compare", "--benchmark-compare-fail=median:10%")

    told = ["test_step?float32-ws2?:step (0001_*)*20.0993*", "test_step?float32-ws2?:step (NOW)*20.0993*"]
    same.stdout.fnmatch_lines(told)
    assert same.ret == 0
    assert slower.ret != 0
    said = "*test_step?float32-ws2?:step (0001_*) - Field 'median' has failed *50.000000000 > 10.000000000*"
    slower.stderr.fnmatch_lines([said])
    assert "FAILED" not in slower.stdout.str()


@pytest.mark.parametrize(
    ("options", "outcomes"),
    [
        (["--benchmark-only"], {"passed": 2, "skipped": 1}),
        (["--benchmark-skip"], {"passed": 1, "skipped": 2}),
        (["--benchmark-disable"], {"passed": 3}),
        (["-p", "no:benchmark"], {"passed": 3}),
    ],
)
def test_our_tests_are_benchmarks_to_only_and_skip_and_run_without_that_plugin(
    project: Project, options: list[str], outcomes: dict[str, int]
) -> None:
    run(project(TEST), *options).assert_outcomes(**outcomes)


def test_under_xdist_it_disables_itself_and_our_tests_pass_with_warnings_as_errors(project: Project) -> None:
    made = project(TEST)
    result = run(made, "-n1", "--benchmark-json=out.json", "-W", "error")

    result.assert_outcomes(passed=3)
    assert not (made.path / "out.json").exists()
    assert result.ret == 0


def test_a_test_that_uses_both_fixtures_has_both_benchmarks(project: Project) -> None:
    made = project(
        TEST
        + """
    def test_both(distbench, benchmark):
        distbench.run(body, params={"stand_in": {"step": 1.0}})
        benchmark.pedantic(len, args=((),))
"""
    )
    assert run(made, "--benchmark-json=out.json", "-k", "both").ret == 0

    found = entries((made.path / "out.json").read_text())
    assert set(found) == {"test_it.py::test_both[ws2]", "test_it.py::test_both[ws2]:step"}


def test_a_changed_interface_is_reported_and_fails_nothing(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    import pytest_benchmark.fixture

    monkeypatch.delattr(pytest_benchmark.fixture.BenchmarkFixture, "pedantic")
    result = run(project(TEST), "--benchmark-only")

    text = "distbench: pytest-benchmark did not take our results, its interface changed: *pedantic*"
    result.stdout.fnmatch_lines([text])
    assert result.ret == 0


def test_json_has_a_benchmark_per_case_and_time_with_the_judged_number(project: Project) -> None:
    made = project(TEST)
    result = run(made, "--benchmark-json=out.json")

    found = entries((made.path / "out.json").read_text())
    names = {f"{d}-ws2]:{m}" for d in ("float32", "bfloat16") for m in ("step", "wait")}
    assert set(found) == {f"test_it.py::test_step[{name}" for name in names}
    step = found["test_it.py::test_step[float32-ws2]:step"]
    assert step["extra_info"]["launches_s"] == [0.0201, 0.0203, 0.0199]
    assert step["extra_info"]["statistic"] == "geometric mean"
    [judged_s] = step["stats"]["data"]
    assert judged_s == pytest.approx(geometric_mean([0.0201, 0.0203, 0.0199]))
    assert {step["stats"][name] for name in ("min", "mean", "median", "max")} == {judged_s}
    assert step["params"] == {"dtype": "float32", "world_size": 2, "metric": "step"}
    result.stdout.fnmatch_lines(["*benchmark 'test_it.py::test_step?float32-ws2?': 2 tests*"])
    assert result.ret == 0


def test_a_plugin_that_blocks_pytest_benchmark_as_codspeed_does_leaves_ours_alone(project: Project) -> None:
    made = project(TEST)
    conftest = made.path / "conftest.py"
    conftest.write_text(
        conftest.read_text()
        + """
def pytest_configure(config):
    config.option.benchmark_disable = True
    config.pluginmanager.set_blocked("pytest-benchmark")
"""
    )

    run(made, "--benchmark-json=out.json").assert_outcomes(passed=3)


CASES = """
    from pathlib import Path

    import pytest

    def body(rank):
        pass

    @pytest.mark.parametrize("n", [1, 2])
    def test_step(distbench, n):
        distbench.run(body, params={"stand_in": {"step": 0.02 * n, "count!exact": n}})

    class TestOther:
        def test_step(self, distbench, monkeypatch):
            monkeypatch.setenv("DISTBENCH_STAND_IN_FACTOR", "2" if Path("slow").exists() else "1")
            distbench.run(body, params={"stand_in": {"step": 0.03}})

        def test_parts(self, distbench):
            for part in ("one", "two"):
                distbench.run(body, params={"stand_in": {"step": 0.04}}, name=part)
"""
"""Four tests, five cases, one of which is slow where there is a file ``slow``."""

ONE_OF_FIVE = "7 metrics (1 regressed, 6 unchanged), *"


@pytest.mark.parametrize(
    ("module", "options", "failed", "passed", "text"),
    [
        ("pytest_asyncio", "-p asyncio -o asyncio_default_fixture_loop_scope=function", 1, 3, ONE_OF_FIVE),
        ("pytest_cov", "-p pytest_cov --cov=test_it", 1, 3, ONE_OF_FIVE),
        ("pytest_randomly", "-p randomly --randomly-seed=7", 1, 3, ONE_OF_FIVE),
        ("pytest_repeat", "-p repeat --count=2", 2, 6, "14 metrics (2 regressed, 12 unchanged), *"),
        ("pytest_rerunfailures", "-p rerunfailures --reruns=2", 1, 3, ONE_OF_FIVE),
        ("pytest_split", "-p pytest-split --splits=2 --group=1", 0, 2, "4 metrics (4 unchanged), *"),
        ("pytest_timeout", "--timeout=60", 1, 3, ONE_OF_FIVE),
        ("xdist", "-n2 --dist=loadscope", 1, 3, ONE_OF_FIVE),
    ],
)
def test_each_case_is_judged_once_by_its_own_baseline_if_another_plugin_is_there(
    project: Project, module: str, options: str, failed: int, passed: int, text: str
) -> None:
    pytest.importorskip(module)
    made = project(CASES)
    with made.path.joinpath("tox.ini").open("a") as ini:
        ini.write("\nfilterwarnings = error\n")
    assert run(made, "--distbench-update").ret == 0
    before = {path: path.read_bytes() for path in stored(made)}
    made.path.joinpath("slow").touch()
    found = made.runpytest_subprocess(*options.split(), "--distbench-update=new", "--distbench-prune")

    found.stdout.fnmatch_lines([text])
    found.stdout.no_fnmatch_line("*WITHOUT A TEST*")
    outcomes = found.parseoutcomes()
    assert (outcomes.get("failed", 0), outcomes["passed"]) == (failed, passed)
    assert found.ret == (failed > 0)
    assert len(before) == 5
    assert {path: path.read_bytes() for path in stored(made)} == before


SUBTESTS = """
    def body(rank):
        pass

    def test_parts(distbench, subtests):
        for part in ("one", "two"):
            with subtests.test(part=part):
                distbench.run(body, params={"stand_in": {"step": 0.04}}, name=NAME)
"""


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("part", ["2 metrics (2 new), *"]),
        (
            "''",
            [
                "*this test already has a run without a name: give each run its own name=*",
                "1 metric (1 new), *",
            ],
        ),
    ],
)
def test_two_runs_of_one_test_as_subtests_have_a_name_each(project: Project, name: str, told: list[str]) -> None:
    found = run(project(SUBTESTS.replace("NAME", name)))

    found.stdout.fnmatch_lines(told)
    assert found.ret == (name != "part")
