"""Change points: what moved for good, and nothing else."""

from __future__ import annotations

import math
import random
import sys

import pytest

from pytest_distbench.errors import ConfigurationError
from pytest_distbench.tools.history import LEAST_RUNS, change_points, fewest_runs


def noise(seed: int, runs: int = 200, spread: float = 0.03) -> list[float]:
    dice = random.Random(seed)
    return [0.02 * math.exp(spread * dice.gauss(0, 1)) for _ in range(runs)]


@pytest.mark.parametrize("seed", range(20))
def test_pure_noise_has_none(seed: int) -> None:
    assert change_points(noise(seed)) == []


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("factor", [1.1, 0.9])
def test_a_planted_change_is_found_within_two_runs(seed: int, factor: float) -> None:
    at = 20 + 16 * seed
    values = [value * factor if i >= at else value for i, value in enumerate(noise(seed))]
    [(index, before, after)] = change_points(values)

    assert abs(index - at) <= 2
    assert after / before == pytest.approx(factor, abs=0.03)


def test_levels_change_where_they_do_and_runs_that_stand_out_alone_are_noise() -> None:
    values = [value * (1.2 if 60 <= i < 120 else 1.0) for i, value in enumerate(noise(1))]
    assert [index for index, _, _ in change_points(values)] == pytest.approx([60, 120], abs=2)

    [found] = change_points([7.0] * 30 + [8.0] * LEAST_RUNS)
    assert found == (30, 7.0, 8.0)

    values = noise(2)
    for i in (30, 90, 91, 150):
        values[i] *= 5

    assert change_points(values) == []

    assert fewest_runs() == 18
    assert change_points([level * (1 + 0.01 * math.sin(i)) for level in (1.0, 1.5) for i in range(8)]) == []


@pytest.mark.parametrize(
    "values",
    [
        [],
        [1.0] * (LEAST_RUNS - 1) + [2.0] * LEAST_RUNS,  # too few
        [1.0] * 30 + [1.001] * 30,  # too small
        [0.0] * 30 + [1.0] * 30,  # no logarithm
        [3.0] * 60,
    ],
)
def test_of_anything_else_nothing_is_said(values: list[float]) -> None:
    assert change_points(values) == []


def test_without_the_library_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ruptures", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'pytest-distbench\[history\]'"):
        change_points(noise(1))


@pytest.mark.parametrize(("before", "after"), [(9, 9), (10, 10), (11, 11), (20, 5), (8, 12)])
def test_levels_that_do_not_overlap_are_told_from_as_few_runs_as_can_tell_them(before: int, after: int) -> None:
    values = [level * (1 + 0.01 * math.sin(i)) for level, n in ((1.0, before), (1.5, after)) for i in range(n)]

    assert [index for index, _, _ in change_points(values)] == [before]
