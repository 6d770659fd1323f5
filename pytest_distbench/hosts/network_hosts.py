"""``python -m pytest_distbench.hosts.network_hosts HOSTS NETWORK``: holds a network's hosts, which are namespaces.

They are the leaves of a star. Both directions to the switch are shaped, as a switch's port is: several senders share
what a host receives. ``ip`` and ``tc`` get a list of commands for each namespace. If the kernel cannot delay or lose
packets, this process is the switch: it reads what a host sends from the descriptor of its TUN device, keeps it until
its time, and writes it to the receiver's.

The process reports where the namespaces are, answers ``probe`` on its stdin, and ends with its stdin, whereupon the
kernel removes everything. Errors are reported on its stdout too.
"""

from __future__ import annotations

import collections
import contextlib
import ctypes
import fcntl
import os
import random
import select
import signal
import socket
import statistics
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager

import msgspec

from pytest_distbench.hosts.network import Network, NetworkAnswer, Passage, host_address, parse_network

MTU = 1500
_VXLAN_HEADERS = 50  # bytes of Ethernet, IP, UDP and VXLAN around each packet (RFC 7348)
_PREFIX = 16
_VXLAN = "type vxlan id 42 dstport 4789 learning"
_PACKET_S = 0.00015
"""Longest time of one packet on the link, in seconds: the kernel's pieces of up to 64 KiB, which a token bucket would
let pass at once, are cut into packets of that time."""
_MOST_GSO = 65536
_QUEUE = "100ms"


Commands = tuple[str, int | None, list[str]]
"""A program (``ip``, ``tc`` or ``bridge``); the host in whose namespace it runs, or None for the switch's; and lines of
its stdin under ``-batch -``."""


def underlay(network: Network) -> str:
    return "under0" if network.overlay else "eth0"


def wire(network: Network, hosts: int, places: list[str], *, has_netem: bool) -> Iterator[Commands]:
    """Commands that connect hosts by veth pairs and a bridge, and limit rates by token buckets, delays by netem."""
    device = underlay(network)
    pairs = [
        f"link add port{i} mtu {MTU} type veth peer name {device} mtu {MTU} netns {places[i]}" for i in range(hosts)
    ]
    ports = [f"link set port{i} master br0{_cut(network)} up" for i in range(hosts)]
    yield "ip", None, ["link set lo up", "link add br0 type bridge", "link set br0 up", *pairs, *ports]
    for host in range(hosts):
        yield "ip", host, addressed(network, host)
        yield "ip", host, [f"link set {device}{_cut(network)} up"]
        if shaping := list(_shape(network, device, delays=has_netem)):
            yield "tc", host, shaping
    if shaping := [line for i in range(hosts) for line in _shape(network, f"port{i}", delays=False)]:
        yield "tc", None, shaping


def addressed(network: Network, host: int) -> list[str]:
    address = under_address(host) if network.overlay else host_address(host)
    device = underlay(network)
    return ["link set lo up", f"addr add {address}/{_PREFIX} dev {device}", f"link set {device} up"]


def cover(network: Network, hosts: int) -> Iterator[Commands]:
    """Commands that add a VXLAN overlay: each host broadcasts to every other one, and learns addresses from packets."""
    if not network.overlay:
        return
    for host in range(hosts):
        made = f"link add eth0 mtu {MTU - _VXLAN_HEADERS} {_VXLAN} local {under_address(host)}"
        addressed = f"addr add {host_address(host)}/{_PREFIX} dev eth0"
        yield "ip", host, [made, addressed, f"link set eth0{_cut(network, _VXLAN_HEADERS)} up"]
        others = [under_address(other) for other in range(hosts) if other != host]
        yield "bridge", host, [f"fdb append 00:00:00:00:00:00 dev eth0 dst {other}" for other in others]


def under_address(host: int) -> str:
    return host_address(host).replace("10.78.", "10.79.", 1)


def _cut(network: Network, headers: int = 0) -> str:
    return f" gso_max_size {_packet(network) - headers}" if network.rate else ""


def _packet(network: Network) -> int:
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


_TUNSETIFF, _TUNSETOFFLOAD = 0x400454CA, 0x400454D0
_IFF_TUN, _IFF_NO_PI, _IFF_VNET_HDR = 0x1, 0x1000, 0x4000
_CHECKSUMS, _TCP4 = 0x1, 0x2
_HEADER = 10  # bytes of virtio's network header, before the packet (linux/virtio_net.h)
_HEADERS_AND_PIECE = struct.Struct("=2xHH4x")
"""Part of the header that a TUN device puts before a packet: bytes of the packet's headers, and bytes of each piece
that it stands for, or 0 if it is a single packet."""
_ETHERNET = 14
_TARGET = slice(_HEADER + 16, _HEADER + 20)  # of an IPv4 packet the address that it is for (RFC 791)
_LARGEST = 65536 + _HEADER
_AT_ONCE = 16


def open_device(name: str, network: Network) -> int:
    """Make a TUN device in this thread's network namespace, and return its descriptor.

    Without loss, up to 64 KiB cross in one read, as the kernel has not cut them yet.
    """
    descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    flags = _IFF_TUN | _IFF_NO_PI | _IFF_VNET_HDR
    fcntl.ioctl(descriptor, _TUNSETIFF, struct.pack("16sH22x", name.encode(), flags))
    if not network.loss:
        fcntl.ioctl(descriptor, _TUNSETOFFLOAD, _CHECKSUMS | _TCP4)
    return descriptor


def relay(network: Network, devices: Sequence[int], addresses: Sequence[str]) -> None:
    """Carry packets between hosts until this process is ended.

    A packet leaves after its sender's earlier ones, travels for the delay, and arrives after its receiver's earlier
    ones: a rate limits both.
    """
    by_address = {
        bytes(map(int, address.split("."))): device for address, device in zip(addresses, devices, strict=True)
    }
    s_per_byte = 8 / network.rate if network.rate else 0.0
    sent_until = dict.fromkeys(devices, 0.0)
    received_until = dict.fromkeys(devices, 0.0)
    under_way: dict[int, collections.deque[tuple[float, bytes]]] = {device: collections.deque() for device in devices}
    while True:
        due = min((queue[0][0] for queue in under_way.values() if queue), default=None)
        wait_s = None if due is None else max(0.0, due - time.monotonic())
        ready, _, _ = select.select(devices, [], [], wait_s)
        now = time.monotonic()
        for device in ready:
            for packet in _packets(device):
                target = by_address.get(packet[_TARGET])
                if target is None or (network.loss and random.random() < network.loss):
                    continue
                takes_s = wire_bytes(packet) * s_per_byte
                sent_until[device] = max(now, sent_until[device]) + takes_s
                begins = sent_until[device] - takes_s + network.delay_s
                received_until[target] = max(begins, received_until[target]) + takes_s
                under_way[target].append((received_until[target], packet))
        now = time.monotonic()
        for target, queue in under_way.items():
            while queue and queue[0][0] <= now:
                with contextlib.suppress(OSError):  # its queue is full, and the packet is lost, as a switch loses it
                    os.write(target, queue[0][1])
                queue.popleft()


def wire_bytes(packet: bytes) -> int:
    """Bytes of a packet on an Ethernet; one that the kernel has not cut counts as many, each with headers."""
    headers: int
    piece: int
    headers, piece = _HEADERS_AND_PIECE.unpack_from(packet)
    carried = len(packet) - _HEADER - headers
    count = -(-carried // piece) if piece else 1
    return carried + count * (headers + _ETHERNET)


def _packets(device: int) -> list[bytes]:
    found = []
    for _ in range(_AT_ONCE):
        try:
            packet = os.read(device, _LARGEST)
        except BlockingIOError:
            break
        if packet[_HEADER] >> 4 == 4:
            found.append(packet)
    return found


_ROUND_TRIPS = 20
_FEWEST = 5
_ROUND_TRIPS_S = 0.1
_SENDS_S = 0.15
_STARTS_S = 0.05
_IN_ROUND_TRIPS = 12  # TCP doubles what it has under way in each: so it has filled what a gigabit carries in 100 ms
_PIECE = 1 << 20
_GIVES_UP_S = 15.0

Enter = Callable[[int], AbstractContextManager[None]]  # makes sockets those of a host


def probe(enter: Enter, hosts: int, network: Network) -> list[Passage]:
    """Measure rate and round trip from each host to the next by TCP, one pair at a time; [] for one host."""
    if hosts == 1:
        return []
    found = []
    for source in range(hosts):
        target = (source + 1) % hosts
        with enter(target):
            listener = socket.create_server((host_address(target), 0))
        with listener:
            listener.settimeout(_GIVES_UP_S)
            with enter(source):
                sender = socket.create_connection(listener.getsockname(), timeout=_GIVES_UP_S)
            receiver, _ = listener.accept()
        with sender, receiver:
            for end in (sender, receiver):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                end.settimeout(_GIVES_UP_S)
            round_trip_s = _ping(sender, receiver)
            starts_s = _STARTS_S + _IN_ROUND_TRIPS * 2 * network.delay_s
            found.append((source, target, _pour(sender, receiver, starts_s=starts_s), round_trip_s))
    return found


def _ping(sender: socket.socket, receiver: socket.socket) -> float:
    found: list[float] = []
    began = time.monotonic()
    while len(found) < _ROUND_TRIPS and (len(found) < _FEWEST or time.monotonic() < began + _ROUND_TRIPS_S):
        start = time.monotonic()
        sender.sendall(b".")
        receiver.recv(1)
        receiver.sendall(b".")
        sender.recv(1)
        found.append(time.monotonic() - start)
    return statistics.median(found)


def _pour(sender: socket.socket, receiver: socket.socket, *, starts_s: float) -> float:
    until = time.monotonic() + starts_s + _SENDS_S
    piece = bytes(_PIECE)

    def send() -> None:
        with contextlib.suppress(OSError):  # the receiver has seen enough
            while time.monotonic() < until:
                sender.send(piece)
            sender.shutdown(socket.SHUT_WR)

    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    room = bytearray(_PIECE)
    counted, since, last = 0, 0.0, 0.0
    while num_bytes := receiver.recv_into(room):
        last = time.monotonic()
        if since:
            counted += num_bytes
        elif last > until - _SENDS_S:
            since = last
        if last > until:
            break
    with contextlib.suppress(OSError):
        receiver.shutdown(socket.SHUT_RDWR)
    receiver.close()
    thread.join()
    return 8 * counted / (last - since) if last > since > 0 else 0.0


_NEW_USER, _NEW_NET = 0x10000000, 0x40000000  # CLONE_NEWUSER and CLONE_NEWNET (linux/sched.h)
_DIES_WITH_PARENT, _SLACK, _DUMPABLE = 1, 29, 4
"""Options of prctl(2): PR_SET_PDEATHSIG, PR_SET_TIMERSLACK and PR_SET_DUMPABLE (linux/prctl.h)."""
_LIBC = ctypes.CDLL(None, use_errno=True)
_PATH = "/usr/sbin:/sbin"


class Unavailable(Exception):
    """The reason why there can be no network here."""


class _Hosts:
    """The hosts' namespaces, and the switch's, which is this process's own."""

    def __init__(self, network: Network, count: int) -> None:
        self._network = network
        self._count = count
        self.is_user = _LIBC.unshare(_NEW_NET) != 0
        """Whether a user namespace, in which this user is root, is needed to make network namespaces."""
        if self.is_user:
            user, group = os.geteuid(), os.getegid()
            if _LIBC.unshare(_NEW_USER | _NEW_NET) != 0:
                raise Unavailable(
                    f"the kernel gives this user no network namespace: {os.strerror(ctypes.get_errno())}. Next: run "
                    "pytest as root, or allow user namespaces (Ubuntu: sysctl "
                    "kernel.apparmor_restrict_unprivileged_userns=0); in a container --privileged"
                )
            _LIBC.prctl(_DUMPABLE, 1)  # else the namespaces of this process cannot be opened by its own user
            for name, text in (("setgroups", "deny"), ("uid_map", f"0 {user} 1"), ("gid_map", f"0 {group} 1")):
                with open(f"/proc/self/{name}", "w") as file:
                    file.write(text)
        self._switch = os.open("/proc/self/ns/net", os.O_RDONLY)
        self._namespaces = []
        for _ in range(count):
            if _LIBC.unshare(_NEW_NET) != 0:
                raise Unavailable(f"the kernel gives no further network namespace: {os.strerror(ctypes.get_errno())}")
            self._namespaces.append(os.open("/proc/self/ns/net", os.O_RDONLY))
        _enter(self._switch)

    @property
    def places(self) -> list[str]:
        return [f"/proc/{os.getpid()}/fd/{descriptor}" for descriptor in self._namespaces]

    def join(self) -> str:
        """Connect the hosts, and return the name of what shapes and delays."""
        network = self._network
        has_netem = bool(network.delay_s or network.loss)
        if has_netem:
            try:
                run_batch("tc", ["qdisc add dev lo root netem delay 1ms"])
                run_batch("tc", ["qdisc del dev lo root"])
            except Unavailable:
                has_netem = False
        if (network.delay_s or network.loss) and not has_netem:
            self._join_by_relay()
            made_by = "relay"
        else:
            self._run(wire(network, self._count, self.places, has_netem=has_netem))
            made_by = "kernel"
        self._run(cover(network, self._count))
        return made_by

    def _join_by_relay(self) -> None:
        network, devices = self._network, []
        for host in range(self._count):
            with self.within(host):
                try:
                    devices.append(open_device(underlay(network), network))
                except OSError as error:
                    raise Unavailable(
                        f"this kernel has no netem, and delays need /dev/net/tun: {error.strerror}. Next: modprobe "
                        "sch_netem (Ubuntu: linux-modules-extra), or give a container --device /dev/net/tun"
                    ) from error
            self._run([("ip", host, addressed(network, host))])
        parent = os.getpid()
        if os.fork() == 0:
            _LIBC.prctl(_DIES_WITH_PARENT, signal.SIGKILL)
            _LIBC.prctl(_SLACK, 1)
            if os.getppid() != parent:
                os._exit(0)
            with contextlib.suppress(OSError):  # of the ordinary user
                os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(10))
            address = under_address if network.overlay else host_address
            try:
                relay(network, devices, [address(host) for host in range(len(devices))])
            finally:
                os._exit(1)
        for device in devices:
            os.close(device)

    @contextlib.contextmanager
    def within(self, host: int) -> Iterator[None]:
        _enter(self._namespaces[host])
        try:
            yield
        finally:
            _enter(self._switch)

    def _run(self, commands: Iterable[Commands]) -> None:
        for program, host, lines in commands:
            with contextlib.nullcontext() if host is None else self.within(host):
                run_batch(program, lines)


def _enter(descriptor: int) -> None:
    if _LIBC.setns(descriptor, _NEW_NET) != 0:
        raise Unavailable(f"cannot enter a network namespace: {os.strerror(ctypes.get_errno())}")


def run_batch(program: str, lines: list[str]) -> None:
    text = "".join(f"{line}\n" for line in lines)
    variables = {**os.environ, "PATH": f"{os.environ.get('PATH', '')}:{_PATH}"}
    try:
        ended = subprocess.run([program, "-batch", "-"], input=text, capture_output=True, text=True, env=variables)
    except OSError as error:
        raise Unavailable(f"{program}: {error.strerror}. Next: install iproute2") from error
    if ended.returncode:
        reason = next(iter(ended.stderr.strip().splitlines()), f"exit status {ended.returncode}")
        raise Unavailable(f"{program} cannot make it: {reason} (of: {'; '.join(lines)[:200]})")


def _say(answer: NetworkAnswer) -> None:
    sys.stdout.write(msgspec.json.encode(answer).decode() + "\n")
    sys.stdout.flush()


def serve(count: int, network: Network) -> int:
    """Make ``count`` hosts, and answer until stdin ends; return the exit status."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is pytest's to act on, which ends this process
    try:
        hosts = _Hosts(network, count)
        _say(NetworkAnswer(places=hosts.places, is_user=hosts.is_user, made_by=hosts.join()))
        for _ in sys.stdin:
            try:
                _say(NetworkAnswer(passages=probe(hosts.within, count, network)))
            except OSError as error:
                raise Unavailable(f"a host cannot reach the next one: {error.strerror or error}") from error
    except Exception as error:  # noqa: BLE001 whoever wanted it reads it
        _say(
            NetworkAnswer(trouble=str(error) if isinstance(error, Unavailable) else f"{type(error).__name__}: {error}")
        )
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(serve(int(sys.argv[1]), parse_network(sys.argv[2])))
