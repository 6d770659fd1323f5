"""Networks between ranks: as they are written, as they are made, and whether they are as wanted."""

from __future__ import annotations

import contextlib
import os
import struct
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from support.networks import WITHOUT_PRIVILEGES, inside, slow_down, why_no_networks
from support.plans import make_plan
from support.processes import LIMIT_S, wait_for

from pytest_distbench.errors import AroundUnavailable, ConfigurationError
from pytest_distbench.hosts import network as network_module
from pytest_distbench.hosts import network_hosts as module
from pytest_distbench.hosts.network import (
    Lab,
    Network,
    NetworkAround,
    Passage,
    host_address,
    host_place,
    misses,
    parse_network,
    rank_hosts,
)
from pytest_distbench.hosts.network_hosts import Unavailable, cover, probe, run_batch, under_address, wire, wire_bytes
from pytest_distbench.launch.starters import Hosting
from pytest_distbench.plugin.markers import chosen_by
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.plan import LaunchPlan
from pytest_distbench.records.record import replace
from pytest_distbench.run.kinds import HERE

PING = """
import socket, sys
if sys.argv[1] == "serve":
    with socket.create_server((sys.argv[2], 7)) as listener:
        print("ready", flush=True)
        listener.accept()[0].sendall(b"hello")
else:
    print(socket.create_connection((sys.argv[2], 7), 10).recv(5).decode())
"""


@pytest.fixture(autouse=True)
def _can_be_made() -> None:
    if why := why_no_networks():
        pytest.skip(f"not run: {why}")


def carries_what_is_wanted(lab: Lab) -> bool:
    """Whether one of several probes gets through, as this machine is shared."""
    return any(not misses(lab.network, lab.probe()) for _ in range(10))


@pytest.mark.spawn
@pytest.mark.timeout(LIMIT_S)
@pytest.mark.parametrize("text", ["100mbit", "50mbit,delay=5ms", "100mbit,overlay", "50mbit,overlay,delay=2ms"])
def test_a_probe_finds_what_was_wanted(text: str, tmp_path: Path) -> None:
    if why := why_no_networks(text):
        pytest.skip(f"not run: {why}")
    lab = Lab(parse_network(text), 3, tmp_path / "hosts")
    try:
        assert carries_what_is_wanted(lab)
        assert [(source, target) for source, target, *_ in lab.probe()] == [(0, 1), (1, 2), (2, 0)]
    finally:
        lab.close()


@pytest.mark.spawn
@pytest.mark.timeout(LIMIT_S)
def test_hosts_reach_each_other_and_nobody_else(tmp_path: Path) -> None:
    lab = Lab(Network(), 2, tmp_path / "hosts")
    places = [str(host_place(tmp_path / "hosts", host) / "net") for host in range(2)]
    try:
        server = subprocess.Popen(
            ["nsenter", f"--net={places[1]}", sys.executable, "-c", PING, "serve", host_address(1)],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert server.stdout is not None
        assert server.stdout.readline() == "ready\n"
        assert inside(places[0], sys.executable, "-c", PING, "ask", host_address(1)) == "hello\n"
        server.wait()
        server.stdout.close()
        assert inside(places[0], "ip", "-4", "-brief", "route").split() == ["10.78.0.0/16", "dev", "eth0", "proto",
            "kernel", "scope", "link", "src", host_address(0)]  # fmt: skip
    finally:
        lab.close()


@pytest.mark.spawn
@pytest.mark.timeout(LIMIT_S)
def test_one_slow_host_is_named(tmp_path: Path) -> None:
    lab = Lab(parse_network("100mbit"), 3, tmp_path / "hosts")
    try:
        assert carries_what_is_wanted(lab)
        slow_down(str(host_place(tmp_path / "hosts", 1)), "50mbit")
        told = misses(lab.network, lab.probe())
    finally:
        lab.close()
    assert [line.partition(" reaches")[0] for line in told] == ["host 1 to host 2"]


@pytest.mark.spawn
@pytest.mark.timeout(LIMIT_S)
def test_an_ordinary_user_has_them_in_a_namespace_of_his_own(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from pytest_distbench.hosts.network import Lab; "
        "from pytest_distbench.hosts.network import Network; "
        "lab = Lab(Network(), 2, Path(sys.argv[1])); lab.probe(); "
        "print(sorted(p.name for p in Path(sys.argv[1], 'host0').iterdir())); lab.close()"
    )
    command = [*WITHOUT_PRIVILEGES, sys.executable, "-c", script, str(tmp_path / "hosts")]
    ended = subprocess.run(command, capture_output=True, text=True)
    if "no network namespace" in ended.stderr:
        pytest.skip("not run: this machine gives an ordinary user no namespaces")
    assert ended.stdout.strip() == "['net', 'user']", ended.stderr


@pytest.mark.spawn
@pytest.mark.timeout(LIMIT_S)
def test_missing_namespaces_are_an_error_with_the_next_step(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from pytest_distbench.hosts.network import Lab; "
        "from pytest_distbench.hosts.network import Network; Lab(Network(), 2, Path(sys.argv[1]))"
    )
    forbid = 'echo 0 > /proc/sys/user/max_user_namespaces && exec "$@"'
    command = ["unshare", "--user", "--map-root-user", "sh", "-c", forbid, "sh", *WITHOUT_PRIVILEGES, sys.executable]
    ended = subprocess.run([*command, "-c", script, str(tmp_path / "hosts")], capture_output=True, text=True)
    assert ended.returncode
    assert "the kernel gives this user no network namespace: " in ended.stderr
    assert "Next: run pytest as root, or allow user namespaces" in ended.stderr


@pytest.mark.spawn
@pytest.mark.timeout(LIMIT_S)
def test_they_go_with_the_process_that_wanted_them(tmp_path: Path) -> None:
    script = (
        "import os, signal, sys; from pathlib import Path; from pytest_distbench.hosts.network import Lab; "
        "from pytest_distbench.hosts.network import parse_network; "
        "Lab(parse_network('100mbit,delay=1ms'), 2, Path(sys.argv[1])); os.kill(os.getpid(), signal.SIGKILL)"
    )
    mark = f"test-{tmp_path.name}"
    subprocess.run([sys.executable, "-c", script, str(tmp_path / "hosts")], env={**os.environ, "NETWORK_TEST": mark})
    wait_for(lambda: not _marked(mark))


@pytest.mark.spawn
@pytest.mark.timeout(LIMIT_S)
def test_a_network_whose_process_has_ended_is_an_error(tmp_path: Path) -> None:
    lab = Lab(Network(), 2, tmp_path / "hosts")
    lab._process.kill()
    lab._process.wait()
    assert not lab.is_there
    with pytest.raises(AroundUnavailable, match="the process of its hosts has ended"):
        lab.probe()
    assert not (tmp_path / "hosts").exists()


def _marked(mark: str) -> list[str]:
    needle = f"NETWORK_TEST={mark}".encode()
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdecimal():
            try:
                if needle in (process / "environ").read_bytes():
                    found.append(process.name)
            except OSError:
                continue
    return found


PLACES = ["/a", "/b"]


def lines(commands: list[module.Commands], program: str, host: int | None) -> list[str]:
    return [line for one, where, told in commands if (one, where) == (program, host) for line in told]


def test_hosts_are_leaves_of_a_star_shaped_both_ways_as_their_limits_say() -> None:
    made = list(wire(parse_network("1gbit"), 2, PLACES, has_netem=False))
    assert "link add port1 mtu 1500 type veth peer name eth0 mtu 1500 netns /b" in lines(made, "ip", None)
    assert f"addr add {host_address(1)}/16 dev eth0" in lines(made, "ip", 1)
    [own] = lines(made, "tc", 0)
    assert own.startswith("qdisc add dev eth0 root handle 1: tbf rate 1000000000bit ")
    assert [line.split()[3] for line in lines(made, "tc", None)] == ["port0", "port1"]

    for text in ("10mbit", "100mbit", "1gbit", "10gbit"):
        made = list(wire(parse_network(text), 2, PLACES, has_netem=False))
        [cut] = [line for line in lines(made, "ip", 0) if "gso_max_size" in line]
        largest = int(cut.split("gso_max_size ")[1].split()[0])
        burst = int(lines(made, "tc", 0)[0].split("burst ")[1].split()[0])
        assert burst == 2 * largest
        assert 3000 <= largest <= 65536

    shaped = lines(list(wire(parse_network("1gbit,delay=1ms,loss=1%"), 2, PLACES, has_netem=True)), "tc", 0)
    assert shaped[1] == "qdisc add dev eth0 parent 1: handle 10: netem delay 1000us loss 1% limit 100000"
    [alone] = lines(list(wire(parse_network("unlimited,delay=1ms"), 2, PLACES, has_netem=True)), "tc", 1)
    assert alone == "qdisc add dev eth0 root handle 10: netem delay 1000us limit 100000"

    made = list(wire(parse_network("unlimited"), 2, PLACES, has_netem=False))
    assert all(program == "ip" for program, *_ in made)
    assert not any("gso" in line for *_, told in made for line in told)


def test_an_overlay_lies_over_addresses_of_its_own() -> None:
    network = parse_network("1gbit,overlay")
    laid = list(cover(network, 3))

    assert module.underlay(network) == "under0"
    assert f"addr add {under_address(1)}/16 dev under0" in lines(
        list(wire(network, 3, ["/"] * 3, has_netem=False)), "ip", 1
    )
    assert f"local {under_address(2)}" in lines(laid, "ip", 2)[0]
    found = lines(laid, "bridge", 0)
    assert found == [f"fdb append 00:00:00:00:00:00 dev eth0 dst {under_address(other)}" for other in (1, 2)]
    assert list(cover(parse_network("1gbit"), 3)) == []
    assert under_address(1) != host_address(1)


def packet(num_bytes: int, *, headers: int = 0, piece: int = 0) -> bytes:
    return struct.pack("=BBHHHH", 0, 0, headers, piece, 0, 0) + bytes(num_bytes)


def test_packets_have_headers_and_a_program_that_fails_is_an_error() -> None:
    assert wire_bytes(packet(1500)) == 1514

    assert wire_bytes(packet(52 + 3 * 1448, headers=52, piece=1448)) == 3 * 1514
    assert wire_bytes(packet(52 + 1448 + 1, headers=52, piece=1448)) == 1514 + 14 + 52 + 1

    with pytest.raises(Unavailable, match=r"no-such-program: No such file or directory\. Next: install iproute2"):
        run_batch("no-such-program", [])

    with pytest.raises(Unavailable, match=r"false cannot make it: exit status 1 \(of: link add; link set\)"):
        run_batch("false", ["link add", "link set"])


def test_each_host_sends_to_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    entered: list[int] = []

    def enter(host: int) -> contextlib.AbstractContextManager[None]:
        entered.append(host)
        return contextlib.nullcontext()

    monkeypatch.setattr(module, "host_address", lambda host: "127.0.0.1")
    found = probe(enter, 3, Network())

    assert [(source, target) for source, target, *_ in found] == [(0, 1), (1, 2), (2, 0)]
    assert entered == [1, 0, 2, 1, 0, 2], "the listener is the target's, the connection the source's"
    assert all(rate > 1e6 and 0 < round_trip_s < 1 for *_, rate, round_trip_s in found)


def test_a_host_alone_sends_nowhere() -> None:
    def enter(host: int) -> contextlib.AbstractContextManager[None]:
        raise AssertionError(host)

    assert probe(enter, 1, Network()) == []


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
    one = network_module.make_network("1gbit", {"delay": "1ms", "overlay": True, "loss": None, "hosts": 2}, written="x")
    assert one == parse_network("1gbit,delay=1ms,overlay,hosts=2")
    assert parse_network("1gbit,delay=0s").text == "1gbit"

    with pytest.raises(ConfigurationError, match="'1gbit,delay=1ms,delay=2ms': delay stands there twice"):
        parse_network("1gbit,delay=1ms,delay=2ms")

    assert rank_hosts(Network(), 3) == [0, 1, 2]
    assert rank_hosts(Network(hosts=2), 4) == [0, 0, 1, 1]
    assert rank_hosts(Network(hosts=2), 1) == [0]
    with pytest.raises(ConfigurationError, match="3 ranks cannot be shared evenly by 2 hosts"):
        rank_hosts(Network(hosts=2), 3)

    found = [network_module.host_address(host) for host in range(600)]
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


class SimulatedNetwork:
    """Hosts that are none: probes find what is given, the last for ever."""

    made: list[SimulatedNetwork]

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
def hosts(monkeypatch: pytest.MonkeyPatch) -> type[SimulatedNetwork]:
    SimulatedNetwork.made, SimulatedNetwork.found = [], [[passage()]]
    monkeypatch.setattr(network_module, "Lab", SimulatedNetwork)
    return SimulatedNetwork


def plan_of(folder: Path, network: str = "1gbit") -> LaunchPlan:
    plan = make_plan(folder, chosen={"network": network})
    return NetworkAround().ready(plan, HERE, folder)


def test_it_is_made_for_the_first_launch_and_stays(hosts: type[SimulatedNetwork], tmp_path: Path) -> None:
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
    ("after", "rate", "text"),
    [
        ([passage(rate=478e6)], 478e6, "host 0 to host 1 reaches 478 Mbit/s by TCP; wanted 956.4"),
        ([], 956e6, "the process of its hosts has ended"),
    ],
)
def test_a_network_that_changed_during_a_launch_is_a_remark_on_it(
    hosts: type[SimulatedNetwork], tmp_path: Path, after: list[Passage], rate: float, text: str
) -> None:
    hosts.found = [[passage()], after]
    failed = replace(PASSED, outcome="failed", reason="rank 0 raised", hosts=["host0", "host1"])
    with NetworkAround().during(plan_of(tmp_path), HERE) as carried:
        pass
    assert carried(failed) == replace(failed, remarks=[f"the network after it: {text}"])
    assert [m.value for m in carried(PASSED).measurements] == [rate / 8, 2e-5]


def test_a_network_that_became_slow_is_replaced(hosts: type[SimulatedNetwork], tmp_path: Path) -> None:
    around = NetworkAround()
    with around.during(plan_of(tmp_path), HERE):
        hosts.found = [[passage(rate=4e8)]] * 5 + [[passage()]]
    with around.during(plan_of(tmp_path), HERE) as carried:
        assert len(hosts.made) == 2
    assert hosts.made[0].closed == 1
    assert carried(PASSED).remarks == []


def test_what_this_machine_does_not_carry_is_refused(hosts: type[SimulatedNetwork], tmp_path: Path) -> None:
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
    assert bool(network_module.misses(parse_network(text), [found])) is is_missed


def test_ranks_are_of_its_hosts_and_else_of_those_they_were_on(hosts: type[SimulatedNetwork], tmp_path: Path) -> None:
    elsewhere = replace(PASSED, hosts=["node7", "node8"])
    with NetworkAround().during(plan_of(tmp_path), HERE) as carried:
        assert carried(PASSED).hosts == ["host0", "host1"]
    with NetworkAround().during(plan_of(tmp_path, ""), HERE) as carried:
        assert carried(elsewhere) == elsewhere


def test_the_worse_of_both_probes_is_recorded(hosts: type[SimulatedNetwork], tmp_path: Path) -> None:
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


def test_a_probe_on_a_busy_machine_is_tried_again(hosts: type[SimulatedNetwork], tmp_path: Path) -> None:
    hosts.found = [[passage(rate=5e8)], [passage(rate=6e8)], [passage()]]
    with NetworkAround().during(plan_of(tmp_path), HERE) as carried:
        pass
    assert carried(PASSED).measurements[0].value == 956e6 / 8


def test_nothing_is_made_for_a_label_or_on_other_hosts(hosts: type[SimulatedNetwork], tmp_path: Path) -> None:
    plan = plan_of(tmp_path, "label=roce")
    with NetworkAround().during(plan, HERE) as carried:
        assert carried(PASSED) == PASSED
    assert hosts.made == []
    plan = make_plan(tmp_path, chosen={"network": "1gbit"})
    assert NetworkAround().ready(plan, Hosting(hosts="many"), tmp_path) == plan
