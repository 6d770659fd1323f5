"""Bounds, as a user meets them: in the first run, with a baseline, in updates, and in later reports."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest
from support.launching import RunInside
from support.projects import Project, run, stored

from pytest_distbench.commands.cli import main
from pytest_distbench.frames import read_run

HEAD = """
    import pytest

    def body(rank):
        pass
"""
BOUNDED = (
    HEAD
    + """
    @pytest.mark.distbench(bounds={"step": "25ms"})
    def test_step(distbench):
        distbench.run(body, params={"stand_in": {"step": [0.0200, 0.0201, 0.0199, 0.0202, 0.0198]}})
"""
)
SLOWER = "DISTBENCH_STAND_IN_FACTOR"

Slow = Callable[[], None]


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Slow:
    """Makes the ranks twice as slow, so that the step takes 40 ms."""
    return lambda: monkeypatch.setenv(SLOWER, "2")


def test_a_bound_fails_at_the_first_run_with_value_bound_and_place(project: Project, slow: Slow) -> None:
    slow()
    made = project(BOUNDED)
    result = run(made)

    result.stdout.fnmatch_lines(
        [
            "step: 40 ms, bound: at most 25 ms (marker of test_step[[]ws2])",
            "!  step * 40 ms * <= 25 ms * 3",
            "no update accepts this: fix what was measured, or change the bound where it was set",
            "* metric* (1 regressed*), 3 launch* in *",
            "FAILED test_it.py::test_step[[]ws2] - BeyondBound: step: 40 ms*",
        ]
    )
    assert result.ret == 1


def test_an_update_stores_nothing_that_is_beyond_a_bound(project: Project, slow: Slow) -> None:
    made = project(BOUNDED)
    assert run(made, "--distbench-update").ret == 0
    before = stored(made)[0].read_text()
    slow()
    for mode in ("changed", "failed", "all"):
        result = run(made, f"--distbench-update={mode}")

        result.stdout.fnmatch_lines(["step: 40 ms, bound: at most 25 ms*", "baselines in *1 not stored"])
        assert result.ret == 1
        assert stored(made)[0].read_text() == before


def set_by_hand(made: pytest.Pytester, **bounds: object) -> Path:
    [path] = stored(made)
    content = json.loads(path.read_text())
    content["entry"]["bounds"] = bounds
    path.write_text(json.dumps(content))
    return path


def test_a_bound_in_a_baseline_file_holds_and_survives_updates(
    project: Project, slow: Slow, capsys: pytest.CaptureFixture[str]
) -> None:
    made = project(BOUNDED.replace("bounds=", "tolerance=0.2) # "))
    assert run(made, "--distbench-update").ret == 0
    path = set_by_hand(made, step="<= 30 ms")
    assert run(made, "--distbench-update=all").ret == 0
    assert json.loads(path.read_text())["entry"]["bounds"] == {"step": "<= 30 ms"}
    assert main(["baseline", "show", "--baselines", str(made.path / "baselines")]) == 0
    assert 'bounds: {"step":"<= 30 ms"}' in capsys.readouterr().out
    slow()
    result = run(made)

    place = f"baselines/{path.relative_to(made.path / 'baselines')}".replace("[", "[[]")
    result.stdout.fnmatch_lines([f"step: 40 ms, bound: at most 30 ms ({place})"])
    set_by_hand(made, step="10 GB/s")
    run(made).stdout.fnmatch_lines(["*the bound of 'step' (*.json): the unit 'GB/s' does not fit: wanted a time*"])
    set_by_hand(made, stap="10 ms")
    run(made).stdout.fnmatch_lines(
        ["*the bound of 'stap' (*.json) names no metric that was judged; the metrics are step*"]
    )
    set_by_hand(made, step="soon")
    run(made).stderr.fnmatch_lines(["*not a baseline file: bounds of step: 'soon' is no bound*"])


def test_a_markers_bound_is_for_whichever_case_measures_it(project: Project) -> None:
    test = (
        HEAD
        + """
    @pytest.mark.distbench(bounds={"speed": ">= 60"})
    def test_speed(distbench):
        ran = distbench.run(body, params={"stand_in": {"step": 0.02}})
        distbench.judge("speed", lambda r: 1 / r["step"], of=[ran], better="higher")

    @pytest.mark.distbench(bounds={"sped": ">= 60"})
    def test_typo(distbench):
        distbench.run(body, params={"stand_in": {"step": 0.02}})
        distbench.measure(body, params={"stand_in": {"sped": 0.02}})
"""
    )
    result = run(project(test))

    result.stdout.fnmatch_lines(
        [
            "speed: 50, bound: at least 60 (marker of test_speed[[]ws2])",
            "*the bound of 'sped' (marker of test_typo[[]ws2]) names no metric that was judged; the metrics are step",
        ]
    )
    result.assert_outcomes(failed=2)


def test_accept_respects_bounds_of_the_baseline_file(
    project: Project, slow: Slow, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = project(BOUNDED)
    run(made, "--distbench-json=good.json", "--distbench-launches=5")
    slow()
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(made.path / "summary.md"))
    result = run(made, "--distbench-json=bad.json", "--distbench-launches=5")
    good, bad = str(made.path / "good.json"), str(made.path / "bad.json")

    result.stdout.fnmatch_lines(
        ["::error file=test_it.py,line=*,title=test_step[[]ws2]::step: 40 ms, bound: at most 25 ms *"]
    )
    assert "| step | test_step[ws2] | 40 ms | - | &lt;= 25 ms |" in (made.path / "summary.md").read_text()
    rows = read_run(bad)
    assert (set(rows.verdict), set(rows.at_most), rows.at_least.notna().any()) == ({"regressed"}, {0.025}, False)
    capsys.readouterr()
    assert main(["report", bad, "--table", "verdicts", "--format", "csv"]) == 0
    header, row = capsys.readouterr().out.splitlines()
    assert "at_least,at_most" in header
    assert row.startswith("regressed,bound,")
    store = ["--baselines", str(made.path / "baselines")]
    assert main(["baseline", "accept", bad, "--force", *store]) == 1
    assert "step violates a bound: 40 ms, bound: at most 25 ms (marker of test_step[ws2])" in capsys.readouterr().out
    assert main(["compare", bad, bad, "--fail"]) == 1
    assert "1 metric of 1 case: 1 regressed" in capsys.readouterr().out
    assert main(["compare", bad, good, "--fail"]) == 0
    assert main(["baseline", "accept", good, *store]) == 0
    path = set_by_hand(made, step="10ms")
    assert main(["baseline", "accept", good, "--only", "all", *store]) == 1
    assert path.exists()
    assert "(the baseline file)" in capsys.readouterr().out


PAGE = (Path(__file__).parents[2] / "docs" / "verdicts.md").read_text().partition("## Bounds")[2]
DATA = Path(__file__).parents[1] / "data"


@pytest.mark.spawn
def test_the_example_of_the_page_runs_as_it_says(pytester: pytest.Pytester, run_inside: RunInside) -> None:
    [example] = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    [told] = re.findall(r"```text\n(.*?)```", PAGE, re.DOTALL)
    pytester.makepyfile(test_bounds=example, train="print('step 1: 20 ms')")
    options = ("--world-size=2",)
    result = run_inside(*options)

    result.stdout.fnmatch_lines([line.replace("[", "[[]") for line in told.splitlines() if line])
    result.assert_outcomes(failed=1, passed=3)
    result.stdout.fnmatch_lines(["*1 regressed, *5 unchanged*"])

    pytester.makepyfile(train="print('step 1: 2500 ms')")
    slower = run_inside(*options, "-k", "script")
    slower.stdout.fnmatch_lines(["step_time: 2.5 s, bound: at most 2 s (read.stdout at test_bounds.py:25)"])


def test_the_import_of_the_page_runs_as_it_says(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    [(command, told)] = re.findall(r"```console\n\$ distbench ([^\n]*)\n(.*?)```", PAGE, re.DOTALL)
    lines = (DATA / "nccl-tests-2022.txt").read_text().splitlines(keepends=True)
    (pytester.path / "acceptance.txt").write_text("".join(line for line in lines if " half " not in line))
    monkeypatch.chdir(pytester.path)

    assert main(shlex.split(command)) == 0
    assert capsys.readouterr().out == told


def test_what_keeps_to_its_bound_is_judged_without_a_baseline(project: Project) -> None:
    result = run(project(BOUNDED), "--distbench-no-baseline=fail")

    result.stdout.fnmatch_lines(
        [
            "*test_it.py .*",
            "* metric* (* unchanged), 1 launch* in *",
            "*1 case *",
        ]
    )
    assert result.ret == 0


def test_judge_takes_bounds(project: Project) -> None:
    test = (
        HEAD
        + """
    def test_speed(distbench):
        ran = distbench.measure(body, params={"stand_in": {"step": 0.02}})
        distbench.judge("rate", lambda r: 0.1 / r["step"], of=[ran], unit="GB/s", better="higher", at_least="4000 MB/s")
        distbench.judge("loss", 2.6, better="info", at_most=2.5)

    def test_wrong(distbench):
        distbench.judge("loss", 2.6, unit="s", at_most="2 GB")
"""
    )
    result = run(project(test), "-v")

    result.stdout.fnmatch_lines(
        [
            "loss: 2.6, bound: at most 2.5 (judge at test_it.py:9)",
            "distbench.judge('loss'): at_most: the unit 'GB' does not fit: wanted a time* (test_it.py:12)",
            "*rate *5 GB/s* >= 4 GB/s *",
        ]
    )
    result.assert_outcomes(failed=2)


def test_bounds_of_information_alone_leave_nothing_to_store(project: Project) -> None:
    test = BOUNDED.replace('"step": [0.0200, 0.0201, 0.0199, 0.0202, 0.0198]', '"step!info": 2.0').replace(
        "25ms", "<= 3"
    )
    made = project(test)
    result = run(made, "--distbench-update", "-v")

    result.stdout.fnmatch_lines(["* step * <= 3 *", "*1 unchanged*"])
    assert (result.ret, stored(made)) == (0, [])


def test_an_expected_failure_covers_a_bound_too(project: Project, slow: Slow) -> None:
    slow()
    run(project(BOUNDED.replace("bounds=", "xfail_perf='bug 12', bounds="))).assert_outcomes(xfailed=1)


def test_an_imported_bound_is_judged(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    test = HEAD + '    def test_sweep(distbench):\n        distbench.run(body, params={"stand_in": SWEEP})\n'
    made = project(test.replace("SWEEP", '{"latency[message_bytes=1048576]": 9e-5, "latency[message_bytes=8]": 1e-5}'))
    run(made, "--distbench-json=run.json")
    platform = json.loads((made.path / "run.json").read_text())["results"][0]["environment"]["platform"]
    whose = ["--test", "test_it.py::test_sweep[ws2]", "--platform", platform, "--backend=gloo", "--launcher=stand-in"]
    command = ["baseline", "import", str(DATA / "nccl-tests-2020.txt"), "--as", "bounds", "--max-size=1MiB", *whose]
    store = ["--baselines", str(made.path / "baselines")]
    assert main([*command, "--min-size=1MiB", *store]) == 0
    result = run(made)

    result.stdout.fnmatch_lines(
        ["latency at 1 MiB: 90 us, bound: at most 76.43 us (baselines/cpu-*ws2.gloo.stand-in.json)*"]
    )
    assert main([*command, *store]) == 0
    run(made, "-v").stdout.fnmatch_lines(
        ["the bound of 'latency?message_bytes=65536?' (*) names no metric that was judged; *"]
    )
