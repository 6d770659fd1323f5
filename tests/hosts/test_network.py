"""Networks that are really made, as far as this machine lets us, the process that holds their hosts, and a probe."""

from __future__ import annotations

import contextlib
import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from support.networks import WITHOUT_PRIVILEGES, inside, slow_down, why_no_networks
from support.processes import LIMIT_S, wait_for

from pytest_distbench.errors import AroundUnavailable
from pytest_distbench.hosts import network_hosts as module
from pytest_distbench.hosts.network import Lab, Network, host_address, host_place, misses, parse_network
from pytest_distbench.hosts.network_hosts import Unavailable, cover, probe, tell, under_address, wire, wire_bytes

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
    """In one of some probes: this machine is shared."""
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
def test_where_there_are_no_namespaces_it_is_told_what_to_do(tmp_path: Path) -> None:
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
def test_hosts_that_are_gone_are_told(tmp_path: Path) -> None:
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


def test_packets_have_headers_and_programs_are_told_that_fail() -> None:
    assert wire_bytes(packet(1500)) == 1514

    assert wire_bytes(packet(52 + 3 * 1448, headers=52, piece=1448)) == 3 * 1514
    assert wire_bytes(packet(52 + 1448 + 1, headers=52, piece=1448)) == 1514 + 14 + 52 + 1

    with pytest.raises(Unavailable, match=r"no-such-program: No such file or directory\. Next: install iproute2"):
        tell("no-such-program", [])

    with pytest.raises(Unavailable, match=r"false cannot make it: exit status 1 \(of: link add; link set\)"):
        tell("false", ["link add", "link set"])


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
