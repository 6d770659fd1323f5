"""Where the iterations of a loop go: what is left is in no part."""

from __future__ import annotations

import pytest

from pytest_distbench.records.breakdown import Breakdown, PartShare


def test_parts_and_what_is_unaccounted_are_the_iteration_on_each_rank() -> None:
    parts = [
        PartShare(path=["forward"], times_s=[0.2, 0.3]),
        PartShare(path=["backward"], times_s=[0.5, 0.4]),
        PartShare(path=["backward", "communication"], times_s=[0.4, 0.1]),
        PartShare(path=["evaluation"], times_s=[7.0, 7.0], is_apart=True),
    ]

    assert Breakdown(times_s=[1.0, 1.1], parts=parts).unaccounted_s == pytest.approx([0.3, 0.4])
