"""How long a run will take: from the last runs of its tests, their baselines, and what they say themselves."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.stores import KEY, TEST, entry

from pytest_distbench.store.baselines import BaselineStore
from pytest_distbench.store.estimate import Awaited, Estimate, History, Span, Took, estimate

FAST = Took(launch_s=1.0, more_s=1.5, fewest=5, runs={"1": [1.5, 9.0, 1.2]})


@pytest.fixture
def store(tmp_path: Path) -> BaselineStore:
    return BaselineStore(tmp_path, "cpu-x")


def awaited(name: str = "a", **changes: object) -> Awaited:
    return Awaited(**{"name": name, "test": f"t.py::{name}", "case_id": "ws2", "backend": "gloo"} | changes)  # type: ignore[arg-type]


def found(store: BaselineStore, *tests: Awaited, **history: Took) -> Estimate:
    known = History(start_s=2.0, tests=history)
    return estimate(store, tests, known, launcher="warm", spacing_s=1.5, max_launches=10)


def alike(seconds: float) -> Span:
    return Span(seconds, seconds)


@pytest.mark.parametrize(
    ("launches", "seconds"),
    [(1, alike(1.5)), (5, alike(0.5 + 1.0 + 4 * 1.5)), (None, Span(0.5 + 1.0 + 4 * 1.5, 0.5 + 1.0 + 9 * 1.5))],
    ids=["as before, one disturbed run apart", "more launches", "an update, as many as its noise needs"],
)
def test_a_test_takes_what_it_took_and_more_launches_take_more(launches: int | None, seconds: Span) -> None:
    assert FAST.seconds(awaited(launches=launches), max_launches=10) == seconds


def test_what_does_not_scatter_has_as_many_launches_in_every_update() -> None:
    took = Took(launch_s=1.0, more_s=1.5, fewest=2, scatters=False)

    assert took.seconds(awaited(launches=None), max_launches=10) == alike(2.5)


def test_the_user_s_most_launches_hold_for_an_update() -> None:
    assert FAST.seconds(awaited(launches=None), max_launches=2) == alike(3.0)


def test_what_an_update_took_before_is_what_it_takes() -> None:
    took = Took(launch_s=1.0, more_s=1.5, runs={"1": [1.0], "update": [20.0, 30.0]})

    assert took.seconds(awaited(launches=None), max_launches=10) == alike(25.0)
    assert took.seconds(awaited(), max_launches=10) == alike(1.0)


def test_what_is_known_of_updates_alone_tells_of_a_run_with_one_launch() -> None:
    assert Took(launch_s=1.0, more_s=1.5, runs={"update": [20.0]}).seconds(awaited(), max_launches=10) == alike(1.0)


def test_a_pair_takes_two_launches_and_no_pause_until_such_pairs_have_run() -> None:
    took = Took(launch_s=1.0, more_s=1.5, runs={"1": [1.5]})
    again = Took(launch_s=1.0, more_s=1.5, runs={"5 to 28 pairs": [12.0]})

    assert took.seconds(awaited(pairs=(5, 28)), max_launches=10) == Span(10.5, 56.5)
    assert again.seconds(awaited(pairs=(5, 28)), max_launches=10) == alike(12.0)
    assert took.seconds(awaited(pairs=(5, 28), open_s=30.0), max_launches=10) == Span(10.5, 30.5)


def test_the_times_of_all_tests_are_added_to_that_of_the_start(store: BaselineStore) -> None:
    assert found(store, awaited("a"), awaited("b"), a=FAST, b=FAST) == Estimate(
        tests={"a": alike(1.5), "b": alike(1.5)}, start_s=2.0
    )
    assert found(store, awaited("a"), awaited("b"), a=FAST, b=FAST).seconds == alike(5.0)


def test_nothing_is_known_before_the_first_run_of_tests_that_say_nothing(store: BaselineStore) -> None:
    assert found(store, awaited()).seconds is None
    assert found(store, awaited()).unknown == 1
    assert found(store).seconds is None


def test_a_renamed_test_is_taken_for_as_long_as_the_others(store: BaselineStore) -> None:
    slow = Took(launch_s=100.0, more_s=100.0)
    made = found(store, awaited("renamed"), awaited("a"), awaited("b"), awaited("c"), a=FAST, b=FAST, c=slow, old=FAST)

    assert (made.tests["renamed"], made.unknown) == (alike(1.5), 1)
    assert list(made.tests) == ["renamed", "a", "b", "c"]


def test_a_test_says_itself_what_it_takes_until_it_has_run(store: BaselineStore) -> None:
    told = awaited(takes_s=120.0)

    assert found(store, told).tests == {"a": alike(120.0)}
    assert found(store, told, a=FAST).tests == {"a": alike(1.5)}
    assert found(store, awaited(takes_s=120.0, launches=None, is_elastic=True)).tests == {"a": alike(360.0)}
    assert found(store, awaited(takes_s=0.5, launches=None)).tests == {"a": Span(2.5, 0.5 + 9 * 1.5)}, "with pauses"


def test_the_cases_of_a_baseline_are_added_and_multiplied_by_the_launches(store: BaselineStore) -> None:
    store.write(TEST, KEY, entry(1.0, 1.0, 1.0, launch_s=3.0))
    store.write(TEST, f"ws2:one.{KEY.partition('.')[2]}", entry(1.0, launch_s=2.0))
    store.write(TEST, "ws4.gloo.warm", entry(1.0, launch_s=50.0))

    assert found(store, awaited(test=TEST)).tests == {"a": alike(5.0)}
    assert found(store, awaited(test=TEST, launches=10)).tests == {"a": alike(50.0)}
    assert found(store, awaited(test=TEST, launches=None)).tests == {"a": alike(15.0)}, "as many as are stored"


def test_another_class_of_machines_is_better_than_nothing_and_worse_than_what_the_test_says(
    store: BaselineStore,
) -> None:
    BaselineStore(store.folder, "cpu-y").write(TEST, KEY, entry(1.0, launch_s=3.0))

    assert found(store, awaited(test=TEST)) == Estimate(tests={"a": alike(3.0)}, elsewhere=1, start_s=2.0)
    assert found(store, awaited(test=TEST, takes_s=1.0)) == Estimate(tests={"a": alike(1.0)}, start_s=2.0)


def test_a_stored_launch_may_wait_for_the_next_on_a_restless_machine(store: BaselineStore) -> None:
    store.write(TEST, KEY, entry(1.0, 1.0, 1.0, launch_s=0.5))

    assert found(store, awaited(test=TEST, launches=None)).tests == {"a": Span(1.5, 0.5 + 2 * 1.5)}
