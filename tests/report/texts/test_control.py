"""What is said of planted slowdowns: a row each, and how many would have been shown."""

from __future__ import annotations

import pytest
from support.results import result, verdict

from pytest_distbench.records.control import Control
from pytest_distbench.records.record import replace
from pytest_distbench.records.run import CaseResult
from pytest_distbench.report.texts.control import control_lines, not_found_headline, not_found_text

FOUND = Control(
    share=0.2, step="turns", has_baseline=True, verdicts=[verdict("regressed", ratio=1.19)], launches=16, took_s=4.0
)
LOST = Control(
    share=0.2, step="screening", has_baseline=True, verdicts=[verdict("unseen", ratio=1.02, detectable=0.3)], launches=1
)
UNTRIED = Control(why_not="its clocks are its own")


def of(control: Control) -> CaseResult:
    return replace(result(), control=control)


def test_each_case_is_a_row_and_the_last_line_counts_them() -> None:
    lines = control_lines([result(), of(FOUND), of(LOST), of(UNTRIED)])

    assert [line.text for line in lines] == [
        "   test         metric  slowdown                                       planted     seen  launches   time",
        "   test_a[ws2]  step    found                                          +20.0 %  +19.0 %        16  4.0 s",
        "?  test_a[ws2]  step    not found: not suspicious beside the baseline  +20.0 %   +2.0 %         1  0.0 s",
        "? nothing planted in test_a[ws2]: its clocks are its own",
        "1 of 2 cases would have shown a slowdown of their tolerance (planted: a third more)",
    ]
    assert [line.severity for line in lines] == ["plain", "plain", "doubt", "doubt", "doubt"]


def test_where_nothing_was_planted_nothing_is_said() -> None:
    assert control_lines([result()]) == []


def test_the_last_line_names_a_share_that_was_chosen() -> None:
    lines = control_lines([of(replace(FOUND, is_chosen=True))])

    assert lines[-1].text == "1 of 1 case would have shown a slowdown of 20 %"


def test_a_rate_is_planted_as_less() -> None:
    rate = verdict("regressed", better="higher", ratio=0.8)
    [_, row, _] = control_lines([of(replace(FOUND, share=0.25, verdicts=[rate]))])

    assert "-20.0 %  -20.0 %" in row.text


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"step": "bound"}, "found: beyond its bound"),
        ({"has_baseline": False}, "found, in turns alone: no baseline"),
        ({"step": "stored"}, "found, against the baseline alone"),
        ({"verdicts": [verdict("inconclusive")]}, "not found: not red in turns"),
        ({"verdicts": [verdict("unchanged"), verdict("regressed", metric="b")]}, "found in 1 of 2"),
    ],
)
def test_the_row_says_at_which_step_it_was_decided(changes: dict[str, object], said: str) -> None:
    [_, row, _] = control_lines([of(replace(FOUND, **changes))])

    assert f"  {said}  " in row.text


def test_what_the_delay_cannot_reach_is_told() -> None:
    lines = control_lines([of(replace(FOUND, left_out=["loss_time"]))])

    assert lines[-2].text == "? not delayed in test_a[ws2]: loss_time, which the script prints of clocks of its own"


def test_the_failure_says_what_was_planted_and_seen_and_what_would_help() -> None:
    assert not_found_headline(of(LOST)) == (
        "a planted slowdown was not found: not suspicious beside the baseline: step planted +20.0 %, seen +2.0 % "
        "against the baseline"
    )
    text = not_found_text(of(LOST), command="pytest test_a.py")
    assert "+30.0%" in text
    assert "what would help: a baseline with more launches" in text
    assert text.endswith("again:  pytest test_a.py --distbench-control")
