"""A switch in a process: where the kernel cannot delay or lose packets, they pass through here on their way.

Each host has a TUN device, whose other end is a descriptor: what a host sends is read from it, kept until its time has
come, and written to the descriptor of the host that it is for.
"""

from __future__ import annotations

import collections
import contextlib
import fcntl
import os
import random
import select
import struct
import time
from collections.abc import Sequence

from pytest_distbench.records.network import Network

_TUNSETIFF, _TUNSETOFFLOAD = 0x400454CA, 0x400454D0
_IFF_TUN, _IFF_NO_PI, _IFF_VNET_HDR = 0x1, 0x1000, 0x4000
_CHECKSUMS, _TCP4 = 0x1, 0x2
_HEADER = 10
"""Bytes of virtio's network header, before the packet (linux/virtio_net.h)."""
_HEADERS_AND_PIECE = struct.Struct("=2xHH4x")
"""Of it: bytes of the headers of each packet on the wire, and of what each carries; 0: it is one packet."""
_ETHERNET = 14
_TARGET = slice(_HEADER + 16, _HEADER + 20)
"""Of an IPv4 packet the address that it is for (RFC 791)."""
_LARGEST = 65536 + _HEADER
_AT_ONCE = 16


def open_device(name: str, network: Network) -> int:
    """Make a TUN device in this thread's network namespace; its descriptor.

    Where none are lost, packets of up to 64 KiB cross in one read, as the kernel has not cut them yet.

    Raises:
        OSError: there is no ``/dev/net/tun``, or it must not be used.
    """
    descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    flags = _IFF_TUN | _IFF_NO_PI | _IFF_VNET_HDR
    fcntl.ioctl(descriptor, _TUNSETIFF, struct.pack("16sH22x", name.encode(), flags))
    if not network.loss:
        fcntl.ioctl(descriptor, _TUNSETOFFLOAD, _CHECKSUMS | _TCP4)
    return descriptor


def relay(network: Network, devices: Sequence[int], addresses: Sequence[str]) -> None:
    """Carry packets between hosts until this process is ended.

    A packet leaves when the sender has sent what came before, travels for the delay, and arrives when the receiver has
    received what came before: a rate limits both.

    Args:
        network: its rate, delay and loss.
        devices: descriptor of each host's device.
        addresses: of each host, IPv4.
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
    """Bytes that a packet has on an Ethernet, where one that the kernel has not cut is many, each with its headers."""
    headers: int
    piece: int
    headers, piece = _HEADERS_AND_PIECE.unpack_from(packet)
    carried = len(packet) - _HEADER - headers
    count = -(-carried // piece) if piece else 1
    return carried + count * (headers + _ETHERNET)


def _packets(device: int) -> list[bytes]:
    """Those of IPv4 that wait at a device."""
    found = []
    for _ in range(_AT_ONCE):
        try:
            packet = os.read(device, _LARGEST)
        except BlockingIOError:
            break
        if packet[_HEADER] >> 4 == 4:
            found.append(packet)
    return found
