"""Which moments can be ordered."""

from __future__ import annotations

from pytest_distbench.launch.site.contract import Clocks

TWO = Clocks(hosts={0: "a", 1: "a", 2: "b"}, errors_s={"a": 0.001, "b": 0.002})


def test_moments_of_one_host_are_in_order_however_its_clock_is_wrong() -> None:
    assert (TWO.doubt_s(0, 1), TWO.is_one) == (0.0, False)


def test_of_two_hosts_both_errors_count() -> None:
    assert TWO.doubt_s(0, 2) == 0.003


def test_on_this_host_nothing_is_in_doubt() -> None:
    assert (Clocks().doubt_s(0, 1), Clocks().is_one) == (0.0, True)
