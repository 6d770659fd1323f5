"""What a test writes in ``plan=``."""

from __future__ import annotations

from pytest_distbench.elastic import crash, cycle, join, kill, leave, stop
from pytest_distbench.records.elastic import Change, Cycle


def test_words_are_values() -> None:
    assert cycle(8) == Cycle(period_s=8, on=1, off=1) == cycle(8, on=1, off=1)
    assert cycle(8, on=2).off == 2
    assert join(at_s=5) == Change(kind="join", at_s=5)
    assert leave(at_step=9, slot=1) == Change(kind="leave", at_step=9, slot=1)
    assert kill(at_s=5, nodes=2, overlaps=True) == Change(kind="kill", at_s=5, nodes=2, overlaps=True)
    assert crash(at_s=5, slot=0) == Change(kind="crash", at_s=5, slot=0)
    assert stop(at_s=5, for_s=1) == Change(kind="stop", at_s=5, for_s=1)
