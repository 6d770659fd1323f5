"""Verdicts in words: a line each, and as tables for a terminal or a pull request."""

from __future__ import annotations

from typing import Any

import pytest
from support.metrics import passed
from support.results import PAIRED, point, result, verdict
from support.stores import KEY, PLATFORM, entry

from pytest_distbench.commands.baseline import MOST_ROWS, change_lines, change_markdown
from pytest_distbench.judging.words import AXES, metric_text, point_text
from pytest_distbench.judging.words import change as change_text
from pytest_distbench.records.case import BaselineEntry, BaselineName
from pytest_distbench.records.metric import Sample, Scalar
from pytest_distbench.records.record import replace
from pytest_distbench.records.run import STATISTICS, CaseResult, name_in_file
from pytest_distbench.report.verdicts import MOST, case_table, number_properties, telling_verdicts, verdict_rows
from pytest_distbench.store.accept import BaselineChange, baseline_change


def test_many_pairs_are_represented_by_their_ends_and_what_changed() -> None:
    verdicts = [verdict("beyond-threshold" if i == 3 else "within-threshold", metric=f"m{i}") for i in range(8)]
    assert [v.metric for v in telling_verdicts(result(*verdicts, reference=PAIRED))] == ["m0", "m3", "m7"]


def change(name: str, old: BaselineEntry | None, new: BaselineEntry | None) -> BaselineChange:
    made = baseline_change(BaselineName(platform=PLATFORM, test=f"{name}.py::{name}", key=KEY), old, new)
    assert made is not None
    return made


def test_the_worst_stand_first_and_what_is_within_limits_is_counted() -> None:
    lines = change_lines(
        [change("better", entry(2.0), entry(1.0)), change("worse", entry(1.0), entry(2.0))], unchanged=3
    )
    assert [line.split("[")[0] for line in lines[1:3]] == ["worse.py::worse", "better.py::better"]
    assert lines[-1] == "2 changed, 0 new, 0 removed, 3 unchanged"

    made = result(verdict("beyond-threshold", metric="slow"), verdict("within-threshold", metric="fine"))
    assert case_table(made, show_all=False)[-1].text == "  1 more within their thresholds (-v shows all)"
    assert len(case_table(made, show_all=False)) == 4
    assert [line.text.split()[0] for line in case_table(made, show_all=True)[1:-1]] == ["!", "fine"]


def test_what_is_judged_is_named_once_and_by_row_where_rows_differ() -> None:
    by_launch, by_pair = verdict(metric="a", statistic="sqrt(min x p25)"), verdict(metric="b", statistic="A/B")

    lines = [line.text for line in case_table(result(by_launch, verdict(better="exact")), show_all=True)]
    assert lines[-1] == f"  this run, baseline: {STATISTICS['sqrt(min x p25)'].means}"
    lines = [line.text for line in case_table(result(by_pair, reference=PAIRED), show_all=True)]
    assert lines[-1] == f"  candidate, baseline: {STATISTICS['A/B'].means}"

    head, *rows = (line.text for line in case_table(result(by_launch, by_pair), show_all=True))
    assert head.endswith("  judged by")
    assert [row.rpartition("  ")[2] for row in rows] == ["lower quantile", "A/B"]


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"better": "higher", "ratio": 0.5}, "-50.0 %"),
        ({"better": "same", "ratio": 0.9}, "differs by 10.0 %"),
        ({"better": "same", "ratio": 1.0}, "+0.0 %"),
        ({"better": "curve", "ratio": 0.9, "facts": {"deviation": 0.1, "differs_most_at_step": 3}}, "at step 3"),
        (
            {"better": "curve", "ratio": 1.0, "facts": {"deviation": 3e-8, "differs_most_at_value": 2}},
            "3.0e-08 at value 2",
        ),
    ],
)
def test_a_loss_that_fell_looks_like_no_improvement(changes: dict[str, Any], text: str) -> None:
    assert text in change_text(verdict("losses", **changes))


def test_baselines_that_came_or_went_are_named_once_and_counted() -> None:
    lines = change_lines([change("a", None, entry(1.0, 2.0))], unchanged=0)
    assert lines[0] == f"new: a.py::a[{KEY}] (1 metric, 2 launches)"

    new = entry(1.0, software={"torch": "2.14.0"})
    lines = change_lines([change(name, entry(1.0), new) for name in "ab"], unchanged=0)
    assert lines == ["2 cases: software.torch 2.13.0 -> 2.14.0", "2 changed, 0 new, 0 removed, 0 unchanged"]

    changes = [change(f"t{i}", entry(1.0), entry(2.0)) for i in range(MOST_ROWS + 2)]
    assert "2 more metrics, less worse than these" in change_lines(changes, unchanged=0)
    assert len(change_lines(changes, unchanged=0)) == MOST_ROWS + 3

    lines = change_markdown([change("a", entry(1.0), entry(2.0))], unchanged=0)
    assert lines[0] == "### baselines: 1 changed, 0 new, 0 removed, 0 unchanged"
    assert lines[2].startswith("| test | metric | old | new |")


def columns_of(**changes: Any) -> dict[str, str]:
    """A verdict under all columns there are."""
    found = {}
    for is_paired in (False, True):
        header, [texts], _ = verdict_rows([verdict(**changes)], is_paired=is_paired)
        found |= dict(zip(header, texts, strict=True))
    return found


def test_cells_and_points_are_named_as_people_say_them() -> None:
    assert columns_of(code="beyond-threshold", mde=0.2) == {
        "": "!", "metric": "step", "this run": "30 ms", "baseline": "20 ms", "candidate": "30 ms",
        "change": "+50.0 %", "threshold": "+10%", "detects from": "+20.0%", "n": "5", "pairs": "5",
    }  # fmt: skip

    assert metric_text(point(4096)) == "latency at 4 KiB"

    stored, [texts], _ = verdict_rows([verdict()])
    paired, _, _ = verdict_rows([verdict()], is_paired=True)
    assert stored == ["", "metric", "this run", "baseline", "change", "threshold", "n"]
    assert texts[1:4] == ["step", "30 ms", "20 ms"]
    assert paired[2:4] == ["candidate", "baseline"]


@pytest.mark.parametrize(
    ("changes", "cell", "text"),
    [
        ({"baseline": None, "ratio": None}, "baseline", "-"),
        ({"baseline": None, "ratio": None}, "change", ""),
        ({"better": "info"}, "baseline", ""),
        ({"better": "info"}, "change", ""),
        ({"better": "info"}, "threshold", ""),
        ({"better": "higher"}, "threshold", "-9%"),
        ({"better": "exact", "threshold": 0.0}, "threshold", "exact"),
        ({"threshold": None}, "threshold", ""),
        ({"better": "memory", "unit": "B", "threshold": 2.0, "baseline": 1024.0}, "threshold", "+200%"),
        ({"better": "memory", "unit": "B", "threshold": 16384.0, "baseline": 1024.0}, "threshold", "+16 MiB"),
        ({"mde": 1.5}, "detects from", "> +100%"),
        ({"launches": 0}, "n", ""),
        ({"code": "communication"}, "change", "changed"),
    ],
)
def test_where_there_is_nothing_to_say_a_cell_says_so(changes: dict[str, Any], cell: str, text: str) -> None:
    assert columns_of(**changes)[cell] == text


@pytest.mark.parametrize(
    ("nodeid", "name"),
    [("a/test_a.py::TestA::test_b[x::y-ws2]", "TestA::test_b[x::y-ws2]"), ("docs/a.md", "docs/a.md")],
)
def test_a_test_is_named_with_its_class_whatever_its_id_holds(nodeid: str, name: str) -> None:
    assert name_in_file(nodeid) == name


@pytest.mark.parametrize(
    ("at", "text"),
    [
        ({}, "latency"),
        ({"message_bytes": 4096}, "latency at 4 KiB"),
        ({"world_size": 4}, "latency at 4 ranks"),
        ({"seed": 3}, "latency of seed 3"),
        ({"seed": 3, "message_bytes": 8}, "latency at 8 B of seed 3"),
        ({"from": 1, "to": 3}, "latency from rank 1 to rank 3"),
        ({"calls": "each", "tensors": 214}, "latency with one call each in 214 tensors"),
        ({"calls": "coalesced", "tensors": 1}, "latency coalesced in 1 tensor"),
        ({"hook": "fp16"}, "latency with the hook fp16"),
        ({"level": 2}, "latency[level=2]"),
        ({"level": 2, "message_bytes": 8}, "latency[level=2] at 8 B"),
    ],
)
def test_a_point_is_described_by_its_axes(at: dict[str, Scalar], text: str) -> None:
    assert point_text("latency", at) == text


def test_an_axis_from_outside_is_one_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(AXES, "level", lambda level: f"on level {level}")

    assert point_text("loss", {"level": 2}) == "loss on level 2"


def named(case: CaseResult, name: str) -> CaseResult:
    return replace(case, case=replace(case.case, run=name))


NONE: dict[str, Any] = {"baseline": None, "threshold": None}
EIGHT: dict[str, Any] = {"better": "exact", "threshold": 0.0, "unit": "", "current": 8.0, "baseline": 7.0}


@pytest.mark.parametrize(
    ("told", "text"),
    [
        (verdict("beyond-threshold"), "30 ms, regressed: +50.0 % (threshold +10%), baseline 20 ms, median launch"),
        (
            verdict("within-threshold", ratio=1.0),
            "20 ms, unchanged: +0.0 % (threshold +10%), baseline 20 ms, median launch",
        ),
        (verdict("beyond-threshold", **EIGHT), "8, regressed: +14.3 % (exact), baseline 7"),
        (verdict("no-baseline", **NONE), "30 ms, no baseline, median launch"),
        (verdict("other-workload", **NONE, reason="another one"), "30 ms, inconclusive: another one, median launch"),
        (verdict("communication", current=None, **NONE, reason="1 all_reduce"), "changed: 1 all_reduce"),
        (verdict("no-baseline", better="info", baseline=None), "30 ms"),
    ],
)
def test_a_number_has_its_value_its_verdict_its_limit_and_what_it_was_compared_with(told: Any, text: str) -> None:
    assert number_properties([result(told)]) == [("distbench.step", text)]


def test_exported_names_are_short_and_those_of_baseline_files() -> None:
    cases = [result(point(4096)), named(result(verdict()), "one"), named(result(verdict(metric="gain")), "gain")]
    names = ["latency[message_bytes=4096]", "one.step", "gain"]
    assert [name for name, _ in number_properties(cases)] == [f"distbench.{name}" for name in names]

    long = verdict("noise", metric="m" * 1000, reason="r" * 1000)
    secret = verdict("noise", metric="a[token=hunter2x]", reason="password=hunter2x \x1b[31m")
    found = number_properties([result(long, secret)])
    assert all(len(name) <= 170 and len(text) <= 250 for name, text in found)
    assert "hunter2x" not in str(found)
    assert "\x1b" not in found[1][1]


def test_a_first_run_says_once_that_its_number_is_the_new_baseline() -> None:
    first = result(verdict("no-baseline", **NONE, reason="no baseline for this metric"), update="new")

    assert number_properties([first]) == [("distbench.step", "30 ms, new baseline, median launch")]


def test_what_was_only_measured_is_shown_by_the_statistic_that_would_be_judged() -> None:
    launches = [passed(Sample(name="step", unit="s", better="lower", value=value)) for value in (0.02, 0.08)]

    assert number_properties([result(launches=launches)]) == [("distbench.step", "40 ms, mean launch")]


def test_of_many_numbers_those_that_did_not_stay_are_kept_in_the_order_of_the_sweep() -> None:
    sizes = range(1, 2 * MOST)
    slow = {5, 2 * MOST - 1}
    found = number_properties(
        [result(*[point(n, "beyond-threshold" if n in slow else "within-threshold") for n in sizes])]
    )
    names = [name for name, _ in found]

    assert len(found) == MOST
    assert names[-2] == f"distbench.latency[message_bytes={max(slow)}]"
    assert names[:6] == [f"distbench.latency[message_bytes={n}]" for n in range(1, 7)]
    assert found[-1] == ("distbench.more", f"{MOST} numbers are left out; --distbench-json FILE has all")
