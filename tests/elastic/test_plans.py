"""Plans: what a test writes, what it says in words, which slots a change takes, and what cannot be."""

from __future__ import annotations

import itertools
import math
import runpy
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from support.pools import POOL, SERVED
from support.timelines import JOB

from pytest_distbench.elastic import crash, cycle, draw, join, kill, leave, rates, stop
from pytest_distbench.elastic.plans import changes_of, check_job, check_values, choose_slots, taken_after, usual_start
from pytest_distbench.elastic.records import Change, Cycle, Demand, ElasticJob, event, unaccounted_s, wanted_at
from pytest_distbench.errors import ConfigurationError
from pytest_distbench.records.record import replace
from pytest_distbench.records.wire import EventReader, append, read_events


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
    ("arguments", "text"),
    [
        ({"nodes": 2}, r"draw: nodes=2; wanted the fewest and the most: \(1, 3\)"),
        ({"nodes": (3, 1)}, r"draw: nodes=\(3, 1\); wanted the fewest and the most"),
    ],
)
def test_a_plan_is_drawn_of_what_can_be(arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigurationError, match=text):
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


def test_the_suite_detects_a_schedule_that_restarts_with_the_nodes() -> None:
    suite = runpy.run_path(str(Path(__file__).parents[2] / "suites/elastic/conftest.py"))
    rate = SCHEDULES["halved"]
    fixed = {(epoch, 2): rate(epoch) * 2 for epoch in MEMBERS}

    assert suite["furthest_rate"]({(3, 4): rate(0) * 4}, fixed, 4) == pytest.approx(2 * 0.5**-3)


def job(plan: Cycle | list[Change], *, least: int = 1, most: int = 2, start: int = 1) -> ElasticJob:
    return replace(JOB, least=least, most=most, start=start, plan=plan)


def test_nodes_take_and_leave_slots_as_their_changes_say() -> None:
    changes = changes_of(cycle(period_s=8, on=2, off=1, by="kill"))
    first = [str(change) for change in itertools.islice(changes, 3)]
    assert first == ["join(at_s=8, nodes=2)", "kill(at_s=16)", "join(at_s=24, nodes=2)"]

    assert len(list(changes_of(cycle(period_s=1, times=2)))) == 4

    assert choose_slots(join(at_s=1, nodes=2), {0, 2}, least=1, most=4) == [1, 3]
    assert choose_slots(leave(at_s=1), {0, 2}, least=1, most=4) == [2]
    assert choose_slots(kill(at_s=1, slot=0), {0, 2}, least=1, most=4) == [0]
    assert taken_after(join(at_s=1), [1], {0}) == {0, 1}
    assert taken_after(kill(at_s=1), [1], {0, 1}) == {0}

    for change in (stop(at_s=1, for_s=2), crash(at_s=1)):
        assert taken_after(change, choose_slots(change, {0, 1}, least=2, most=2), {0, 1}) == {0, 1}

    def start(plan: Cycle | list[Change]) -> int:
        return usual_start(job(plan).plan, least=1, most=3)

    assert (start(cycle(period_s=1)), start([join(at_s=1)]), start([kill(at_s=1)]), start([])) == (1, 1, 3, 3)

    check_job(replace(job([join(at_step=10), kill(at_step=20)]), hold=True))
    check_job(replace(job([]), hold=True))

    check_job(job(cycle(period_s=8)))
    check_job(job([join(at_s=2), stop(at_s=3, for_s=1), kill(at_s=3, slot=0), join(at_step=90, overlaps=True)]))


REFUSED = {
    "at will": [
        ([leave(at_s=5)], r"leave\(at_s=5\): of 1 nodes 0 would be left, fewer than MIN; wanted at least 1 of"),
        ([join(at_s=5, nodes=2)], r"join\(at_s=5, nodes=2\): 1 nodes and 2 more are 3, and there are 2 slots"),
        (
            [crash(at_s=5), crash(at_step=9), crash(at_s=1)],
            r"crash\(at_s=1\) comes after crash\(at_s=5\); list changes in their order",
        ),
        ([join(at_s=5), kill(at_s=3)], r"kill\(at_s=3\) comes after join\(at_s=5\); list changes in their order"),
        ([join(at_step=9), kill(at_step=3)], r"list changes in their order, with at_step"),
        ([join(at_s=-1)], r"join: at_s=-1; wanted seconds, at least 0 and at most 604800"),
        ([join(at_step=0)], r"join: at_step=0; wanted a whole number of at least 1"),
        ([join()], r"join: wanted at_s= or at_step=, one of them, to say when"),
        ([join(at_s=1, at_step=1)], r"join: wanted at_s= or at_step=, one of them"),
        ([join(at_s="soon")], r"join: at_s='soon'; wanted seconds"),  # type: ignore[arg-type]
        ([join(at_s=1), kill(at_s=2, slot=3)], r"kill\(at_s=2, slot=3\): slot 3 is empty then; occupied are 0, 1"),
        ([join(at_s=1), kill(at_s=2, slot=0, nodes=2)], r"slot= names one node, and nodes=2 are more"),
        ([kill(at_step=10**30)], "kill: at_step=10+; wanted a whole number of at least 1 and at most 9007199254740992"),
        (cycle(period_s=1, on=2), r"cycle\(period_s=1, on=2, off=2\): join\(at_s=1, nodes=2\): 1 nodes and 2 more"),
        (cycle(period_s=1, on=1, off=2), r"kill|leave\(at_s=2, nodes=2\): of 2 nodes 0 would be left"),
        (cycle(period_s=1, by="stop"), "by='stop'; wanted one of leave, kill"),  # type: ignore[arg-type]
    ],
    "held": [
        (
            [join(at_s=5)],
            r"join\(at_s=5\): the nodes hold after a step with a checkpoint; wanted at_step=, a multiple of 10",
        ),
        (cycle(period_s=5), r"wanted at_step=, a multiple of 10 \(checkpoint_every=\)"),
        ([join(at_step=12)], r"join\(at_step=12\): .* wanted at_step=, a multiple of 10 \(checkpoint_every=\)"),
        ([stop(at_step=10, for_s=1, slot=0)], r"stop\(.*\): the nodes hold until the membership has changed, which"),
        ([join(at_step=10), kill(at_step=20, overlaps=True)], r"overlaps=True\): the nodes hold until the membership"),
        ([join(at_step=10), kill(at_step=10)], r"0 steps lie between at_step=10 and at_step=10; wanted at least 3"),
    ],
}
"""Nodes may hold, at steps of checkpoints alone."""


@pytest.mark.parametrize(("how", "plan", "message"), [(how, *row) for how, rows in REFUSED.items() for row in rows])
def test_a_plan_that_cannot_be_is_refused_with_the_change_that_cannot(
    how: str, plan: Cycle | list[Change], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        check_job(replace(job(plan), hold=how == "held"))


@pytest.mark.parametrize(
    ("plan", "told"),
    [
        (Cycle(period_s=None, on=1, off=1), "period_s=None"),  # type: ignore[arg-type] # refused
        (Cycle(period_s=1, on=1, off=1, times="x"), "times='x'"),  # type: ignore[arg-type] # same
        ([Change(kind="kill", at_s=Decimal(1))], "at_s=Decimal"),  # type: ignore[arg-type] # same
        ([Change(kind="kill", at_s=1, overlaps="no")], "overlaps='no'"),  # type: ignore[arg-type] # same
    ],
)
def test_a_plan_with_invalid_values_is_refused(plan, told):
    with pytest.raises(ConfigurationError, match=told):
        check_values(plan)


def test_plans_jobs_and_pools_are_described_in_words() -> None:
    changes = [join(at_s=2, nodes=2), kill(at_step=90, slot=0), stop(at_s=4, for_s=1.5)]
    text = "join(at_s=2, nodes=2), kill(at_step=90, slot=0), stop(at_s=4, for_s=1.5)"
    assert replace(JOB, plan=changes).planned == text
    text = "cycle(period_s=8, on=1, off=1, times=3, by='kill')"
    assert replace(JOB, plan=cycle(8, times=3, by="kill")).planned == text
    assert JOB.planned == "no change"

    job = ElasticJob(
        least=1, most=2, start=1, plan=cycle(8), timers={"last_call_s": 1, "keep_alive_s": 0.5}, checkpoint_every=20
    )
    assert str(job) == (
        "1 to 2 nodes, 1 at the start, cycle(period_s=8, on=1, off=1); checkpoint every 20 steps; engine stock, "
        "last_call_s=1, keep_alive_s=0.5"
    )
    assert "engine stock (in place of fast: why), last" in str(replace(job, in_place_of="fast: why"))

    assert str(POOL) == "2 slots, elastic; A on 1 nodes from 0 s; B on 1 to 2 nodes from 2 s; engine stock"
    assert str(SERVED).endswith("engine stock; serving on 1 from 2 s, 0 from 6 s")
    assert str(replace(POOL, compute="synthetic", cores=2)).endswith("; synthetic compute; oversubscribed: 2 cores")

    assert [wanted_at(SERVING, at_s) for at_s in (0, 2, 51.9, 52, 99)] == [0, 1, 1, 3, 0]

    change = event(
        "change", t=1.0, index=0, kind="kill", slots=[1], before=2, recovery_s=5.0, parts={"detect": 1.0, "import": 3.5}
    )
    assert unaccounted_s(change) == 0.5
    assert unaccounted_s(event("change", t=1.0, index=0, kind="kill", slots=[1], before=2)) is None


SERVING: Demand = [(2, 1), (52, 3), (62, 0)]


LATER = event("saved", t=2.0, slot=0, generation=1, step=20, seconds=0.1)


def test_a_reader_gives_each_line_once_and_passes_over_what_is_none(tmp_path: Path) -> None:
    path = tmp_path / "timeline"
    reader = EventReader(path)
    assert reader.read() == []
    append(path, LATER)
    whole = path.read_bytes()
    path.write_bytes(whole + whole[:10])
    assert reader.read() == [LATER]
    path.write_bytes(whole + whole)
    assert reader.read() == [LATER]
    assert reader.read() == []

    # A worker that is killed while it writes leaves a part of a line, behind which another one may write
    path = tmp_path / "timeline"
    path.write_bytes(b'{"what":"sav\n')
    append(path, LATER)
    assert read_events(path) == [LATER]
