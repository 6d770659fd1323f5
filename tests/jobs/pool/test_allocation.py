"""Who gets the slots of a pool."""

from __future__ import annotations

from pytest_distbench.jobs.pool.allocation import Decision, Holder, decide
from pytest_distbench.records.elastic import SERVING


def holder(name: str, *slots: int, least: int = 1, most: int = 2, is_stable: bool = True) -> Holder:
    return Holder(name=name, least=least, most=most, slots=frozenset(slots), is_stable=is_stable)


def test_gang_starts_a_job_when_there_is_all_it_may_have() -> None:
    a, b = holder("A", 0, 1), holder("B")

    assert decide("gang", [holder("A"), b], free=[0, 1]) == Decision(grants=[("A", 0), ("A", 1)])
    assert decide("gang", [a, b], free=[2]) == Decision()
    assert decide("gang", [b], free=[0, 1]).grants == [("B", 0), ("B", 1)]


def test_elastic_starts_a_job_on_what_is_free_and_lets_it_grow_later() -> None:
    a = holder("A", 0, most=1)

    assert decide("elastic", [a, holder("B")], free=[1]).grants == [("B", 1)]
    assert decide("elastic", [holder("B", 1)], free=[0]).grants == [("B", 0)]


def test_elastic_takes_from_who_can_spare_so_that_another_can_start() -> None:
    assert decide("elastic", [holder("A", 0, 1), holder("B")], free=[]) == Decision(asks=[("A", 1)])


def test_elastic_takes_nothing_where_it_would_not_suffice_or_is_on_its_way() -> None:
    a, b = holder("A", 0, 1), holder("B", least=2)

    assert decide("elastic", [a, b], free=[]) == Decision()
    assert decide("elastic", [holder("A", 0), holder("B")], free=[], coming=1) == Decision()


def test_nobody_grows_or_shrinks_for_a_job_before_it_is_stable() -> None:
    assert decide("elastic", [holder("A", 0, is_stable=False)], free=[1]) == Decision()
    assert decide("elastic", [holder("A", 0, 1, is_stable=False), holder("B")], free=[]) == Decision()


def test_a_job_waits_for_the_one_before_it() -> None:
    large, small = holder("large", least=2), holder("small", least=1, most=1)

    assert decide("gang", [holder("A", 0), large, small], free=[1]) == Decision()
    assert decide("elastic", [holder("A", 0, least=1), large, small], free=[1]) == Decision()


def test_serving_goes_before_jobs_that_can_spare_whether_stable_or_not() -> None:
    a = holder("A", 0, 1, 2, most=3, is_stable=False)

    assert decide("elastic", [a], free=[3], wanted=2) == Decision(grants=[(SERVING, 3)], asks=[("A", 2)])
    assert decide("elastic", [a], free=[], coming=1, wanted=1) == Decision()
    assert decide("elastic", [holder("A", 0)], free=[], wanted=1) == Decision()


def test_what_serving_no_longer_needs_comes_back_and_a_job_takes_it() -> None:
    a = holder("A", 0)

    assert decide("elastic", [a], free=[], servers=[1, 2], wanted=1) == Decision(asks=[(SERVING, 2)])
    assert decide("elastic", [a], free=[2], servers=[1], wanted=1) == Decision(grants=[("A", 2)])


def test_serving_takes_from_the_job_that_can_spare_most() -> None:
    jobs = [holder("A", 0, 1, 2, most=3), holder("B", 3, 4)]

    assert decide("elastic", jobs, free=[], wanted=2).asks == [("A", 2), ("B", 4)]
    assert decide("elastic", jobs, free=[], wanted=3).asks == [("A", 2), ("B", 4), ("A", 1)]
