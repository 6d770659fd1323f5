"""What a test writes in ``plan=``."""

from __future__ import annotations

from typing import Any

import pytest
from support.timelines import JOB

from pytest_distbench.elastic import crash, cycle, draw, join, kill, leave, stop
from pytest_distbench.errors import ConfigurationError
from pytest_distbench.jobs.control.schedule import check_job, usual_start
from pytest_distbench.records.elastic import Change, Cycle, MembershipPlan
from pytest_distbench.records.record import replace


def test_words_are_values() -> None:
    assert cycle(8) == Cycle(period_s=8, on=1, off=1) == cycle(8, on=1, off=1)
    assert cycle(8, on=2).off == 2
    assert join(at_s=5) == Change(kind="join", at_s=5)
    assert leave(at_step=9, slot=1) == Change(kind="leave", at_step=9, slot=1)
    assert kill(at_s=5, nodes=2, overlaps=True) == Change(kind="kill", at_s=5, nodes=2, overlaps=True)
    assert crash(at_s=5, slot=0) == Change(kind="crash", at_s=5, slot=0)
    assert stop(at_s=5, for_s=1) == Change(kind="stop", at_s=5, for_s=1)


def test_a_drawn_plan_can_be_carried_out_and_a_seed_repeats_it() -> None:
    """50 seeds, for jobs of one to four nodes."""
    for seed in range(50):
        least = 1 + seed % 2
        plan = MembershipPlan(changes=draw(seed, nodes=(least, 4), changes=12, period_s=2.0))
        start = usual_start(plan, least=least, most=4)
        check_job(replace(JOB, least=least, most=4, start=start, plan=plan))

        assert (start, len(plan.changes)) == (4, 12)
        assert plan.changes == draw(seed, nodes=(least, 4), changes=12, period_s=2.0)
    assert {change.kind for change in plan.changes} == {"join", "leave", "kill", "crash"}


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"nodes": 2}, r"draw: nodes=2; wanted the fewest and the most: \(1, 3\)"),
        ({"nodes": (3, 1)}, r"draw: nodes=\(3, 1\); wanted the fewest and the most"),
        ({"changes": 0}, "draw: changes=0; wanted an int from 1 to 10000"),
        ({"changes": 10**9}, "draw: changes=1000000000; wanted an int from 1"),
        ({"period_s": 0}, "draw: period_s=0; wanted seconds above 0"),
        ({"seed": [1]}, r"draw: seed=\[1\]; wanted an int: the same gives the same plan"),
        ({"seed": None}, "draw: seed=None; wanted an int"),
        ({"period_s": None}, "draw: period_s=None; wanted seconds above 0"),
    ],
)
def test_a_plan_is_drawn_of_what_can_be(arguments: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigurationError, match=told):
        draw(**{"seed": 0, "nodes": (1, 3), "changes": 5, "period_s": 1.0, **arguments})
