"""Which moments can be ordered, and what follows from what ranks have said."""

from __future__ import annotations

from pytest_distbench.launch.site import Clocks, Heard
from pytest_distbench.records.wire import RankWord, rank_event

TWO = Clocks(hosts={0: "a", 1: "a", 2: "b"}, errors_s={"a": 0.001, "b": 0.002})


def test_moments_of_one_host_are_in_order_however_its_clock_is_wrong() -> None:
    assert (TWO.error_s(0, 1), TWO.is_one) == (0.0, False)


def test_of_two_hosts_both_errors_count() -> None:
    assert TWO.error_s(0, 2) == 0.003


def test_moments_on_one_host_have_no_error() -> None:
    assert (Clocks().error_s(0, 1), Clocks().is_one) == (0.0, True)


def heard(*said: tuple[int, RankWord, str]) -> Heard:
    found = Heard()
    found.take([rank_event(kind, rank, 0.0, text) for rank, kind, text in said])
    return found


def test_a_rank_whose_line_ended_is_lost_unless_it_had_said_how_it_ended() -> None:
    found = heard((0, "hello", ""), (1, "hello", ""), (1, "done", ""))
    found.close(0, 1.0)
    found.close(1, 2.0)

    assert (found.ranks_up, found.ranks_done, found.ranks_lost) == ({0, 1}, {1}, {0})


def test_the_phase_that_was_said_last_counts_and_a_silent_rank_is_at_its_start() -> None:
    found = heard((0, "phase", "rendezvous"), (0, "phase", "body"), (1, "phase", "import"))

    assert [found.last_phase(rank) for rank in range(3)] == ["body", "import", "start"]
    assert found.ranks_in_body == {0}


def test_a_phase_that_a_rank_comes_to_as_it_is_ended_is_not_where_it_hung() -> None:
    found = heard((0, "phase", "body"))
    found.ended_at = 5.0
    found.take([rank_event("phase", 0, 5.1, "teardown")])

    assert found.last_phase(0) == "body"


def test_one_rank_that_has_not_passed_waits_to_be_ended() -> None:
    assert heard((0, "done", ""), (1, "failed", "no room")).is_holding
    assert heard((1, "failed", "no room")).said(1) == "no room"
    assert not heard((0, "done", "")).is_holding


def test_a_remark_that_a_rank_sends_twice_is_kept_once() -> None:
    assert heard((1, "remark", "a"), (1, "remark", "b"), (1, "remark", "a")).remarks() == {1: "a; b"}
