"""Which commit to visit, which are suspect, and how often the answer is wrong; no repository."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Collection, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.bisections import CLOCK, COMMITS, EXACT, state, visited

from pytest_distbench.judging.bisection import (
    EXACT_ODDS,
    EXACTLY_SURE,
    SURE,
    Group,
    Noise,
    Seen,
    Standing,
    chances,
    clock_odds,
    next_place,
    pairs_a_visit,
    suspects,
    visits_left,
)

Evidence = st.lists(st.builds(Seen, st.integers(1, 19), st.floats(-15, 15)), max_size=12)


@given(Evidence, st.sets(st.integers(1, 19)))
def test_chances_are_whole_and_the_next_place_was_not_skipped(seen: list[Seen], skipped: set[int]) -> None:
    chance = chances(20, seen)
    groups = suspects(chance, skipped)
    place = next_place(chance, seen, skipped)

    assert sum(chance) == pytest.approx(1)
    assert sum(group.chance for group in groups) >= 0.95 - 1e-9
    assert sum(group.chance for group in groups[:-1]) < 0.95  # no fewer would do
    assert place is None or (1 <= place < 20 and place not in skipped)


@given(st.integers(1, 200), st.data())
def test_an_exact_change_is_found_in_as_many_visits_as_halving_takes(count: int, data: st.DataObject) -> None:
    cause = data.draw(st.integers(1, count))
    groups, visits = search(count, cause)

    assert groups[0].places == range(cause, cause + 1)
    assert visits <= math.ceil(math.log2(count)) + 1


@given(st.sets(st.integers(1, 29)), st.integers(1, 30))
def test_commits_that_cannot_be_measured_stay_suspect_with_the_next_that_can(broken: set[int], cause: int) -> None:
    groups, _ = search(30, cause, broken=broken)
    last = next(place for place in range(cause, 31) if place not in broken)
    first = next((place + 1 for place in range(cause - 1, 0, -1) if place not in broken), 1)

    assert [group.places for group in groups] == [range(first, last + 1)]


def test_a_long_row_of_broken_commits_is_left_quickly() -> None:
    _, visits = search(60, 50, broken=range(20, 41))

    assert visits <= 12


@pytest.mark.parametrize(("sigma", "slowdown"), [(0.03, 0.1), (0.05, 0.2), (0.08, 0.2), (0.08, -0.2)])
def test_a_noisy_change_is_found_at_every_place_within_twelve_visits(sigma: float, slowdown: float) -> None:
    """At realistic noise of pairs. ``search`` counts no visit of BAD."""
    draw = random.Random(2)
    found = [(cause, *search(60, cause, change=math.log1p(slowdown), sigma=sigma, draw=draw)) for cause in range(1, 61)]
    wrong = [cause for cause, groups, _ in found if cause not in groups[0].places]
    visits = [number for _, _, number in found]

    assert len(wrong) == 0
    assert sum(number > 12 for number in visits) <= 1
    assert statistics.fmean(visits) < 9


def test_noise_as_large_as_the_change_makes_no_wrong_answer_sure() -> None:
    draw = random.Random(3)
    found = [(cause, *search(30, cause, change=math.log(1.1), sigma=0.15, draw=draw)) for cause in range(1, 31)]
    wrong = [cause for cause, groups, _ in found if all(cause not in group.places for group in groups)]

    assert len(wrong) <= 3  # a chance of 5 % is allowed to each


def test_a_change_in_two_steps_ends_with_suspects_between_them() -> None:
    """Between the steps half of the change is seen, which speaks for neither."""
    groups, _ = search(60, 40, change=math.log(1.2), sigma=0.03, half_at=20, draw=random.Random(4))
    places = {place for group in groups for place in group.places}

    assert len(places) > 5
    assert places <= set(range(20, 41))


def test_a_visit_that_contradicts_the_others_is_visited_again() -> None:
    seen = [Seen(30, 4.0), Seen(15, -4.0), Seen(22, -4.0), Seen(26, -4.0), Seen(28, 4.0), Seen(27, 4.0)]
    seen += [Seen(26, 4.0)]

    assert len(suspects(chances(60, seen), ())) > 1
    assert next_place(chances(60, seen), seen, ()) in (25, 26, 24, 23)


def test_pairs_are_as_many_as_the_noise_needs() -> None:
    bad = [0.18, 0.18, 0.18]

    assert pairs_a_visit(bad, Noise(0.01, 10)) == 3
    assert pairs_a_visit(bad, Noise(0.08, 10)) == 4
    assert pairs_a_visit(bad, Noise(1.0, 10)) == 28


def test_odds_are_even_half_way_and_bounded_at_the_ends() -> None:
    bad, noise = [0.2, 0.19, 0.21, 0.2], Noise(0.03, 20)

    assert clock_odds([0.2, 0.2, 0.2], bad, noise) == pytest.approx(math.log(101), rel=0.01)
    assert clock_odds([0.0, 0.0, 0.0], bad, noise) == pytest.approx(-math.log(101), rel=0.01)
    assert clock_odds([0.5, 0.5, 0.5], bad, noise) > math.log(19)  # more than the change has moved too
    assert abs(clock_odds([0.1, 0.1, 0.1], bad, noise)) < 0.5
    assert abs(clock_odds([-0.4, 0.8, 0.2], bad, noise)) < 1  # its own noise counts


def test_noise_is_that_around_the_mean_of_each_visit() -> None:
    noise = Noise.of([[0.1, 0.3], [5.0], [], [1.0, 1.2, 1.4]])

    assert noise.df == 3
    assert noise.sigma == pytest.approx(math.sqrt((0.02 + 0.08) / 3))


def test_visits_left_are_halvings() -> None:
    assert visits_left([1 / 32] * 32) == 5
    assert visits_left([1.0]) == 1


def test_a_standing_tells_the_next_commit_and_the_one_that_is_found() -> None:
    begin = Standing(state(EXACT), COMMITS)
    assert begin.next == COMMITS[3]
    assert begin.found is None

    visits = [visited(4, has_moved=True), visited(2), visited(3)]
    end = Standing(state(EXACT, *visits), COMMITS)
    assert end.found == COMMITS[3]
    assert end.next is None

    beside_skipped = Standing(state(EXACT, visits[0], visits[1], visited(3, skipped="it does not build")), COMMITS)
    assert beside_skipped.suspects == [Group(3, 4, pytest.approx(1.0, abs=1e-5))]
    assert beside_skipped.found is None
    assert beside_skipped.next is None


def test_a_standing_reads_clocks_too() -> None:
    visits = [visited(4, changes=[0.18, 0.19, 0.17]), visited(3, changes=[0.01, -0.01, 0.0])]
    standing = Standing(state(CLOCK, *visits), COMMITS)

    assert [standing.seen(v).log_odds > 0 for v in visits] == [True, False]
    assert max(range(8), key=standing.chances.__getitem__) == 3


def search(
    count: int,
    cause: int,
    *,
    change: float | None = None,
    sigma: float = 0.0,
    broken: Collection[int] = (),
    half_at: int = 0,
    draw: random.Random | None = None,
    most: int = 20,
) -> tuple[Sequence[Group], int]:
    """A search with made-up visits: the suspects at its end, and how many visits it took.

    Each run is off by 1 % besides the noise of its pairs.
    """
    draw = draw or random.Random(1)

    def pairs(number: int, size: float) -> list[float]:
        off = draw.gauss(0, 0.01)
        return [size + off + draw.gauss(0, sigma) for _ in range(number)]

    bad = [] if change is None else pairs(7, change)
    measured: list[tuple[int, list[float]]] = []
    skipped: set[int] = set()
    visits = 0
    while True:
        noise = Noise.of([bad, *(pairs for _, pairs in measured)]) if change is not None else None
        seen = [
            Seen(place, (EXACT_ODDS if place >= cause else -EXACT_ODDS) if noise is None else clock_odds(p, bad, noise))
            for place, p in measured
        ]
        chance = chances(count, seen)
        groups = suspects(chance, skipped, sure=SURE if noise else EXACTLY_SURE)
        place = next_place(chance, seen, skipped)
        if len(groups) == 1 or place is None or (visits >= most and noise is not None):
            return groups, visits
        visits += 1
        if place in broken:
            skipped.add(place)
        elif noise is None or change is None:
            measured.append((place, []))
        else:
            size = change if place >= cause else change / 2 if half_at and place >= half_at else 0.0
            measured.append((place, pairs(pairs_a_visit(bad, noise), size)))
