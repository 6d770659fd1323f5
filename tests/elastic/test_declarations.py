"""What a test writes in ``plan=``."""

from __future__ import annotations

import math
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.timelines import JOB

from pytest_distbench.elastic import crash, cycle, draw, join, kill, leave, rates, stop
from pytest_distbench.elastic.plans import check_job, usual_start
from pytest_distbench.elastic.records import Change, Cycle
from pytest_distbench.errors import ConfigurationError
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
        plan = draw(seed, nodes=(least, 4), changes=12, period_s=2.0)
        start = usual_start(plan, least=least, most=4)
        check_job(replace(JOB, least=least, most=4, start=start, plan=plan))

        assert (start, len(plan)) == (4, 12)
        assert plan == draw(seed, nodes=(least, 4), changes=12, period_s=2.0)
    assert {change.kind for change in plan} == {"join", "leave", "kill", "crash"}


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"nodes": 2}, r"draw: nodes=2; wanted the fewest and the most: \(1, 3\)"),
        ({"nodes": (3, 1)}, r"draw: nodes=\(3, 1\); wanted the fewest and the most"),
    ],
)
def test_a_plan_is_drawn_of_what_can_be(arguments: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigurationError, match=told):
        draw(**{"seed": 0, "nodes": (1, 3), "changes": 5, "period_s": 1.0, **arguments})


def test_rates_are_those_of_epochs_and_nodes() -> None:
    launch = {"lr[nodes=2]": 0.1, "lr[epoch=0,nodes=2]": 0.1, "lr[epoch=12,nodes=3]": 0.2, "lr[epoch=1,nodes=1]": None}

    assert rates(launch) == {(0, 2): 0.1, (12, 3): 0.2}


MEMBERS = {0: [2], 1: [2, 4], 2: [4], 3: [4, 3], 4: [3], 5: [3, 2], 6: [2]}
"""Nodes in each epoch of a run whose membership changes."""

SCHEDULES: dict[str, Callable[[int], float]] = {
    "constant": lambda epoch: 0.05,
    "steps": lambda epoch: 0.001 * (0.01 if epoch > 4 else 0.2 if epoch > 2 else 1.0),
    "halved": lambda epoch: 0.4 * 0.5**epoch,
    "cosine": lambda epoch: 0.3 * (1 + math.cos(math.pi * epoch / 7)),
    "warm-up": lambda epoch: 0.1 * min(1.0, (epoch + 1) / 5),
}
RULES: dict[str, Callable[[Callable[[int], float], int, int], float]] = {
    "kept": lambda schedule, epoch, nodes: schedule(epoch) * nodes,
    "not scaled": lambda schedule, epoch, nodes: schedule(epoch) * 2,
    "square root": lambda schedule, epoch, nodes: schedule(epoch) * 2 * (nodes / 2) ** 0.5,
    "one node late": lambda schedule, epoch, nodes: schedule(epoch) * (nodes if nodes == 2 else nodes - 1),
    "once wrong": lambda schedule, epoch, nodes: schedule(epoch) * (2 if epoch == 3 else nodes),
}


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("rule", RULES)
def test_the_judge_of_the_suite_holds_any_schedule_of_epochs_to_the_number_of_nodes(schedule: str, rule: str) -> None:
    suite = runpy.run_path(str(Path(__file__).parents[2] / "suites/elastic/conftest.py"))
    rate = SCHEDULES[schedule]
    fixed = {(epoch, 2): rate(epoch) * 2 for epoch in MEMBERS}
    moving = {(epoch, n): RULES[rule](rate, epoch, n) for epoch, nodes in MEMBERS.items() for n in nodes}
    is_kept = [math.isclose(suite["furthest_rate"](moving, fixed, n), n / 2, rel_tol=1e-12) for n in (3, 4)]

    assert all(is_kept) is (rule == "kept")


def test_the_judge_of_the_suite_sees_a_schedule_that_begins_anew_with_the_nodes() -> None:
    suite = runpy.run_path(str(Path(__file__).parents[2] / "suites/elastic/conftest.py"))
    rate = SCHEDULES["halved"]
    fixed = {(epoch, 2): rate(epoch) * 2 for epoch in MEMBERS}

    assert suite["furthest_rate"]({(3, 4): rate(0) * 4}, fixed, 4) == pytest.approx(2 * 0.5**-3)
