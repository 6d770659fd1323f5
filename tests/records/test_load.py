"""Who wanted the CPUs of a launch, and for how much longer it took that is the reason."""

from __future__ import annotations

import pytest

from pytest_distbench.records.load import Load


def load(**changes: float) -> Load:
    """Two ranks that compute all the time on two cores, for 10 s, as far as others let them."""
    usual = {"wall_s": 10.0, "cpus": 2, "busy_s": 20.0, "own_s": 20.0, "ran_s": 20.0, "waited_s": 0.0}
    return Load(**{**usual, **changes})


def test_foreign_cores_are_what_the_launch_did_not_use_itself() -> None:
    assert load(wall_s=2.0, busy_s=4.0, own_s=2.0).foreign_cores == 1.0
    assert load(own_s=21.0).foreign_cores == 0.0


def test_a_short_body_says_nothing_about_others() -> None:
    short = load(wall_s=0.04)

    assert (short.foreign_cores, short.crowding) == (None, None)


def test_alone_nothing_takes_longer() -> None:
    assert load().crowding == 1.0


def test_beside_eight_others_two_ranks_on_two_cores_take_five_times_as_long() -> None:
    """A fifth of the cores is left; the cores in use, all of them, would say the same beside two."""
    crowded = load(own_s=4.0, ran_s=4.0, waited_s=16.0)

    assert crowded.foreign_cores == 1.6
    assert crowded.crowding == pytest.approx(5.0)


def test_own_threads_that_wait_for_each_other_are_not_delayed_by_others() -> None:
    """Two ranks and two helpers they started compute on two cores; then the same beside four others."""
    assert load(own_s=20.0, ran_s=20.0, waited_s=20.0).crowding == pytest.approx(1.0)
    assert load(own_s=10.0, ran_s=10.0, waited_s=30.0).crowding == pytest.approx(2.0)


def test_what_sleeps_is_delayed_by_no_more_than_all_its_waits() -> None:
    """It computes a hundredth of the time, and waits for a CPU five times as long as it computes."""
    assert load(own_s=0.1, ran_s=0.1, waited_s=0.5).crowding == pytest.approx(10 / 9.5)


def test_a_host_that_takes_half_of_a_virtual_machines_cpus_doubles_the_time() -> None:
    assert load(own_s=10.0, ran_s=10.0, stolen_s=10.0).crowding == pytest.approx(2.0)


def test_where_the_system_counts_no_waits_nothing_is_known() -> None:
    assert load(ran_s=0.0).crowding is None
