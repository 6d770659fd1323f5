"""What ``ip`` and ``tc`` are told to join hosts by a switch: pure, a list of commands for each namespace.

The hosts are the leaves of a star. The way to the switch and the way back are shaped alike, as a port of a switch is:
several that send to one host share what that receives.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pytest_distbench.records.network import Network, host_address

MTU = 1500
_VXLAN_HEADERS = 50
"""Bytes of Ethernet, IP, UDP and VXLAN around each packet (RFC 7348)."""
_PREFIX = 16
_VXLAN = "type vxlan id 42 dstport 4789 learning"
_PACKET_S = 0.00015
"""The longest that one packet may take: what the kernel would send in pieces of up to 64 KiB, and a token bucket lets
pass whole, is cut to that, so that small messages do not pass it for nothing."""
_MOST_GSO = 65536
_QUEUE = "100ms"


@dataclass(frozen=True, slots=True)
class Commands:
    """What one program is told in one namespace.

    Attributes:
        program: ``ip``, ``tc`` or ``bridge``; each reads its lines with ``-batch -``.
        host: whose namespace it is; None: the switch's.
        lines: without the program's name.
    """

    program: str
    host: int | None
    lines: list[str]


def underlay(network: Network) -> str:
    """The interface of a host that leads to the switch; ranks use ``eth0``."""
    return "under0" if network.overlay else "eth0"


def wire(network: Network, hosts: int, places: list[str], *, has_netem: bool) -> Iterator[Commands]:
    """Join the hosts by veth pairs and a bridge, shaped by token buckets, and netem where it is needed.

    Args:
        network: that is wanted.
        hosts: how many.
        places: a path of the namespace of each.
        has_netem: the kernel delays and loses packets; else somebody else does, and there is nothing to wire but what
            lies over it.
    """
    device = underlay(network)
    pairs = [
        f"link add port{i} mtu {MTU} type veth peer name {device} mtu {MTU} netns {places[i]}" for i in range(hosts)
    ]
    ports = [f"link set port{i} master br0{_cut(network)} up" for i in range(hosts)]
    yield Commands("ip", None, ["link set lo up", "link add br0 type bridge", "link set br0 up", *pairs, *ports])
    for host in range(hosts):
        yield Commands("ip", host, addressed(network, host))
        yield Commands("ip", host, [f"link set {device}{_cut(network)} up"])
        if shaping := list(_shape(network, device, delays=has_netem)):
            yield Commands("tc", host, shaping)
    if shaping := [line for i in range(hosts) for line in _shape(network, f"port{i}", delays=False)]:
        yield Commands("tc", None, shaping)


def addressed(network: Network, host: int) -> list[str]:
    """What gives a host its address on the way to the switch."""
    address = under_address(host) if network.overlay else host_address(host)
    device = underlay(network)
    return ["link set lo up", f"addr add {address}/{_PREFIX} dev {device}", f"link set {device} up"]


def cover(network: Network, hosts: int) -> Iterator[Commands]:
    """Lay the overlay over a network that is there.

    Each host sends what is for all to each other one itself, and learns from what comes where the others are.
    """
    if not network.overlay:
        return
    for host in range(hosts):
        made = f"link add eth0 mtu {MTU - _VXLAN_HEADERS} {_VXLAN} local {under_address(host)}"
        addressed = f"addr add {host_address(host)}/{_PREFIX} dev eth0"
        yield Commands("ip", host, [made, addressed, f"link set eth0{_cut(network, _VXLAN_HEADERS)} up"])
        others = [under_address(other) for other in range(hosts) if other != host]
        yield Commands("bridge", host, [f"fdb append 00:00:00:00:00:00 dev eth0 dst {other}" for other in others])


def under_address(host: int) -> str:
    """The address of a host below the overlay."""
    return host_address(host).replace("10.78.", "10.79.", 1)


def _cut(network: Network, headers: int = 0) -> str:
    return f" gso_max_size {_packet(network) - headers}" if network.rate else ""


def _packet(network: Network) -> int:
    """Bytes of the largest packet."""
    return max(2 * MTU, min(_MOST_GSO, int(network.rate / 8 * _PACKET_S)))


def _shape(network: Network, device: str, *, delays: bool) -> Iterator[str]:
    at = "root"
    if network.rate:
        burst = 2 * _packet(network)
        yield f"qdisc add dev {device} root handle 1: tbf rate {network.rate:.0f}bit burst {burst} latency {_QUEUE}"
        at = "parent 1:"
    if delays and (network.delay_s or network.loss):
        loss = f" loss {network.loss * 100:g}%" if network.loss else ""
        yield (f"qdisc add dev {device} {at} handle 10: netem delay {network.delay_s * 1e6:.0f}us{loss} limit 100000")
