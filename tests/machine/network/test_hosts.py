"""The process that holds the hosts of a network: namespaces, how they are joined, and a switch."""

from __future__ import annotations

import struct

import pytest

from pytest_distbench.machine.network_hosts import (
    Commands,
    Unavailable,
    cover,
    tell,
    under_address,
    underlay,
    wire,
    wire_bytes,
)
from pytest_distbench.records.network import host_address, parse_network

PLACES = ["/a", "/b"]


def lines(commands: list[Commands], program: str, host: int | None) -> list[str]:
    return [line for each in commands if (each.program, each.host) == (program, host) for line in each.lines]


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
    assert all(each.program == "ip" for each in made)
    assert not any("gso" in line for each in made for line in each.lines)


def test_an_overlay_lies_over_addresses_of_its_own() -> None:
    network = parse_network("1gbit,overlay")
    laid = list(cover(network, 3))

    assert underlay(network) == "under0"
    assert f"addr add {under_address(1)}/16 dev under0" in lines(
        list(wire(network, 3, ["/"] * 3, has_netem=False)), "ip", 1
    )
    assert f"local {under_address(2)}" in lines(laid, "ip", 2)[0]
    assert lines(laid, "bridge", 0) == [
        f"fdb append 00:00:00:00:00:00 dev eth0 dst {under_address(other)}" for other in (1, 2)
    ]
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
