"""The network around a launch: made once, probed before and after, a condition of the case."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from support.plans import make_plan

from pytest_distbench.errors import AroundUnavailable
from pytest_distbench.launch.starters.table import Hosting
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.network import Network, Passage, parse_network
from pytest_distbench.records.plan import LaunchPlan
from pytest_distbench.records.record import replace
from pytest_distbench.run import network as module
from pytest_distbench.run.kinds import HERE
from pytest_distbench.run.network import NetworkAround, misses, network_place

PASSED = LaunchRecord(index=0, outcome="passed", wall_s=1.0)
GBIT = parse_network("1gbit")


def passage(rate: float = 956e6, round_trip_s: float = 2e-5, source: int = 0) -> Passage:
    return Passage(source=source, target=source + 1, rate=rate, round_trip_s=round_trip_s)


class MadeUp:
    """Hosts that are none: probes find what is given, the last for ever."""

    made: list[MadeUp]

    def __init__(self, network: Network, hosts: int, folder: Path) -> None:
        self.network, self.hosts, self.made_by = network, hosts, "kernel"
        self.is_there, self.closed = True, 0
        folder.mkdir(parents=True)
        self.folder = folder
        self.made.append(self)

    found: list[Sequence[Passage]]

    def probe(self) -> Sequence[Passage]:
        found = self.found.pop(0) if len(self.found) > 1 else self.found[0]
        if not found:
            raise AroundUnavailable("what holds its hosts has ended")
        return found

    def close(self) -> None:
        self.closed += 1
        self.folder.rmdir()


@pytest.fixture
def hosts(monkeypatch: pytest.MonkeyPatch) -> type[MadeUp]:
    MadeUp.made, MadeUp.found = [], [[passage()]]
    monkeypatch.setattr(module, "Lab", MadeUp)
    return MadeUp


def plan_of(folder: Path, network: Network | None = GBIT) -> LaunchPlan:
    plan = make_plan(folder, network=network)
    return replace(plan, network_place=network_place(plan, HERE, folder))


def test_it_is_made_for_the_first_launch_and_stays(hosts: type[MadeUp], tmp_path: Path) -> None:
    around = NetworkAround()
    for _ in range(2):
        with around.during(plan_of(tmp_path), HERE):
            pass
    with around.during(plan_of(tmp_path, parse_network("1gbit,overlay")), HERE):
        pass
    assert [made.network.text for made in hosts.made] == ["1gbit", "1gbit,overlay"]
    around.close()
    assert [made.closed for made in hosts.made] == [1, 1]


def test_one_that_is_gone_is_made_anew(hosts: type[MadeUp], tmp_path: Path) -> None:
    around = NetworkAround()
    with around.during(plan_of(tmp_path), HERE):
        hosts.made[0].is_there = False
    with around.during(plan_of(tmp_path), HERE):
        assert len(hosts.made) == 2


def test_the_worse_of_both_probes_is_recorded(hosts: type[MadeUp], tmp_path: Path) -> None:
    hosts.found = [[passage(rate=960e6)], [passage(rate=940e6, round_trip_s=5e-5)]]
    with NetworkAround().during(plan_of(tmp_path), HERE) as carried:
        pass
    rate, trip = carried.describe(PASSED).measurements
    assert (rate.name, rate.value, rate.unit, rate.better) == ("network_rate", 940e6 / 8, "B/s", "info")
    assert (trip.name, trip.value) == ("network_round_trip", 5e-5)
    assert rate.at == {"from_host": 0, "to_host": 1}
    assert rate.facts == {"made_by": "kernel"}
    assert carried.describe(PASSED).remarks == []
    assert carried.describe(replace(PASSED, outcome="failed")).measurements == []


def test_what_became_slow_meanwhile_is_told(hosts: type[MadeUp], tmp_path: Path) -> None:
    hosts.found = [[passage()], [passage(rate=478e6)]]
    with NetworkAround().during(plan_of(tmp_path), HERE) as carried:
        pass
    told = "the network after it: host 0 to host 1 carries 478 Mbit/s by TCP, wanted 956.4"
    assert carried.describe(PASSED).remarks == [told]


def test_a_network_that_is_gone_after_a_launch_is_told_and_the_launch_stays_what_it_is(
    hosts: type[MadeUp], tmp_path: Path
) -> None:
    hosts.found = [[passage()], []]
    failed = replace(PASSED, outcome="failed", reason="rank 0 raised ValueError: mine")
    with NetworkAround().during(plan_of(tmp_path), HERE) as carried:
        pass
    assert carried.describe(failed).remarks == ["the network after it: what holds its hosts has ended"]
    assert carried.describe(failed).reason == failed.reason
    assert [m.value for m in carried.describe(PASSED).measurements] == [956e6 / 8, 2e-5]


def test_one_that_became_slow_is_made_anew_for_the_next_launch(hosts: type[MadeUp], tmp_path: Path) -> None:
    around = NetworkAround()
    with around.during(plan_of(tmp_path), HERE):
        hosts.found = [[passage(rate=4e8)]] * 5 + [[passage()]]
    with around.during(plan_of(tmp_path), HERE) as carried:
        assert len(hosts.made) == 2
    assert hosts.made[0].closed == 1
    assert carried.remarks == []


def test_what_this_machine_does_not_carry_is_refused(hosts: type[MadeUp], tmp_path: Path) -> None:
    hosts.found = [[passage(rate=5.5e9)]]
    wanted = plan_of(tmp_path, parse_network("10gbit"))
    with (
        pytest.raises(AroundUnavailable, match="host 0 to host 1 carries 5500 Mbit/s by TCP, wanted 9564, in the best"),
        NetworkAround().during(wanted, HERE),
    ):
        pytest.fail("it was launched")


def test_a_probe_on_a_busy_machine_is_tried_again(hosts: type[MadeUp], tmp_path: Path) -> None:
    hosts.found = [[passage(rate=5e8)], [passage(rate=6e8)], [passage()]]
    with NetworkAround().during(plan_of(tmp_path), HERE) as carried:
        pass
    assert [p.rate for p in carried.before] == [956e6]


@pytest.mark.parametrize(
    ("text", "found", "is_missed"),
    [
        ("1gbit", passage(rate=870e6), False),
        ("1gbit", passage(rate=850e6), True),
        ("1gbit", passage(rate=1060e6), True),
        ("1gbit", passage(round_trip_s=0.0012), True),
        ("1gbit,overlay", passage(rate=923e6), False),
        ("unlimited", passage(rate=1), False),
        ("unlimited,delay=5ms", passage(round_trip_s=0.0102), False),
        ("unlimited,delay=5ms", passage(round_trip_s=0.0099), True),
        ("unlimited,delay=5ms", passage(round_trip_s=0.014), True),
        ("1gbit,loss=1%", passage(rate=1e8, round_trip_s=0.2), False),
    ],
)
def test_what_is_not_as_wanted(text: str, found: Passage, *, is_missed: bool) -> None:
    assert bool(misses(parse_network(text), [found])) is is_missed


def test_ranks_are_of_its_hosts_and_else_of_those_they_were_on(hosts: type[MadeUp], tmp_path: Path) -> None:
    elsewhere = replace(PASSED, hosts=["node7", "node8"])
    with NetworkAround().during(plan_of(tmp_path), HERE) as carried:
        assert carried.describe(PASSED).hosts == ["host0", "host1"]
    with NetworkAround().during(plan_of(tmp_path, None), HERE) as carried:
        assert carried.describe(elsewhere) == elsewhere


def test_nothing_is_made_for_a_label_or_on_other_hosts(hosts: type[MadeUp], tmp_path: Path) -> None:
    plan = plan_of(tmp_path, parse_network("label=roce"))
    with NetworkAround().during(plan, HERE) as carried:
        assert carried.describe(PASSED) == PASSED
    assert hosts.made == []
    assert NetworkAround().conditions(plan) == {"network": "label=roce"}
    assert NetworkAround().conditions(plan_of(tmp_path, None)) == {}
    assert network_place(plan_of(tmp_path), Hosting(hosts="many"), tmp_path) == ""
