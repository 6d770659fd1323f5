"""How much of a change is in some hunks, and after how many pairs that is decided."""

from __future__ import annotations

import random

import pytest

from pytest_distbench.tools.shares import Shares

BASE_S, ADDED_S = 0.02, 0.003


def pairs(share: float, scatter: float, drawn: random.Random, count: int = 40) -> list[tuple[float, float]]:
    """Candidates that are slower by 15 %, and the other side with a share of that."""
    noise = iter(lambda: drawn.lognormvariate(0, scatter), None)
    return [((BASE_S + ADDED_S) * next(noise), (BASE_S + share * ADDED_S) * next(noise)) for _ in range(count)]


def decided(shares: Shares, tried: list[tuple[float, float]]) -> tuple[bool | None, int]:
    seen = shares.begin()
    for pair in tried:
        seen.append(shares.missing(*pair))
        if (enough := shares.are_enough(seen)) is not None:
            return enough, len(seen)
    return None, len(seen)


@pytest.mark.parametrize(("share", "enough"), [(1.0, True), (0.5, False), (0.0, False)])
def test_hunks_are_enough_with_most_of_the_change(share: float, enough: bool) -> None:
    found = []
    for seed in range(200):
        drawn = random.Random(seed)
        shares = Shares(1, pairs(0, 0.01, drawn, 5), fewest=2)
        found.append(decided(shares, pairs(share, 0.01, drawn)))

    assert sum(answer is (not enough) for answer, _ in found) <= 2
    assert sorted(count for _, count in found)[100] <= 12


def test_noise_asks_for_pairs_and_what_is_clear_for_the_fewest() -> None:
    drawn = random.Random(1)
    loud, quiet = (Shares(1, pairs(0, scatter, drawn, 7), fewest=2) for scatter in (0.1, 0.002))

    assert decided(quiet, pairs(1, 0.002, drawn)) == (True, 2)
    assert decided(loud, pairs(1, 0.1, drawn, 4)) == (None, 4)
    assert decided(Shares(1, [(300, 100)] * 3, fewest=1), [(300, 300)]) == (True, 1)


def test_seconds_and_bytes_add_up_and_a_rate_costs_its_inverse() -> None:
    """Twice a third of the rate is lost: each of two equal hunks has half of the change."""
    times, rates = Shares(1, [(3, 1)] * 2, fewest=1), Shares(-1, [(1 / 3, 1)] * 2, fewest=1)

    assert times.share([times.missing(3, 2)]) == pytest.approx(0.5)
    assert rates.share([rates.missing(1 / 3, 1 / 2)]) == pytest.approx(0.5)


def test_clarity_is_the_change_over_its_scatter() -> None:
    drawn = random.Random(2)
    loud, quiet = (Shares(1, pairs(0, scatter, drawn, 9), fewest=2) for scatter in (0.1, 0.01))

    assert quiet.clarity > 2 * loud.clarity
    assert quiet.change == pytest.approx(ADDED_S / (BASE_S + ADDED_S), rel=0.1)
