"""How long a packet takes; that packets pass is tested where there are hosts, in test_lab.py."""

from __future__ import annotations

import struct

from pytest_distbench.machine.network.relay import wire_bytes


def packet(num_bytes: int, *, headers: int = 0, piece: int = 0) -> bytes:
    return struct.pack("=BBHHHH", 0, 0, headers, piece, 0, 0) + bytes(num_bytes)


def test_a_packet_has_an_ethernet_header() -> None:
    assert wire_bytes(packet(1500)) == 1514


def test_one_that_is_not_cut_yet_has_the_headers_of_each_piece() -> None:
    assert wire_bytes(packet(52 + 3 * 1448, headers=52, piece=1448)) == 3 * 1514
    assert wire_bytes(packet(52 + 1448 + 1, headers=52, piece=1448)) == 1514 + 14 + 52 + 1
