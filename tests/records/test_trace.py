"""What a trace of a case tells beside itself."""

from __future__ import annotations

import pytest

from pytest_distbench.records.trace import THIS_TREE, BusyCommunication, CaseTrace, TracedSide, iteration_name

BUSY = BusyCommunication(ranks_s=[0.1, 0.3], totals_s={"all_reduce": 0.2}, iterations=10, iteration_s=0.4)


def test_busy_communication_is_the_mean_of_the_ranks_and_a_share_of_the_step_under_the_profiler() -> None:
    assert BUSY.time_s == pytest.approx(0.2)
    assert BUSY.share == pytest.approx(0.5)


def test_of_a_trace_that_of_this_tree_counts() -> None:
    base = TracedSide(name="HEAD (1)", busy={"other": BUSY})

    assert CaseTrace(sides=[base, TracedSide(name=THIS_TREE, busy={"step": BUSY})]).busy == {"step": BUSY}
    assert CaseTrace(sides=[base]).busy == {}


def test_the_name_of_an_iteration_breaks_no_json() -> None:
    assert iteration_name('step[kind="a\\b"]', 3) == "step[kind='a/b'] #3"
