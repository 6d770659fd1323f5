"""Plans: which slots a change takes, and what cannot be."""

from __future__ import annotations

import itertools
from decimal import Decimal

import pytest
from support.timelines import JOB

from pytest_distbench.elastic import crash, cycle, join, kill, leave, stop
from pytest_distbench.elastic.plans import changes_of, check_job, check_values, choose_slots, taken_after, usual_start
from pytest_distbench.elastic.records import Change, Cycle, ElasticJob
from pytest_distbench.errors import ConfigurationError
from pytest_distbench.records.record import replace


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
def test_values_that_no_process_could_be_told_are_refused(plan, told):
    with pytest.raises(ConfigurationError, match=told):
        check_values(plan)
