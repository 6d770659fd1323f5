"""The tables of verdicts: those of a run, of planted slowdowns, and of a history."""

from __future__ import annotations

import dataclasses

import pytest
from support.results import PAIRED, result, verdict

from pytest_distbench.judging.stats import ChangePoint
from pytest_distbench.records.record import replace
from pytest_distbench.records.run import Control, Point, Trend
from pytest_distbench.report.tables.verdicts import CONTROL, VERDICTS, TrendRow, points_section, trends_section


def trend(*commits: str, better: str = "lower", unit: str = "s") -> Trend:
    points = [Point(f"2026-01-{i + 1:02}T00:00:00+00:00", commit, 1.0 + i) for i, commit in enumerate(commits)]
    return Trend(
        platform="cpu-x", test="test_a.py::test_a", case="ws2.gloo.warm", title="test_a[ws2]",
        nodeid="test_a.py::test_a[ws2]", world_size=2, metric="step", unit=unit, better=better, points=points,
    )  # fmt: skip


def changed(made: Trend, index: int, after: float = 2.0) -> TrendRow:
    return TrendRow(trend=made, change=ChangePoint(index=index, before=1.0, after=after))


def test_a_change_lies_between_two_commits_and_has_the_command_that_finds_it() -> None:
    row = changed(trend("a" * 40, "b" * 40, "c" * 40), 2)
    section = trends_section([row])

    assert row.commits == ("b" * 40, "c" * 40)
    assert row.bisect == (
        "git bisect start cccccccccc bbbbbbbbbb && git bisect run distbench verdict --metric 'step' "
        "'test_a.py::test_a[ws2]' --world-size 2 --distbench-against bbbbbbbbbb"
    )
    assert section.texts == [
        ["test_a[ws2]", "step", "3", "1 s", "2 s", "+100.0 %", "worse", "2026-01-03", "bbbbbbbbbb", "cccccccccc"]
    ]


def test_a_slow_test_is_bisected_with_the_option_that_runs_it() -> None:
    row = changed(dataclasses.replace(trend("a" * 40, "b" * 40), is_slow=True), 1)

    assert "--world-size 2 --distbench-full --distbench-against aaaaaaaaaa" in row.bisect


def test_what_nobody_can_know_is_not_called_steady() -> None:
    few, enough = trend(*"ab"), trend(*"a" * 18)
    some = dataclasses.replace(enough, points=[*enough.points[:-1], Point("2026-02-01", "a", 0.0)])
    zeros = dataclasses.replace(enough, points=[point._replace(value=0.0) for point in enough.points])
    kinds = [TrendRow(trend=made, change=None).kind for made in (few, enough, zeros, some)]

    assert kinds == ["not enough runs (2 of 18)", "steady", "steady", "not compared: values of 0"]


@pytest.mark.parametrize(
    ("better", "after", "kind"),
    [
        ("lower", 2.0, "worse"),
        ("lower", 0.5, "better"),
        ("higher", 2.0, "better"),
        ("higher", 0.5, "worse"),
        ("exact", 2.0, "changed"),
        ("info", 0.5, "changed"),
    ],
)
def test_a_direction_is_that_of_the_metric(better: str, after: float, kind: str) -> None:
    section = trends_section([changed(trend("a", "b", better=better), 1, after)])

    assert section.texts[0][section.header.index("")] == kind


@pytest.mark.parametrize("commits", [("", "b"), ("a", ""), ("a", "a"), ("a", "a-dirty")])
def test_where_no_commit_lies_between_there_is_nothing_to_bisect(commits: tuple[str, str]) -> None:
    assert changed(trend(*commits), 1).bisect == ""


def test_trends_are_points_with_commits_and_without_a_change_the_first_beside_the_last() -> None:
    row = TrendRow(trend=trend(*"abcdefghij"), change=None)
    assert (row.first, row.last, row.commits, row.bisect) == (3.0, 8.0, ("", ""), "")

    section = points_section([trend("a" * 40, f"{'b' * 40}-dirty")])
    assert section.texts == [
        ["test_a[ws2]", "step", "2026-01-01T00:00:00+00:00", "aaaaaaaaaa", "1 s"],
        ["test_a[ws2]", "step", "2026-01-02T00:00:00+00:00", "bbbbbbbbbb-dirty", "2 s"],
    ]


def test_each_clock_is_a_row_with_what_was_planted_and_seen() -> None:
    verdicts = [verdict("beyond-threshold", ratio=1.19), verdict("noise", metric="rate", better="higher", ratio=0.9)]
    control = Control(share=0.25, step="turns", verdicts=verdicts, launches=16, took_s=4.0)
    section = CONTROL.section([result(), replace(result(), control=control)])

    assert section.texts == [
        ["test_a[ws2]", "step", "+25.0 %", "+19.0 %", "yes", "turns", "16", "4 s"],
        ["test_a[ws2]", "rate", "-20.0 %", "-10.0 %", "no", "turns", "16", "4 s"],
    ]
    assert section.table.rows[1][2:5] == [0.8, pytest.approx(0.9), False]


def test_verdicts_come_the_gravest_first_beside_the_other_side() -> None:
    section = VERDICTS.section([result(verdict("within-threshold")), result(verdict("beyond-threshold"))])
    assert [row[0].value for row in section.rows] == ["regressed", "unchanged"]
    assert section.header == [
        "verdict",
        "reason",
        "test",
        "metric",
        "this run",
        "baseline",
        "statistic",
        "change",
        "threshold",
        "MDE",
        "n",
    ]
    assert section.texts[0] == [
        "regressed",
        "beyond-threshold",
        "test_a[ws2]",
        "step",
        "30 ms",
        "20 ms",
        "median",
        "+50.0 %",
        "+10%",
        "",
        "5",
    ]
    row = dict(zip(section.columns, next(iter(section.table.rows)), strict=True))
    assert (row["test"], row["current"], row["ratio"]) == ("suites/test_a.py::test_a[ws2]", 0.03, 1.5)

    assert "baseline" in VERDICTS.section([result(verdict(), reference=PAIRED)]).header
