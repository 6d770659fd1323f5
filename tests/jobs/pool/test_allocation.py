"""Who gets the slots of a pool."""

from __future__ import annotations

from pytest_distbench.jobs.pool import Decision, Holder, decide
from pytest_distbench.records.elastic import SERVING


def holder(name: str, *slots: int, least: int = 1, most: int = 2, is_stable: bool = True) -> Holder:
    return Holder(name=name, least=least, most=most, slots=frozenset(slots), is_stable=is_stable)


def test_jobs_start_and_grow_as_gang_or_elastic_lets_them() -> None:
    a, b = holder("A", 0, 1), holder("B")
    assert decide("gang", [holder("A"), b], free=[0, 1]) == Decision(grants=[("A", 0), ("A", 1)])
    assert decide("gang", [a, b], free=[2]) == Decision()
    assert decide("gang", [b], free=[0, 1]).grants == [("B", 0), ("B", 1)]

    a = holder("A", 0, most=1)
    assert decide("elastic", [a, holder("B")], free=[1]).grants == [("B", 1)]
    assert decide("elastic", [holder("B", 1)], free=[0]).grants == [("B", 0)]

    assert decide("elastic", [holder("A", 0, 1), holder("B")], free=[]) == Decision(asks=[("A", 1)])

    a, b = holder("A", 0, 1), holder("B", least=2)
    assert decide("elastic", [a, b], free=[]) == Decision()
    assert decide("elastic", [holder("A", 0), holder("B")], free=[], coming=1) == Decision()

    assert decide("elastic", [holder("A", 0, is_stable=False)], free=[1]) == Decision()
    assert decide("elastic", [holder("A", 0, 1, is_stable=False), holder("B")], free=[]) == Decision()

    large, small = holder("large", least=2), holder("small", least=1, most=1)
    assert decide("gang", [holder("A", 0), large, small], free=[1]) == Decision()
    assert decide("elastic", [holder("A", 0, least=1), large, small], free=[1]) == Decision()


def test_serving_takes_from_jobs_that_can_spare_and_gives_back() -> None:
    a = holder("A", 0, 1, 2, most=3, is_stable=False)
    assert decide("elastic", [a], free=[3], wanted=2) == Decision(grants=[(SERVING, 3)], asks=[("A", 2)])
    assert decide("elastic", [a], free=[], coming=1, wanted=1) == Decision()
    assert decide("elastic", [holder("A", 0)], free=[], wanted=1) == Decision()

    a = holder("A", 0)
    assert decide("elastic", [a], free=[], servers=[1, 2], wanted=1) == Decision(asks=[(SERVING, 2)])
    assert decide("elastic", [a], free=[2], servers=[1], wanted=1) == Decision(grants=[("A", 2)])

    jobs = [holder("A", 0, 1, 2, most=3), holder("B", 3, 4)]
    assert decide("elastic", jobs, free=[], wanted=2).asks == [("A", 2), ("B", 4)]
    assert decide("elastic", jobs, free=[], wanted=3).asks == [("A", 2), ("B", 4), ("A", 1)]
