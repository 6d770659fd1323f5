"""When the links between the ranks of a case are looked at, and what stands out among them."""

from __future__ import annotations

import itertools

import pytest
from support.results import result, verdict

from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.link_check import LinkCheck, SlowLink
from pytest_distbench.records.metric import Measurement
from pytest_distbench.records.record import replace
from pytest_distbench.records.run import CaseResult
from pytest_distbench.run.link_check import compare_links, times_in, wants_link_check


def case(*hosts: str, kind: str = "regressed", outcome: str = "passed", unit: str = "s") -> CaseResult:
    made = result(verdict(kind, metric="step", unit=unit))
    launch = replace(made.launches[-1], hosts=list(hosts), outcome=outcome)
    return replace(made, launches=[launch])


def test_links_are_looked_at_where_a_clock_became_slower_on_several_hosts() -> None:
    assert wants_link_check(case("a", "b", "c"))
    assert not wants_link_check(case("a", "b", "c", kind="unchanged"))
    assert not wants_link_check(case("a", "b"))
    assert not wants_link_check(case("a", "a", "a"))
    assert not wants_link_check(case())
    assert not wants_link_check(case("a", "b", "c", outcome="failed"))
    assert not wants_link_check(replace(case("a", "b", "c"), xfail_perf="known"))


def test_a_matrix_of_links_needs_no_second_look() -> None:
    of_links = verdict(
        "regressed", metric="bandwidth[from=0,to=1]", unit="GB/s", better="higher", at={"from": 0, "to": 1}
    )
    made = case("a", "b", "c")
    assert not wants_link_check(replace(made, verdicts=[*made.verdicts, of_links]))


def launch(slow: dict[tuple[int, int], float]) -> LaunchRecord:
    measured = [
        Measurement(
            name="bandwidth",
            unit="GB/s",
            better="higher",
            value=slow.get((source, target), 1.0),
            ranks=1,
            reduce="max",
            at={"from": source, "to": target},
        )
        for source, target in itertools.permutations(range(3), 2)
    ]
    return LaunchRecord(index=0, outcome="passed", wall_s=1.0, measurements=measured)


def looks(*slow: dict[tuple[int, int], float]) -> LinkCheck:
    return compare_links([times_in(launch(each)) for each in slow])


def test_what_takes_almost_twice_as_long_stands_out() -> None:
    found = looks({(0, 2): 0.5, (1, 0): 0.8})
    assert found == LinkCheck(measured=6, most=2.0, slow=[SlowLink(source=0, target=2, times=2.0)])
    assert looks({(1, 0): 0.8}) == LinkCheck(measured=6, most=1.25)


def test_what_stands_out_once_alone_was_other_work() -> None:
    found = looks({(0, 2): 0.5, (1, 0): 0.3}, {(0, 2): 0.4, (2, 1): 0.3}, {(0, 2): 0.5})

    assert found.slow == [SlowLink(source=0, target=2, times=2.0)]
    assert found.most == 2.0


def test_where_all_links_differ_from_look_to_look_one_has_to_stand_out_by_more_than_that() -> None:
    """As on a host where other work has every core: each link was slow at times, and this one each time."""
    busy = dict.fromkeys(itertools.permutations(range(3), 2), 0.25)
    slow = {(0, 2): 0.2}
    found = looks({**busy, **slow}, slow, {**busy, **slow})
    assert (found.spread, found.most, found.slow) == (4.0, 5.0, [])

    found = looks({**busy, (0, 2): 0.1}, {(0, 2): 0.1}, {**busy, (0, 2): 0.1})
    assert [(each.source, each.target) for each in found.slow] == [(0, 2)]


@pytest.mark.parametrize("measured", [0, 1])
def test_too_few_are_told(measured: int) -> None:
    whole = launch({})
    assert compare_links([times_in(replace(whole, measurements=whole.measurements[:measured]))]).why_not
