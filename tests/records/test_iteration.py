"""Where the iterations of a loop go, how fast they are, and what a trace tells beside itself."""

from __future__ import annotations

import pytest

from pytest_distbench.records.iteration import (
    THIS_TREE,
    Breakdown,
    BusyCommunication,
    CaseTrace,
    PartShare,
    TracedSide,
    iteration_name,
)


def test_parts_of_an_iteration_and_what_is_unaccounted_are_the_whole() -> None:
    parts = [
        PartShare(path=["forward"], times_s=[0.2, 0.3]),
        PartShare(path=["backward"], times_s=[0.5, 0.4]),
        PartShare(path=["backward", "communication"], times_s=[0.4, 0.1]),
        PartShare(path=["evaluation"], times_s=[7.0, 7.0], is_apart=True),
    ]
    assert Breakdown(times_s=[1.0, 1.1], parts=parts).unaccounted_s == pytest.approx([0.3, 0.4])

    assert BUSY.time_s == pytest.approx(0.2)
    assert BUSY.share == pytest.approx(0.5)

    base = TracedSide(name="HEAD (1)", busy={"other": BUSY})
    assert CaseTrace(sides=[base, TracedSide(name=THIS_TREE, busy={"step": BUSY})]).busy == {"step": BUSY}
    assert CaseTrace(sides=[base]).busy == {}

    assert iteration_name('step[kind="a\\b"]', 3) == "step[kind='a/b'] #3"


BUSY = BusyCommunication(ranks_s=[0.1, 0.3], totals_s={"all_reduce": 0.2}, iterations=10, iteration_s=0.4)
