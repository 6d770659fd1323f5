"""What a network is written as, which host each rank is of, and what happens around its launches."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from support.plans import make_plan

from pytest_distbench.errors import AroundUnavailable, ConfigurationError
from pytest_distbench.hosts import network as module
from pytest_distbench.hosts.network import Network, NetworkAround, Passage, parse_network, rank_hosts
from pytest_distbench.launch.starters import Hosting
from pytest_distbench.plugin.markers import chosen_by
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.plan import LaunchPlan
from pytest_distbench.records.record import replace
from pytest_distbench.run.kinds import HERE

WRITTEN = {
    "unlimited": Network(),
    "1gbit": Network(rate=1e9),
    "2.5gbit": Network(rate=2.5e9),
    "1000gbit": Network(rate=1e12),
    "100.00004mbit": Network(rate=100_000_040),
    "100mbit,delay=5ms": Network(rate=1e8, delay_s=0.005),
    "10mbit,delay=0.25ms,loss=0.1%,overlay,hosts=2": Network(
        rate=1e7, delay_s=0.00025, loss=0.001, overlay=True, hosts=2
    ),
    "unlimited,overlay": Network(overlay=True),
    "label=infiniband": Network(label="infiniband"),
}


@pytest.mark.parametrize("text", WRITTEN)
def test_a_network_is_read_and_written(text: str) -> None:
    assert parse_network(text) == WRITTEN[text]
    assert WRITTEN[text].text == text


def test_a_network_is_written_in_several_ways_and_shared_by_its_hosts() -> None:
    assert parse_network(" 1000mbit , delay=1000us ").text == "1gbit,delay=1ms"
    told = module.make_network("1gbit", {"delay": "1ms", "overlay": True, "loss": None, "hosts": 2}, told="x")
    assert told == parse_network("1gbit,delay=1ms,overlay,hosts=2")
    assert parse_network("1gbit,delay=0s").text == "1gbit"

    with pytest.raises(ConfigurationError, match="'1gbit,delay=1ms,delay=2ms': delay stands there twice"):
        parse_network("1gbit,delay=1ms,delay=2ms")

    assert rank_hosts(Network(), 3) == [0, 1, 2]
    assert rank_hosts(Network(hosts=2), 4) == [0, 0, 1, 1]
    assert rank_hosts(Network(hosts=2), 1) == [0]
    with pytest.raises(ConfigurationError, match="3 ranks cannot be shared evenly by 2 hosts"):
        rank_hosts(Network(hosts=2), 3)

    found = [module.host_address(host) for host in range(600)]
    assert len(set(found)) == 600
    assert found[:2] == ["10.78.0.10", "10.78.0.11"]
    assert all(int(part) < 256 for address in found for part in address.split("."))


@pytest.mark.parametrize(
    ("text", "problem"),
    {
        "": "rate=''",
        "fast": "rate='fast'",
        "1 Gbit": "rate='1 Gbit'",
        "9mbit": "rate='9mbit'",
        "1001gbit": "rate='1001gbit'",
        "1gbit,delay=1": "delay='1'",
        "1gbit,delay=-1ms": "delay='-1ms'",
        "1gbit,delay=2s": "delay='2s'",
        "1gbit,delay": "delay=True",
        "1gbit,loss=30%": "loss='30%'",
        "1gbit,overlay=yes": "overlay='yes'",
        "1gbit,hosts=1": "hosts='1'",
        "1gbit,hosts=two": "hosts='two'",
        "1gbit,dealy=1ms": "there is no 'dealy'",
        "label=": "label=''",
        "label=a b": "label='a b'",
        "label=roce,overlay": "a label names what is there",
    }.items(),
)
def test_what_is_no_network_is_refused(text: str, problem: str) -> None:
    with pytest.raises(ConfigurationError, match="wanted a rate of 10mbit to 1000gbit or 'unlimited'") as raised:
        parse_network(text)
    assert problem in str(raised.value)


marked = pytest.mark.network


@pytest.mark.parametrize(
    ("marker", "network"),
    [
        (marked("1gbit"), Network(rate=1e9)),
        (marked("1gbit,delay=1ms"), Network(rate=1e9, delay_s=0.001)),
        (marked("1gbit", delay="1ms", overlay=True, hosts=2), Network(rate=1e9, delay_s=0.001, overlay=True, hosts=2)),
        (marked(label="roce"), Network(label="roce")),
    ],
)
def test_a_network_in_one_text_or_in_keywords(marker: pytest.MarkDecorator, network: Network) -> None:
    assert chosen_by([marker.mark]) == {"network": network.text}


@pytest.mark.parametrize(
    ("marker", "problem"),
    [
        (marked(), "rate=''"),
        (marked("1gbit", "2gbit"), r"rate=\('1gbit', '2gbit'\)"),
        (marked(10**9), "rate=1000000000"),
        (marked("1gbit", delay=0.001), "delay=0.001"),
        (marked("1gbit", overlay=1), "overlay=1"),
        (marked("1gbit", label="roce"), "a label names what is there"),
        (marked("1gbit,delay=1ms", loss="1%"), "rate='1gbit,delay=1ms'"),
    ],
)
def test_what_is_none_is_refused(marker: pytest.MarkDecorator, problem: str) -> None:
    with pytest.raises(ConfigurationError, match=f"@pytest.mark.network: network .*{problem}"):
        chosen_by([marker.mark])


def test_the_closest_marker_says_all_of_it() -> None:
    found = chosen_by([pytest.mark.full.mark, marked("1gbit").mark, marked("100mbit", delay="1ms").mark])
    assert found == {"network": "1gbit"}
    assert chosen_by([pytest.mark.full.mark]) == {}


PASSED = LaunchRecord(index=0, outcome="passed", wall_s=1.0)


def passage(rate: float = 956e6, round_trip_s: float = 2e-5, source: int = 0) -> Passage:
    return source, source + 1, rate, round_trip_s


class MadeUpOfNetwork:
    """Hosts that are none: probes find what is given, the last for ever."""

    made: list[MadeUpOfNetwork]

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
            raise AroundUnavailable("the process of its hosts has ended")
        return found

    def close(self) -> None:
        self.closed += 1
        self.folder.rmdir()


@pytest.fixture
def hosts(monkeypatch: pytest.MonkeyPatch) -> type[MadeUpOfNetwork]:
    MadeUpOfNetwork.made, MadeUpOfNetwork.found = [], [[passage()]]
    monkeypatch.setattr(module, "Lab", MadeUpOfNetwork)
    return MadeUpOfNetwork


def plan_of(folder: Path, network: str = "1gbit") -> LaunchPlan:
    plan = make_plan(folder, chosen={"network": network})
    return NetworkAround().ready(plan, HERE, folder)


def test_it_is_made_for_the_first_launch_and_stays(hosts: type[MadeUpOfNetwork], tmp_path: Path) -> None:
    around = NetworkAround()
    for _ in range(2):
        with around.during(plan_of(tmp_path), HERE):
            pass
    with around.during(plan_of(tmp_path, "1gbit,overlay"), HERE):
        pass
    assert [made.network.text for made in hosts.made] == ["1gbit", "1gbit,overlay"]
    around.close()
    assert [made.closed for made in hosts.made] == [1, 1]


@pytest.mark.parametrize(
    ("after", "rate", "told"),
    [
        ([passage(rate=478e6)], 478e6, "host 0 to host 1 reaches 478 Mbit/s by TCP; wanted 956.4"),
        ([], 956e6, "the process of its hosts has ended"),
    ],
)
def test_what_a_network_became_meanwhile_is_told_and_the_launch_stays_what_it_is(
    hosts: type[MadeUpOfNetwork], tmp_path: Path, after: list[Passage], rate: float, told: str
) -> None:
    hosts.found = [[passage()], after]
    failed = replace(PASSED, outcome="failed", reason="rank 0 raised", hosts=["host0", "host1"])
    with NetworkAround().during(plan_of(tmp_path), HERE) as carried:
        pass
    assert carried(failed) == replace(failed, remarks=[f"the network after it: {told}"])
    assert [m.value for m in carried(PASSED).measurements] == [rate / 8, 2e-5]


def test_one_that_became_slow_is_made_anew_for_the_next_launch(hosts: type[MadeUpOfNetwork], tmp_path: Path) -> None:
    around = NetworkAround()
    with around.during(plan_of(tmp_path), HERE):
        hosts.found = [[passage(rate=4e8)]] * 5 + [[passage()]]
    with around.during(plan_of(tmp_path), HERE) as carried:
        assert len(hosts.made) == 2
    assert hosts.made[0].closed == 1
    assert carried(PASSED).remarks == []


def test_what_this_machine_does_not_carry_is_refused(hosts: type[MadeUpOfNetwork], tmp_path: Path) -> None:
    hosts.found = [[passage(rate=5.5e9)]]
    wanted = plan_of(tmp_path, "10gbit")
    with (
        pytest.raises(AroundUnavailable, match="host 0 to host 1 reaches 5500 Mbit/s by TCP; wanted 9564, in the best"),
        NetworkAround().during(wanted, HERE),
    ):
        pytest.fail("it was launched")


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
    assert bool(module.misses(parse_network(text), [found])) is is_missed


def test_ranks_are_of_its_hosts_and_else_of_those_they_were_on(hosts: type[MadeUpOfNetwork], tmp_path: Path) -> None:
    elsewhere = replace(PASSED, hosts=["node7", "node8"])
    with NetworkAround().during(plan_of(tmp_path), HERE) as carried:
        assert carried(PASSED).hosts == ["host0", "host1"]
    with NetworkAround().during(plan_of(tmp_path, ""), HERE) as carried:
        assert carried(elsewhere) == elsewhere


def test_the_worse_of_both_probes_is_recorded(hosts: type[MadeUpOfNetwork], tmp_path: Path) -> None:
    hosts.found = [[passage(rate=960e6)], [passage(rate=940e6, round_trip_s=5e-5)]]
    with NetworkAround().during(plan_of(tmp_path), HERE) as carried:
        pass
    rate, trip = carried(PASSED).measurements
    assert (rate.name, rate.value, rate.unit, rate.better) == ("network_rate", 940e6 / 8, "B/s", "info")
    assert (trip.name, trip.value) == ("network_round_trip", 5e-5)
    assert rate.at == {"from_host": 0, "to_host": 1}
    assert rate.facts == {"made_by": "kernel"}
    assert carried(PASSED).remarks == []
    assert carried(replace(PASSED, outcome="failed")).measurements == []


def test_a_probe_on_a_busy_machine_is_tried_again(hosts: type[MadeUpOfNetwork], tmp_path: Path) -> None:
    hosts.found = [[passage(rate=5e8)], [passage(rate=6e8)], [passage()]]
    with NetworkAround().during(plan_of(tmp_path), HERE) as carried:
        pass
    assert carried(PASSED).measurements[0].value == 956e6 / 8


def test_nothing_is_made_for_a_label_or_on_other_hosts(hosts: type[MadeUpOfNetwork], tmp_path: Path) -> None:
    plan = plan_of(tmp_path, "label=roce")
    with NetworkAround().during(plan, HERE) as carried:
        assert carried(PASSED) == PASSED
    assert hosts.made == []
    plan = make_plan(tmp_path, chosen={"network": "1gbit"})
    assert NetworkAround().ready(plan, Hosting(hosts="many"), tmp_path) == plan
