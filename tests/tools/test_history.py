"""Metrics over many run records, and where their level changed."""

from __future__ import annotations

import dataclasses
import math
import random
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import geometric_mean

import pandas as pd
import pytest
from support.results import result, run, verdict
from support.stores import launches
from support.trends import daily, steps

from pytest_distbench.commands.cli import main
from pytest_distbench.errors import ConfigurationError
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.metric import Sample
from pytest_distbench.records.record import replace
from pytest_distbench.records.run import CaseResult
from pytest_distbench.report.page.content import page_of
from pytest_distbench.store.files import read_run_record, write_run_record
from pytest_distbench.tools.history import (
    LEAST_RUNS,
    Point,
    Trend,
    TrendRow,
    change_points,
    charts_of_trends,
    fewest_runs,
    points_table,
    read_history,
    rows_of,
    trend_chart,
    trends_table,
)

AT = 25
"""The first run after the change."""
VERDICT = "distbench verdict --metric 'step' 'suites/test_a.py::test_a[ws2]' --world-size 2"


def write(folder: Path, runs: int, change: float = 1.0, other: float = 1.0) -> None:
    """Records of runs a day apart: a step of 20 ms and another number, which change at run 25, and a shown rate."""
    dice = random.Random(7)
    for i in range(runs):
        step = 0.02 * math.exp(0.02 * dice.gauss(0, 1)) * (change if i >= AT else 1)
        usual = Sample(name="step", unit="s", better="lower", value=step)
        measured = [usual, Sample(name="rate", unit="1/s", better="info", value=1 / step)]
        if other != 1.0:
            value = 0.5 * math.exp(0.02 * dice.gauss(0, 1)) * (other if i >= AT else 1)
            measured.append(Sample(name="load", unit="s", better="lower", value=value))
        launch = LaunchRecord(index=0, outcome="passed", wall_s=1.0, measurements=measured)
        started = f"2026-{1 + i // 28:02}-{1 + i % 28:02}T00:00:00+00:00"
        write_run_record(folder / f"{i}.json", run(result(launches=[launch]), started=started, commit=f"{i:02}" * 20))


def history(capsys: pytest.CaptureFixture[str], *arguments: object, code: int = 0) -> Sequence[str]:
    """What it prints; of an error that."""
    assert main(["history", *map(str, arguments)]) == code
    told = capsys.readouterr()
    return (told.err if code else told.out).splitlines()


def test_a_change_is_a_row_and_a_command_to_find_its_commit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, 50, change=1.2)
    head, _, header, row, *rest = history(capsys, tmp_path)

    assert head == "50 runs, 2026-01-01 to 2026-02-22: 1 metric, 1 changed"
    assert header.split()[:3] == ["test", "metric", "runs"]
    assert row.split()[:3] == ["test_a[ws2]", "step", "50"]
    assert row.split()[-4:] == ["worse", "2026-01-26", "2424242424", "2525252525"]
    command = f"  git bisect start 2525252525 2424242424 && git bisect run {VERDICT} --distbench-against 2424242424"
    assert rest == ["", "find the commit:", command]


def test_all_shows_what_did_not_change_or_is_not_judged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, 6)
    lines = history(capsys, tmp_path, "--all")

    assert lines[0] == "6 runs, 2026-01-01 to 2026-01-06: 2 metrics, not enough runs (6 of 18)"
    assert [line.split()[1] for line in lines[-2:]] == ["rate", "step"]
    assert all(line.endswith("not enough runs (6 of 18)") for line in lines[-2:])
    assert len(history(capsys, tmp_path, "--all", "-k", "rat")) == len(lines) - 1
    (tmp_path / "x.json").write_text("no record")
    head, *problems = history(capsys, tmp_path, "--format", "markdown")
    assert head.endswith("1 metric, not enough runs (6 of 18)")
    assert len(problems) == 1
    assert problems[0].startswith("1 file not read, such as ")


def test_points_and_changes_are_tables_for_programs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, 50, change=1.2)
    out = tmp_path / "out.parquet"
    [told] = history(capsys, tmp_path, "--points", "--format", "parquet", "-o", out)
    points = pd.read_parquet(out)
    header, line = history(capsys, tmp_path, "--format", "csv")

    assert told == f"50 rows written to {out}"
    assert list(points["commit"])[:2] == ["00" * 20, "01" * 20]
    assert points["value"].between(0.018, 0.028).all()
    assert header.startswith("platform,test,metric,unit,runs,before,after,change,kind,since,last_before,first_after")
    assert line.startswith("cpu-x,suites/test_a.py::test_a[ws2],step,s,50,0.02")


def test_runs_that_did_not_change_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, 50)

    assert history(capsys, tmp_path) == ["50 runs, 2026-01-01 to 2026-02-22: 1 metric, 0 changed"]
    assert "is not a folder: give one that holds run records" in history(capsys, tmp_path / "nowhere", code=2)[0]


def test_metrics_that_changed_at_once_have_the_worst_ones_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, 50, change=1.2, other=1.6)
    lines = history(capsys, tmp_path)

    assert lines[0].endswith("2 metrics, 2 changed")
    [command] = [line for line in lines if "git bisect" in line]
    assert "--metric 'load'" in command


def trend(*commits: str, better: str = "lower") -> Trend:
    made = daily([1.0 + i for i in range(len(commits))])
    points = [point._replace(commit=commit) for point, commit in zip(made.points, commits, strict=True)]
    return dataclasses.replace(made, sample=replace(made.sample, better=better), points=points)


def changed(made: Trend, index: int, after: float = 2.0) -> TrendRow:
    return TrendRow(made, index, 1.0, after)


def test_a_change_lies_between_two_commits_and_has_the_command_that_finds_it() -> None:
    row = changed(trend("a" * 40, "b" * 40, "c" * 40), 2)
    section = trends_table([row])

    assert row.commits == ("b" * 40, "c" * 40)
    assert row.bisect == (
        "git bisect start cccccccccc bbbbbbbbbb && git bisect run distbench verdict --metric 'step' "
        "'suites/test_a.py::test_a[ws2]' --world-size 2 --distbench-against bbbbbbbbbb"
    )
    text = ["test_a[ws2]", "step", "3", "1 s", "2 s", "+100.0 %", "worse", "2026-01-03", "bbbbbbbbbb", "cccccccccc"]
    assert section.texts == [text]


def test_a_slow_test_is_bisected_with_the_option_that_runs_it() -> None:
    row = changed(dataclasses.replace(trend("a" * 40, "b" * 40), is_slow=True), 1)

    assert "--world-size 2 --distbench-full --distbench-against aaaaaaaaaa" in row.bisect


def test_what_nobody_can_know_is_not_called_steady() -> None:
    few, enough = trend(*"ab"), trend(*"a" * 18)
    enough = dataclasses.replace(enough, points=[point._replace(value=1.0) for point in enough.points])
    some = dataclasses.replace(enough, points=[*enough.points[:-1], Point("2026-02-01", "a", 0.0)])
    zeros = dataclasses.replace(enough, points=[point._replace(value=0.0) for point in enough.points])
    kinds = [row.kind for made in (few, enough, zeros, some) for row in rows_of(made, is_shown=True)]

    assert kinds == ["not enough runs (2 of 18)", "steady", "steady", "not compared: values of 0"]


def test_a_direction_is_that_of_the_metric() -> None:
    found = [
        (b, after, changed(trend("a", "b", better=b), 1, after).kind) for b in ("lower", "higher") for after in (2, 0.5)
    ]

    assert found == [("lower", 2, "worse"), ("lower", 0.5, "better"), ("higher", 2, "better"), ("higher", 0.5, "worse")]
    assert [changed(trend("a", "b", better=better), 1).kind for better in ("exact", "info")] == ["changed"] * 2


@pytest.mark.parametrize("commits", [("", "b"), ("a", ""), ("a", "a"), ("a", "a-dirty")])
def test_where_no_commit_lies_between_there_is_nothing_to_bisect(commits: tuple[str, str]) -> None:
    assert changed(trend(*commits), 1).bisect == ""


def test_a_trend_without_a_change_has_a_row_of_its_first_and_last_level() -> None:
    [row] = rows_of(trend(*"abcdefghij"), is_shown=True)
    assert (row.before, row.after, row.commits, row.bisect) == (3.0, 8.0, ("", ""), "")

    section = points_table([trend("a" * 40, f"{'b' * 40}-dirty")])
    assert section.texts == [
        ["test_a[ws2]", "step", "2026-01-01T00:00:00+00:00", "aaaaaaaaaa", "1 s"],
        ["test_a[ws2]", "step", "2026-01-02T00:00:00+00:00", "bbbbbbbbbb-dirty", "2 s"],
    ]


def write_day(folder: Path, day: int, *values: float) -> Path:
    """A record of that day whose launches measured these."""
    made = run(result(launches=launches(*values)), started=f"2026-01-{day:02}T00:00:00+00:00", commit=f"c{day}")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{day}.json"
    write_run_record(path, made)
    return path


def values(folder: Path, last: int = 100) -> dict[str, list[float]]:
    return {trend.metric: [point.value for point in trend.points] for trend in read_history(folder, last=last)[0]}


def test_a_metric_has_the_judged_number_of_each_run_by_their_start(tmp_path: Path) -> None:
    write_day(tmp_path, 2, 2.0)
    write_day(tmp_path / "below", 1, 1.0, 1.5, 1.25)
    [found], starts, _ = read_history(tmp_path)

    assert [(point.at[:10], point.commit, point.value) for point in found.points] == [
        ("2026-01-01", "c1", geometric_mean([1.0, 1.5, 1.25])), ("2026-01-02", "c2", 2.0),
    ]  # fmt: skip
    case, unit = found.result, found.sample.unit
    assert (case.case.title, case.nodeid, unit) == ("test_a[ws2]", "suites/test_a.py::test_a[ws2]", "s")
    assert [start[:10] for start in starts] == ["2026-01-01", "2026-01-02"]


def test_a_file_that_is_no_run_record_is_reported_and_the_others_count(tmp_path: Path) -> None:
    write_day(tmp_path, 1, 1.0)
    write_day(tmp_path / ".hidden", 2, 2.0)
    truncated = write_day(tmp_path, 3, 3.0)
    truncated.write_bytes(truncated.read_bytes()[:-100])
    (tmp_path / "later.json").write_text('{"schema": 99}')
    _, _, problems = read_history(tmp_path)

    assert values(tmp_path) == {"step": [1.0]}
    assert [str(tmp_path / name) in problem for name, problem in zip(["3", "later"], problems, strict=True)]
    assert "schema" in problems[1]


def test_a_test_is_slow_that_nothing_but_runs_with_the_slow_ones_measured(tmp_path: Path) -> None:
    path = write_day(tmp_path, 3, 1.0)
    write_run_record(path, replace(read_run_record(path), settings={"full": "true"}))
    assert [trend.is_slow for trend in read_history(tmp_path)[0]] == [True]
    write_day(tmp_path, 2, 1.0)
    assert [trend.is_slow for trend in read_history(tmp_path)[0]] == [False]


def test_only_the_last_runs_count_where_that_is_asked_for(tmp_path: Path) -> None:
    for day in (3, 1, 2):
        write_day(tmp_path, day, float(day))

    assert values(tmp_path, last=2) == {"step": [2.0, pytest.approx(3.0)]}


def test_a_trend_is_a_dot_per_run_and_a_line_per_level_by_date_and_by_commit() -> None:
    values = steps(20, 1.0, 1.2, 3.0)
    made = daily(values)
    choice = trend_chart(made, change_points(values))
    assert choice["names"] == ["by date", "by commit"]
    by_date, by_commit = choice["charts"]
    begin = datetime(2026, 1, 1, tzinfo=UTC).timestamp()
    runs, level = by_date["series"]
    assert (runs["points"][1], runs["look"]) == ((begin + 86400, 1.0), "dots")
    assert runs["names"][0] == "2026-01-01 cccccccc00"
    assert level["points"] == [(begin, 1.0), (begin + 20 * 86400, 1.2), (begin + 40 * 86400, 3.0)]
    assert level["labels"] == ["", "+20.0 %", "+150.0 %"]
    assert (by_date["x"]["unit"], by_commit["x"]["ticks"][:2]) == ("date", ["cccccccc00", "cccccccc01"])
    assert [x for x, _ in by_commit["series"][1]["points"]] == [0, 20, 40]

    again = dataclasses.replace(made, points=[point._replace(commit="c" * 40) for point in made.points])
    choice = trend_chart(again, [])
    assert choice["names"] == ["by date"]
    assert [series["name"] for series in choice["charts"][0]["series"]] == ["a run"]


def test_a_history_has_charts_of_changed_metrics_alone() -> None:
    regressed = result(verdict("beyond-threshold"), outcome="failed")
    way = daily(steps(20, 0.02, 0.03), case=regressed.case.id)
    charts = charts_of_trends([way, daily(steps(20, 1.0), case="another")])

    def titles(made: CaseResult) -> list[str]:
        [case] = page_of(run(made), {}, charts={"history": charts})["cases"]
        return [chart["title"] for one in case.get("charts", ()) if one["type"] == "choice" for chart in one["charts"]]

    assert titles(regressed) == ["History of step"] * 2
    assert titles(result(verdict())) == []


def noise(seed: int, runs: int = 200, spread: float = 0.03) -> list[float]:
    dice = random.Random(seed)
    return [0.02 * math.exp(spread * dice.gauss(0, 1)) for _ in range(runs)]


@pytest.mark.parametrize("seed", range(20))
def test_pure_noise_has_none(seed: int) -> None:
    assert change_points(noise(seed)) == []


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("factor", [1.1, 0.9])
def test_an_injected_change_is_found_within_two_runs(seed: int, factor: float) -> None:
    at = 20 + 16 * seed
    values = [value * factor if i >= at else value for i, value in enumerate(noise(seed))]
    [(index, before, after)] = change_points(values)

    assert abs(index - at) <= 2
    assert after / before == pytest.approx(factor, abs=0.03)


def test_levels_change_where_they_do_and_runs_that_stand_out_alone_are_noise() -> None:
    values = [value * (1.2 if 60 <= i < 120 else 1.0) for i, value in enumerate(noise(1))]
    assert [index for index, _, _ in change_points(values)] == pytest.approx([60, 120], abs=2)

    [found] = change_points([7.0] * 30 + [8.0] * LEAST_RUNS)
    assert found == (30, 7.0, 8.0)

    values = noise(2)
    for i in (30, 90, 91, 150):
        values[i] *= 5

    assert change_points(values) == []

    assert fewest_runs() == 18
    assert change_points([level * (1 + 0.01 * math.sin(i)) for level in (1.0, 1.5) for i in range(8)]) == []


@pytest.mark.parametrize(
    "values",
    [
        [],
        [1.0] * (LEAST_RUNS - 1) + [2.0] * LEAST_RUNS,  # too few
        [1.0] * 30 + [1.001] * 30,  # too small
        [0.0] * 30 + [1.0] * 30,  # no logarithm
        [3.0] * 60,
    ],
)
def test_of_anything_else_nothing_is_said(values: list[float]) -> None:
    assert change_points(values) == []


def test_without_the_library_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ruptures", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'pytest-distbench\[history\]'"):
        change_points(noise(1))


def test_without_the_library_the_first_runs_are_compared_with_the_last(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, 40, change=1.5)
    monkeypatch.setitem(sys.modules, "ruptures", None)
    first, hint, _, _, row = history(capsys, tmp_path)

    assert first.endswith("1 metric, changes not searched")
    assert hint.endswith("to find where a level changed: pip install 'pytest-distbench[history]'")
    assert "changes not searched" in row


@pytest.mark.parametrize(("before", "after"), [(9, 9), (10, 10), (11, 11), (20, 5), (8, 12)])
def test_levels_that_do_not_overlap_are_found_from_the_fewest_possible_runs(before: int, after: int) -> None:
    values = [level * (1 + 0.01 * math.sin(i)) for level, n in ((1.0, before), (1.5, after)) for i in range(n)]

    assert [index for index, _, _ in change_points(values)] == [before]
