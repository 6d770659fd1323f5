"""Names of hosts that are not stored."""

from __future__ import annotations

from support.results import result, verdict

from pytest_distbench.records.record import replace
from pytest_distbench.records.run import number_hosts


def test_hosts_are_numbered_in_the_order_of_the_ranks() -> None:
    made = result(verdict())
    launch = made.launches[0]
    named = replace(made, launches=[replace(launch, hosts=["gpu7", "gpu7", "gpu2", "gpu2"]), launch])

    assert [launch.hosts for launch in number_hosts(named).launches] == [["host0", "host0", "host1", "host1"], []]
