"""Plans as text: what is printed before a run, and what a baseline is known by."""

from __future__ import annotations

from pytest_distbench.elastic import cycle, join, kill, stop
from pytest_distbench.records.elastic import ChangeResult, ElasticJob, MembershipPlan
from pytest_distbench.records.record import replace


def test_a_plan_is_told_as_it_was_written() -> None:
    changes = [join(at_s=2, nodes=2), kill(at_step=90, slot=0), stop(at_s=4, for_s=1.5)]

    assert str(MembershipPlan(changes=changes)) == (
        "join(at_s=2, nodes=2), kill(at_step=90, slot=0), stop(at_s=4, for_s=1.5)"
    )
    assert (
        str(MembershipPlan(cycle=cycle(8, times=3, by="kill"))) == "cycle(period_s=8, on=1, off=1, times=3, by='kill')"
    )
    assert str(MembershipPlan()) == "no change"


def test_a_job_is_told_with_all_that_decides_about_its_numbers() -> None:
    job = ElasticJob(
        least=1,
        most=2,
        start=1,
        plan=MembershipPlan(cycle=cycle(8)),
        timers={"last_call_s": 1, "keep_alive_s": 0.5},
        checkpoint_every=20,
    )

    assert str(job) == (
        "1 to 2 nodes, 1 at the start, cycle(period_s=8, on=1, off=1); checkpoint every 20 steps; engine stock, "
        "last_call_s=1, keep_alive_s=0.5"
    )
    assert "engine stock (in place of fast: why), last" in str(replace(job, in_place_of="fast: why"))


def test_what_no_part_of_a_recovery_explains_is_unaccounted() -> None:
    change = ChangeResult(
        index=0, kind="kill", slots=[1], at_s=1.0, before=2, recovery_s=5.0, parts={"detect": 1.0, "import": 3.5}
    )

    assert change.unaccounted_s == 0.5
    assert ChangeResult(index=0, kind="kill", slots=[1], at_s=1.0, before=2).unaccounted_s is None
