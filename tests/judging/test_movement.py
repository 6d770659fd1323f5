"""All cases of a run that moved together."""

from __future__ import annotations

import pytest
from support.results import PAIRED, result, verdict

from pytest_distbench.judging.movement import common_movement
from pytest_distbench.records.run import CaseResult


def case(*ratios: float, better: str = "lower", unit: str = "s") -> CaseResult:
    return result(
        *(verdict("unchanged", metric=f"m{i}", ratio=r, better=better, unit=unit) for i, r in enumerate(ratios))
    )


def test_cases_that_all_became_slower_by_about_as_much_are_one_movement() -> None:
    found = common_movement([case(1.2), case(1.3, 1.2, 1.4), case(0.8, better="higher", unit="B/s"), case(1.25)])

    assert found is not None
    assert (found.cases, found.is_slower) == (4, True)
    assert (round(found.least, 2), round(found.most, 2)) == (1.2, 1.3)


def test_cases_that_all_became_faster_are_one_movement_too() -> None:
    found = common_movement([case(0.8)] * 4)

    assert found is not None
    assert not found.is_slower


@pytest.mark.parametrize(
    "results",
    [
        [case(1.2)] * 3,
        [case(1.2)] * 4 + [case(1.0)],
        [case(1.2)] * 4 + [case(0.8)],
        [case(1.02)] * 9,
        [case(1.2, unit="B")] * 4,
        [result(verdict(ratio=1.2), reference=PAIRED)] * 4,
        [],
    ],
    ids=["few", "one stood still", "one became faster", "a little", "sizes", "beside another revision", "none"],
)
def test_anything_else_is_none(results: list[CaseResult]) -> None:
    assert common_movement(results) is None
