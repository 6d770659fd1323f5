"""distbench calibrate: what it says about made-up noise of known size, and what its user sees."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable

import pytest
from support.calibrations import case_result

from pytest_distbench.commands.calibrate import analyse
from pytest_distbench.commands.cli import main
from pytest_distbench.errors import DistbenchError
from pytest_distbench.records.metric import Summary
from pytest_distbench.records.record import replace
from pytest_distbench.records.run import CaseResult

Project = Callable[[str], pytest.Pytester]

EXIT_ERROR = 2

TEST = """
    def body(rank):
        pass

    def test_step(distbench):
        stand_in = {"step": [0.0200, 0.0201, 0.0199, 0.0202, 0.0198], "count!exact": 7}
        distbench.run(body, params={"stand_in": stand_in})

    def test_count(distbench):
        distbench.run(body, params={"stand_in": {"count!exact": 7}})

    def test_wrong():
        assert False
"""


def test_noise_is_that_of_what_the_rule_judges_not_of_the_percentile_alone() -> None:
    minimum, values = [1.0, 1.1, 1.0, 1.1, 1.0], [2.0] * 5
    summaries = [
        Summary(n=9, minimum=low, p25=2.0, median=2.0, p95=3.0, p99=3.0, mean=2.0, stdev=0.1) for low in minimum
    ]
    whole = case_result({"step": values})
    launches = [
        replace(launch, measurements=[replace(launch.measurements[0], summary=summary)])
        for launch, summary in zip(whole.launches, summaries, strict=True)
    ]
    found = analyse([[replace(whole, launches=launches)]] * 2, tolerance=0.1, duration_s=1.0)

    assert found.cases[0].metrics[0].sigma == pytest.approx(
        statistics.stdev([0.5 * math.log(low) for low in minimum] * 2)
    )


@pytest.mark.parametrize(
    "rounds",
    [
        [],
        [[case_result({"step": [1.0]})], [case_result({"step": [1.0]})]],
        [[case_result({"count": [7.0] * 5}, better="exact")]] * 2,
        [[case_result({"step": [0.0] * 5})]] * 2,
        [[replace(case_result({"step": [1.0] * 5}), launches=[])]] * 2,
    ],
    ids=["nothing", "too few launches", "exact", "zero", "no launches"],
)
def test_what_has_no_noise_is_an_error_that_says_what_is_wanted(rounds: list[list[CaseResult]]) -> None:
    with pytest.raises(DistbenchError, match=r"no judged time or throughput has 5 launches.*at least --launches 5"):
        analyse(rounds, tolerance=0.1, duration_s=1.0)


def test_launches_that_failed_do_not_count() -> None:
    whole = case_result({"step": [1.0, 1.1, 1.0, 1.1, 500.0]})
    broken = replace(whole, launches=[*whole.launches[:4], replace(whole.launches[4], outcome="failed")])

    assert analyse([[broken], [broken]], tolerance=0.1, duration_s=1.0).cases[0].rounds == [4, 4]


def test_the_command_measures_in_rounds_and_writes_its_findings(
    project: Project, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = project(TEST)
    made.makeini(
        "[pytest]\ndistbench_launcher = stand-in\ndistbench_update = all\n"
        "distbench_against = HEAD\ndistbench_against_python = nowhere\n"
        "distbench_attach = 0\naddopts = -p no:sugar -p no:cacheprovider --distbench-against=main\n"
    )
    monkeypatch.chdir(made.path)
    code = main(["calibrate", "-k", "step or wrong", "--launches", "10", "--json", "out/found.json", "test_it.py"])

    out = capfd.readouterr().out
    assert code == 0
    assert "round 1 of 2: 5 launches of every case ..." in out
    assert "  FAILED test_it.py::test_wrong - assert False" in out
    assert "test_it.py::test_step[ws2]  5+5 launches" in out
    assert "proposed: @pytest.mark.distbench(tolerance=0.03)" in out
    written = json.loads((made.path / "out" / "found.json").read_text())
    assert written["cases"][0]["metrics"][0]["sigma"] == pytest.approx(0.0075, rel=0.05)
    assert not (made.path / "baselines").exists()


def test_a_round_that_measured_nothing_is_the_last(
    project: Project, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = project(TEST)
    monkeypatch.chdir(made.path)

    assert main(["calibrate", "-k", "wrong"]) == EXIT_ERROR
    said = capfd.readouterr()
    assert said.out.splitlines() == [
        "round 1 of 4: 5 launches of every case ...",
        "  FAILED test_it.py::test_wrong - assert False",
    ]
    assert "measured in 1 round: nothing" in said.err


def test_with_seconds_it_measures_two_rounds_at_least(
    project: Project, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = project(TEST)
    monkeypatch.setenv("TMPDIR", str(made.path))
    monkeypatch.chdir(made.path)

    assert main(["calibrate", "-k", "step", "--seconds", "0.1"]) == 0
    assert "test_it.py::test_step[ws2]  5+5 launches" in capfd.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-k", "nothing_here"], "ended with exit code 5 and measured nothing. It said last:"),
        (["--distbench-update=all"], "--distbench-update: calibrate measures without baselines"),
        (["--distbench-against-python=x"], "--distbench-against-python: calibrate measures without baselines"),
        (["--distbench-against-tolerance", "0.1"], "--distbench-against-tolerance: calibrate measures without"),
        (["--distbench-prune"], "--distbench-prune: calibrate measures without baselines"),
        (["--distbench-share-gpu"], "--distbench-share-gpu: calibrate measures without baselines"),
        (["--distbench-launches", "7"], "The number of launches is --launches N"),
        (["--json", "."], "--json: . is a folder; give a file"),
    ],
)
def test_errors_say_what_was_wanted(
    project: Project,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    message: str,
) -> None:
    made = project(TEST)
    monkeypatch.chdir(made.path)

    assert main(["calibrate", "--launches", "5", *arguments]) == EXIT_ERROR
    assert message in capfd.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        ["--launches", "4"],
        ["--launches", "x"],
        ["--seconds", "-1"],
        ["--seconds", "nan"],
        ["--tolerance", "0"],
        ["--launches", "10", "--seconds", "5"],
    ],
)
def test_unusable_numbers_are_usage_errors(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["calibrate", *arguments])

    assert "usage: distbench calibrate" in capsys.readouterr().err


def test_other_commands_still_know_their_options(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["doctor", "--world-size", "2"])

    assert "unrecognized arguments: --world-size 2" in capsys.readouterr().err
